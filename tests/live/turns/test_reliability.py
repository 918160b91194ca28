from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnout.kernel.arrays import FloatArray
from turnout.kernel.exchange_time import ExchangeTimeModel
from turnout.live.turns.history import SUSPECT_AFTER, ClientHistory
from turnout.live.turns.outcomes import ARRIVED
from turnout.live.turns.reliability import (
    MAX_BACKOFF,
    backoff_rounds,
    ema_update,
    probability_at_least,
    relative_error,
)


@given(st.lists(st.floats(0, 1), max_size=9), st.integers(0, 10))
@settings(max_examples=80, deadline=None)
def test_the_probability_that_enough_clients_return_is_the_sum_over_all_cases(
    probabilities: list[float], count: int
) -> None:
    expected = 0.0
    for case in product([True, False], repeat=len(probabilities)):
        if sum(case) >= count:
            pairs = zip(probabilities, case, strict=True)
            expected += float(np.prod([p if returned else 1 - p for p, returned in pairs]))
    assert probability_at_least(count, np.array(probabilities)) == pytest.approx(expected, abs=1e-12)


def test_reliability_starts_at_one_half_and_follows_the_outcomes() -> None:
    history = ClientHistory(arrived=np.array([0, 9, 0, 98]), lost=np.array([0, 0, 9, 0]))
    np.testing.assert_allclose(history.reliability, [1 / 2, 10 / 11, 1 / 11, 0.99])


@given(st.integers(1, 10), st.integers(0, 60))
def test_the_backoff_doubles_up_to_its_maximum(backoff_after: int, misses: int) -> None:
    rounds = backoff_rounds(misses, backoff_after)
    assert rounds == (0 if misses < backoff_after else min(2 ** (misses - backoff_after), MAX_BACKOFF))
    assert 0 <= rounds <= backoff_rounds(misses + 1, backoff_after) <= MAX_BACKOFF


def test_no_backoff_is_longer_than_64_rounds() -> None:
    assert [backoff_rounds(misses, 3) for misses in (8, 9, 10, 500)] == [32, 64, 64, 64]


def test_the_relative_error_is_at_most_9() -> None:
    assert relative_error(np.array([9.9, 10.0, 11.0, 1e6]), np.ones(4)).tolist() == pytest.approx([8.9, 9.0, 9.0, 9.0])


def test_a_client_is_suspect_after_10_returns_above_an_error_of_30_percent_and_twice_the_typical_error() -> None:
    cases = [  # error from the context, error from the typical time, returns, whether the client is suspect
        (0.5, 0.1, 10, True),
        (0.5, 0.1, 9, False),
        (0.301, 0.1, 10, True),
        (0.3, 0.1, 10, False),
        (0.5, 0.24, 10, True),
        (0.5, 0.25, 10, False),
        (9.0, 4.4, 10, True),
        (9.0, 4.5, 10, False),
    ]
    context, typical, arrived, expected = zip(*cases, strict=True)
    history = ClientHistory(
        arrived=np.array(arrived), context_errors=np.array(context), typical_errors=np.array(typical)
    )
    assert history.suspects().tolist() == list(expected)


@given(st.floats(1e-3, 1e9), st.floats(-1e3, 1e9))
def test_the_relative_error_is_symmetric_and_finite(seconds: float, expected: float) -> None:
    errors = relative_error(np.array([seconds, max(expected, 1e-9)]), np.array([expected, seconds]))
    assert errors[0] == pytest.approx(errors[1])
    assert (errors >= 0).all()
    assert np.isfinite(errors).all()


def test_a_moving_average_starts_as_the_plain_mean_and_then_forgets() -> None:
    values, mean = [4.0, 8.0, 6.0, 2.0], np.zeros(1)
    for count, value in enumerate(values):
        mean = ema_update(mean, np.array([value]), np.array([count]))
        assert mean[0] == pytest.approx(np.mean(values[: count + 1]))
    for _ in range(60):
        mean = ema_update(mean, np.array([1.0]), np.array([100]))
    assert mean[0] == pytest.approx(1.0, abs=1e-4)


#: The factors by which clients misreport their speed, from the number of the round and random factors.
MISREPORTS: dict[str, Callable[[int, FloatArray], FloatArray]] = {
    "honest": lambda _, random: np.ones(random.shape),
    "constant": lambda _, random: np.full(random.shape, 3.0),
    "from round 25 on": lambda round_, random: np.full(random.shape, 10.0 if round_ >= 25 else 1.0),
    "random": lambda _, random: random,
}


@pytest.mark.parametrize("noise", [0.05, 0.6])
@pytest.mark.parametrize("misreport", MISREPORTS)
def test_clients_with_changing_misreports_become_suspect_and_others_hardly_ever(misreport: str, noise: float) -> None:
    rng, clients = np.random.default_rng(7), 300
    theta = rng.uniform([1, 1, 0.1], [4, 1, 1], (clients, 3))
    model = ExchangeTimeModel(clients)
    history, rows, kinds = ClientHistory(), np.arange(clients), np.full(clients, ARRIVED)
    history.add(clients)
    shares, ever_suspect = [], np.zeros(clients, dtype=bool)
    for round_ in range(60):
        contexts = np.column_stack(
            [rng.uniform(0.5, 2, clients), rng.integers(0, 2, clients), rng.uniform(5, 10, clients)]
        )
        seconds = (contexts * theta).sum(axis=1) * (1 + rng.uniform(-noise, noise, clients))
        factors = MISREPORTS[misreport](round_, np.exp(rng.uniform(-2.3, 2.3, clients)))
        reported = contexts * np.column_stack([factors, np.ones(clients), factors])
        history.record(rows, kinds, seconds, model.predict(reported))
        model.learn(rows, reported, seconds)
        suspect = history.suspects()
        shares.append(suspect.mean())
        ever_suspect |= suspect
        assert round_ + 1 >= SUSPECT_AFTER or not ever_suspect.any()
    if misreport in ("honest", "constant"):
        assert np.mean(shares) < 0.01
    else:
        assert ever_suspect.mean() > 0.9
