"""The history of the clients against a literal count of each client's rounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnout.live import ClientHistory
from turnout.live._internals import CUT_OFF, FAILED, KINDS, LATE, REDUNDANT
from turnout.live.turns.history import JUDGED_AFTER, SUSPECT_AFTER
from turnout.live.turns.reliability import EMA_WEIGHT

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
