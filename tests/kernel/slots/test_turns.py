"""Turns without rounds: who earns with a decision, and who trains."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnout.errors import ReportError, StateError
from turnout.kernel.fairness import FairnessQueues
from turnout.kernel.slots.turns import RunningTurns, TurnStart

NOBODY = np.empty(0, dtype=np.int64)


def turn(decision: int, client: int, present: list[bool], capped: list[int] | None = None) -> TurnStart:
    return TurnStart(decision, client, np.array(present), np.array(capped or [], dtype=np.int64))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: turn(0, 0, [True]), "decision must be at least 1"),
        (lambda: turn(1, 1, [True, False]), "client 1 was given a turn, but was not available"),
        (lambda: turn(1, 2, [True, False]), "client 2 was given a turn, but was not available"),
        (lambda: turn(1, 0, [True, True], [0]), "client 0 was given a turn, but is in capped"),
        (lambda: turn(1, 0, [True, True], [2]), "capped"),
        (lambda: turn(1, -1, [True]), "client must be at least 0"),
    ],
)
def test_an_impossible_decision_is_refused(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ReportError, match=message):
        build()


def test_clients_running_are_known_in_the_order_of_their_turns_and_restored() -> None:
    running_turns = RunningTurns(4)
    for decision, client in ((1, 2), (2, 0), (5, 3)):
        running_turns.start(turn(decision, client, [True] * 4))
    assert running_turns.rows.tolist() == [2, 0, 3]
    assert running_turns.idle.tolist() == [False, True, False, False]
    assert [running_turns.decision_of(row) for row in range(4)] == [2, 0, 1, 5]
    assert running_turns.finish(0) == 2
    assert len(running_turns) == 2
    again = RunningTurns(4)
    again.restore(running_turns.state())
    assert again.rows.tolist() == [2, 3]
    assert again.finish(3) == 5
    running_turns.add(2)
    assert running_turns.idle.tolist() == [True, True, False, False, True, True]
    with pytest.raises(ReportError, match="client 0 is not training"):
        running_turns.finish(0)
    with pytest.raises(ReportError, match="client 2 is training since decision 1"):
        running_turns.start(turn(6, 2, [True] * 6))
    with pytest.raises(StateError, match="must not be negative"):
        again.restore({"started": np.full(4, -1)})


@pytest.mark.parametrize("rates", ["2/7", [0.3, 0.1, 0.1]])
def test_a_client_is_capped_after_the_decisions_with_which_it_earns_a_turn(rates: str | list[float]) -> None:
    running_turns, debts = RunningTurns(3), FairnessQueues(3, rates)
    running_turns.start(turn(4, 0, [True] * 3))
    assert [running_turns.capped(decision, debts).tolist() for decision in (5, 6, 7, 8)] == [[], [], [], [0]]
    assert running_turns.capped(10**9, None).tolist() == []


@given(
    accrual=st.sampled_from(["available", "always"]),
    rates=st.one_of(
        st.fractions(0, Fraction(1, 2), max_denominator=20),
        st.lists(st.fractions(0, Fraction(1, 2), max_denominator=12), min_size=4, max_size=4),
    ),
    decisions=st.lists(
        st.tuples(st.integers(0, 3), st.lists(st.booleans(), min_size=4, max_size=4), st.booleans()), max_size=30
    ),
)
@settings(max_examples=60)
def test_debts_of_decisions_equal_a_count_in_fractions(
    accrual: str, rates: Fraction | list[Fraction], decisions: list[tuple[int, list[bool], bool]]
) -> None:
    each = rates if isinstance(rates, list) else [rates] * 4
    queues = FairnessQueues(4, np.array(each, dtype=object) if isinstance(rates, list) else rates, accrual=accrual)  # type: ignore[arg-type]
    running_turns, owed, earned, promised = RunningTurns(4), [Fraction(0)] * 4, [Fraction(0)] * 4, [Fraction(0)] * 4
    number = 0
    for client, present, ends in decisions:
        if ends and len(running_turns):
            running_turns.finish(int(running_turns.rows[0]))
        if not running_turns.idle[client]:
            continue
        number += 1
        mask = np.array(present) | ~running_turns.idle
        mask[client] = True
        capped = running_turns.capped(number, queues)
        for row in range(4):
            is_training = not running_turns.idle[row]
            earns = mask[row] or accrual == "always"
            # While its turn lasts, a client earns at most one turn.
            if is_training and earned[row] + each[row] > 1:
                assert row in capped
                earns = False
            else:
                assert row not in capped
            if earns or is_training:
                earned[row] += each[row] if is_training else 0
            gain = each[row] if earns else Fraction(0)
            promised[row] += gain
            owed[row] = max(owed[row] + gain - (row == client), Fraction(0))
        queues.advance_decision(np.array([client]), mask, capped)
        running_turns.start(TurnStart(number, client, mask, capped))
        earned[client] = Fraction(0)
    assert [Fraction(value).limit_denominator(10**6) for value in queues.owed.tolist()] == owed
    certificate = queues.certificate(np.zeros(4, dtype=np.int64))
    assert [Fraction(value).limit_denominator(10**6) for value in certificate.promised.tolist()] == promised


def test_a_turn_that_counts_when_the_client_is_back_is_paid_then() -> None:
    queues = FairnessQueues(2, "1/2", accrual="available")
    for _ in range(3):
        queues.advance_decision(NOBODY, np.array([True, True]), NOBODY)
    assert queues.owed.tolist() == [1.5, 1.5]
    queues.pay(np.array([0]))
    assert queues.owed.tolist() == [0.5, 1.5]
    queues.pay(np.array([0]))
    assert queues.owed.tolist() == [0.0, 1.5]
    assert queues.certificate([0, 0]).promised.tolist() == [1.5, 1.5]


def test_a_payment_counts_what_was_forfeited_to_the_cap_before() -> None:
    queues = FairnessQueues(2, "1/2", accrual="available", max_owed=1)
    for _ in range(5):
        queues.advance_decision(NOBODY, np.array([True, True]), NOBODY)
    queues.pay(np.array([0]))
    assert (queues.owed.tolist(), queues.forfeited.tolist()) == ([0.0, 1.0], [1.5, 1.5])
    queues.advance_decision(NOBODY, np.array([True, False]), NOBODY)
    assert queues.owed.tolist() == [0.5, 1.0]
    assert queues.certificate([1, 0]).books_balance


def test_a_client_that_has_left_earns_nothing_and_cannot_be_given_a_turn() -> None:
    queues = FairnessQueues(3, "1/4", accrual="always")
    queues.retire([2])
    queues.advance_decision(np.array([0]), np.ones(3, dtype=np.bool_), np.array([1]))
    assert queues.certificate([1, 0, 0]).promised.tolist() == [0.25, 0.0, 0.0]
    with pytest.raises(ReportError, match="client 2 has retired"):
        queues.advance_decision(np.array([2]), np.ones(3, dtype=np.bool_), NOBODY)
