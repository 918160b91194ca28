"""The counters of the clients, and the keys under which snapshots store them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnout.kernel.arrays import FloatArray
from turnout.kernel.exchange_time import ExchangeTimeModel
from turnout.live._internals import CUT_OFF, FAILED, KINDS, LATE, REDUNDANT
from turnout.live.turns.clients import (
    EMA_WEIGHT,
    JUDGED_AFTER,
    MAX_BACKOFF,
    NEVER,
    SUSPECT_AFTER,
    ClientCounters,
    ClientHistory,
    backoff_rounds,
    probability_at_least,
    relative_error,
)
from turnout.live.turns.records import ARRIVED, pack_availability, unpack_availability, was_available
from turnout.live.turns.rounds.choosing import _smallest_sufficient


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


@given(st.integers(1, 10), st.integers(0, 60))
def test_the_backoff_doubles_up_to_its_maximum(backoff_after: int, misses: int) -> None:
    rounds = backoff_rounds(misses, backoff_after)
    assert rounds == (0 if misses < backoff_after else min(2 ** (misses - backoff_after), MAX_BACKOFF))
    assert 0 <= rounds <= backoff_rounds(misses + 1, backoff_after) <= MAX_BACKOFF


def test_no_backoff_is_longer_than_64_rounds() -> None:
    assert [backoff_rounds(misses, 3) for misses in (8, 9, 10, 500)] == [32, 64, 64, 64]


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


#: Files contain these keys, so they change only with the format.
STORED_KEYS = {
    "joined",
    "offered",
    "last_trained",
    "learned",
    "misses",
    "backoff_until",
    "backed_off",
    "retired",
    "broken_since",
}


def test_new_clients_have_never_trained_and_forgetting_resets_what_reports_have_changed() -> None:
    counters = ClientCounters()
    counters.add(2)
    counters.add(1)
    assert counters.last_trained.tolist() == [NEVER] * 3
    for counter in (counters.offered, counters.learned, counters.misses, counters.backoff_until, counters.retired):
        assert counter.tolist() == [0, 0, 0]
        counter[:] = 6
    counters.last_trained[:] = 5
    counters.forget(0)
    for counter in (counters.offered, counters.learned, counters.misses, counters.backoff_until):
        assert counter.tolist() == [0, 6, 6]
    assert (counters.joined.tolist(), counters.last_trained.tolist()) == ([0, 0, 0], [5, 5, 5])


def test_restored_counters_are_copies_of_the_stored_ones() -> None:
    counters = ClientCounters()
    counters.add(3)
    counters.last_trained[1], counters.backoff_until[2], counters.retired[0] = 5, 9, 1
    stored = counters.stored()
    assert stored.keys() == {f"clients.{key}" for key in STORED_KEYS}
    assert stored["clients.last_trained"].tolist() == [NEVER, 5, NEVER]
    assert stored["clients.backoff_until"].tolist() == [0, 0, 9]
    restored = ClientCounters.restored({**stored, "clients.arrived": np.zeros(3)}, 3)
    restored.misses[0] = 3
    counters.misses[1] = 2
    assert (stored["clients.misses"].tolist(), counters.misses.tolist(), restored.misses.tolist()) == (
        [0, 0, 0],
        [0, 2, 0],
        [3, 0, 0],
    )
    assert restored.backing_off(8).tolist() == [False, False, True]
    assert not restored.backing_off(9).any(), "the last round of the back-off is over"


CLIENTS = 3
TURN = st.tuples(
    st.integers(0, len(KINDS) - 1), st.floats(0.5, 50), st.one_of(st.just(float("nan")), st.floats(0.5, 50))
)
ROUNDS = st.lists(st.dictionaries(st.integers(0, CLIENTS - 1), TURN, min_size=1), max_size=25)


class LiteralHistory:
    """The history of one client, in plain numbers."""

    def __init__(self) -> None:
        self.arrived = self.lost = 0
        self.context_error = self.typical_error = self.typical_seconds = 0.0

    def record(self, kind: int, seconds: float, predicted: float) -> None:
        if kind in (LATE, FAILED):
            self.lost += 1
        if kind > REDUNDANT:
            return
        if self.arrived >= JUDGED_AFTER and predicted == predicted:
            step = max(EMA_WEIGHT, 1 / (self.arrived - JUDGED_AFTER + 1))
            self.context_error += step * (error(seconds, predicted) - self.context_error)
            self.typical_error += step * (error(seconds, self.typical_seconds) - self.typical_error)
        self.typical_seconds += max(EMA_WEIGHT, 1 / (self.arrived + 1)) * (seconds - self.typical_seconds)
        self.arrived += 1


def error(seconds: float, expected: float) -> float:
    low, high = sorted((seconds, expected))
    return min(high / low - 1, 9.0)


def record(history: ClientHistory, turns: dict[int, tuple[int, float, float]]) -> None:
    kinds, seconds, predicted = zip(*turns.values(), strict=True)
    history.record(np.array(list(turns)), np.array(kinds), np.array(seconds), np.array(predicted))


@given(ROUNDS)
def test_a_history_equals_a_literal_count(rounds: list[dict[int, tuple[int, float, float]]]) -> None:
    history, literal = ClientHistory(), [LiteralHistory() for _ in range(CLIENTS)]
    history.add(1)
    history.add(CLIENTS - 1)
    for turns in rounds:
        record(history, turns)
        for row, turn in turns.items():
            literal[row].record(*turn)
    assert history.arrived.tolist() == [client.arrived for client in literal]
    assert history.lost.tolist() == [client.lost for client in literal]
    assert history.context_errors.tolist() == pytest.approx([client.context_error for client in literal])
    assert history.typical_errors.tolist() == pytest.approx([client.typical_error for client in literal])
    assert history.typical_seconds.tolist() == pytest.approx([client.typical_seconds for client in literal])
    expected = [(client.arrived + 1) / (client.arrived + client.lost + 2) for client in literal]
    assert history.reliability.tolist() == pytest.approx(expected)


def test_without_a_time_model_only_the_outcomes_are_counted() -> None:
    history = ClientHistory()
    history.add(2)
    for kind in (REDUNDANT, CUT_OFF, LATE, FAILED):
        history.record(np.array([1]), np.array([kind]), np.array([3.0]), None)
    assert (history.arrived.tolist(), history.lost.tolist()) == ([0, 1], [0, 2])
    assert not history.typical_seconds.any()


def test_only_a_client_with_a_misleading_context_is_suspect_until_it_is_forgotten() -> None:
    history = ClientHistory()
    history.add(2)
    for _ in range(SUSPECT_AFTER + JUDGED_AFTER):
        record(history, {0: (0, 5.0, 5.0), 1: (0, 5.0, 50.0)})
    assert history.suspects().tolist() == [False, True]
    history.forget(1)
    assert history.suspects().tolist() == [False, False]
    assert history.arrived.tolist() == [SUSPECT_AFTER + JUDGED_AFTER, 0]


def test_a_restored_history_continues_like_the_original() -> None:
    history = ClientHistory()
    history.add(2)
    for _ in range(5):
        record(history, {0: (0, 5.0, 4.0), 1: (LATE, 9.0, 4.0)})
    restored = ClientHistory.restored({**history.stored(), "clients.misses": np.zeros(2)}, 2)
    record(restored, {0: (0, 7.0, 4.0)})
    assert history.arrived.tolist() == [5, 0], "a restored history must not share arrays"
    record(history, {0: (0, 7.0, 4.0)})
    for (key, original), (other, copy) in zip(history.stored().items(), restored.stored().items(), strict=True):
        assert (key, original.tolist()) == (other, copy.tolist())


def test_suspects_misreport_only_if_most_clients_are_predicted_much_better() -> None:
    history = ClientHistory()
    history.add(6)
    history.arrived[:] = SUSPECT_AFTER
    history.context_errors[:] = [1.0, 0.1, 0.1, 0.2, 0.2, 0.1]
    assert history.misreporting().tolist() == [True] + [False] * 5
    history.context_errors[:] = [1.0, 0.9, 0.7, 0.8, 0.6, 0.7]  # the machine that all share is busier than before
    assert history.suspects().all()
    assert not history.misreporting().any()


@pytest.mark.parametrize("clients", [1, 7, 8, 9, 16, 17, 2000])
def test_a_client_was_available_as_its_bit_says_and_not_before_it_joined(clients: int) -> None:
    available = np.random.default_rng(clients).random(clients) < 0.5
    packed = pack_availability(available)
    assert unpack_availability(packed, clients).tolist() == available.tolist()
    assert [was_available(packed, row) for row in range(clients)] == available.tolist()
    assert not any(was_available(packed, row) for row in range(clients, clients + 20))


@pytest.mark.parametrize("smallest", [1, 2, 5])
@pytest.mark.parametrize("needed", range(1, 30))
def test_the_smallest_sufficient_cohort_is_found(smallest: int, needed: int) -> None:
    largest = 24
    tried: list[int] = []

    def is_sufficient(size: int) -> bool:
        tried.append(size)
        return size >= needed

    assert _smallest_sufficient(is_sufficient, smallest, largest) == min(max(needed, smallest), largest)
    assert len(tried) <= 12
    assert len(set(tried)) == len(tried)
