from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnout.kernel.arrays import FloatArray
from turnout.kernel.exchange_time import ExchangeTimeModel
from turnout.scheduler.rounds.reliability import (
    AFTER,
    LONGEST_REST,
    doubtful,
    moved,
    probability_at_least,
    relative_error,
    reliability,
    rest_after_misses,
)


@given(st.lists(st.floats(0, 1), max_size=9), st.integers(0, 10))
@settings(max_examples=80, deadline=None)
def test_the_chance_that_enough_come_back_is_that_of_all_cases_in_which_they_do(
    chances: list[float], wanted: int
) -> None:
    expected = 0.0
    for back in product([True, False], repeat=len(chances)):
        if sum(back) >= wanted:
            expected += float(np.prod([c if came else 1 - c for c, came in zip(chances, back, strict=True)]))
    assert probability_at_least(wanted, np.array(chances)) == pytest.approx(expected, abs=1e-12)


def test_reliability_begins_at_a_half_and_follows_what_happened() -> None:
    arrived, lost = np.array([0, 9, 0, 98]), np.array([0, 0, 9, 0])
    np.testing.assert_allclose(reliability(arrived, lost), [1 / 2, 10 / 11, 1 / 11, 0.99])


@given(st.integers(1, 10), st.integers(0, 60))
def test_rests_double_up_to_the_longest(rest_after: int, misses: int) -> None:
    rest = rest_after_misses(misses, rest_after)
    assert rest == (0 if misses < rest_after else min(2 ** (misses - rest_after), LONGEST_REST))
    assert 0 <= rest <= rest_after_misses(misses + 1, rest_after) <= LONGEST_REST


@given(st.floats(1e-3, 1e9), st.floats(-1e3, 1e9))
def test_how_far_is_the_same_up_and_down_and_never_wild(seconds: float, expected: float) -> None:
    far = relative_error(np.array([seconds, max(expected, 1e-9)]), np.array([expected, seconds]))
    assert far[0] == pytest.approx(far[1])
    assert (far >= 0).all()
    assert np.isfinite(far).all()


def test_a_recent_mean_begins_as_the_plain_mean() -> None:
    values, mean = [4.0, 8.0, 6.0, 2.0], np.zeros(1)
    for before, value in enumerate(values):
        mean = moved(mean, np.array([value]), np.array([before]))
        assert mean[0] == pytest.approx(np.mean(values[: before + 1]))
    for _ in range(60):
        mean = moved(mean, np.array([1.0]), np.array([100]))
    assert mean[0] == pytest.approx(1.0, abs=1e-4)  # and then forgets


LIES: dict[str, Callable[[int, FloatArray], FloatArray]] = {
    "honest": lambda _, drawn: np.ones(drawn.shape),
    "constant": lambda _, drawn: np.full(drawn.shape, 3.0),
    "from some day on": lambda time, drawn: np.full(drawn.shape, 10.0 if time >= 25 else 1.0),
    "ever another": lambda _, drawn: drawn,
}


@pytest.mark.parametrize("noise", [0.05, 0.6])
@pytest.mark.parametrize("lie", LIES)
def test_who_lies_in_changing_ways_is_doubted_and_others_hardly_ever(lie: str, noise: float) -> None:
    """A few hundred clients, sixty times each, in a world as noisy as that."""
    rng, clients = np.random.default_rng(7), 300
    theta = rng.uniform([1, 1, 0.1], [4, 1, 1], (clients, 3))
    model = ExchangeTimeModel(clients)
    from_context, from_habit, habit = (np.zeros(clients) for _ in range(3))
    shares, ever = [], np.zeros(clients, dtype=bool)
    for time in range(60):
        truth = np.column_stack(
            [rng.uniform(0.5, 2, clients), rng.integers(0, 2, clients), rng.uniform(5, 10, clients)]
        )
        seconds = (truth * theta).sum(axis=1) * (1 + rng.uniform(-noise, noise, clients))
        factor = LIES[lie](time, np.exp(rng.uniform(-2.3, 2.3, clients)))
        told = truth * np.column_stack([factor, np.ones(clients), factor])
        before = np.full(clients, time)
        if time >= 2:
            from_context = moved(from_context, relative_error(seconds, model.predict(told)), before - 2)
            from_habit = moved(from_habit, relative_error(seconds, habit), before - 2)
        habit = moved(habit, seconds, before)
        model.learn(np.arange(clients), told, seconds)
        doubted = doubtful(from_context, from_habit, before + 1)
        shares.append(doubted.mean())
        ever |= doubted
        assert time + 1 >= AFTER or not ever.any()
    if lie in ("honest", "constant"):
        assert np.mean(shares) < 0.01
    else:
        assert ever.mean() > 0.9
