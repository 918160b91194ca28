from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from literal import LiteralQueue
from turnout.errors import ReportError, SettingError, StateError
from turnout.kernel.arrays import FINEST, exact_rate, exact_rates
from turnout.kernel.fairness import FairnessQueues

RATES = [Fraction(0), Fraction(3, 20), Fraction(1, 3), Fraction(1, 2), Fraction(1)]


def exact_debts(queues: FairnessQueues) -> list[Fraction]:
    owed = queues.owed_exactly()
    return [Fraction(int(units) + owed.credit, int(owed.units_per_turn)) for units in owed.units]


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Fraction], str, Fraction | None, list[tuple[list[bool], list[bool]]]]:
    clients = draw(st.integers(1, 6))
    rates = (
        [draw(st.sampled_from(RATES))] * clients
        if draw(st.booleans())
        else draw(st.lists(st.sampled_from(RATES), min_size=clients, max_size=clients))
    )
    accrual = draw(st.sampled_from(["always", "available"]))
    cap = draw(st.sampled_from([None, Fraction(0), Fraction(1, 2), Fraction(2)]))
    masks = st.lists(st.booleans(), min_size=clients, max_size=clients)
    return rates, accrual, cap, draw(st.lists(st.tuples(masks, masks), max_size=40))


@given(histories())
@settings(max_examples=60, deadline=None)
def test_lazy_integer_queues_equal_literal_queues_in_fractions(
    history: tuple[list[Fraction], str, Fraction | None, list[tuple[list[bool], list[bool]]]],
) -> None:
    rates, accrual, cap, rounds = history
    queues = FairnessQueues(
        len(rates),
        rates if len(set(rates)) > 1 else rates[0],  # type: ignore[arg-type]
        accrual=accrual,  # type: ignore[arg-type]
        max_owed=cap,
    )
    unit = queues.units_per_turn
    if cap is not None:  # the queues round the cap down to whole units
        cap = Fraction(int(cap * unit), unit)
    literal = [LiteralQueue(rate, cap) for rate in rates]
    turns = np.zeros(len(rates), dtype=np.int64)
    for available, requested in rounds:
        chosen = [row for row in range(len(rates)) if available[row] and requested[row]]
        queues.advance(chosen, available)
        turns[chosen] += 1
        for row, queue in enumerate(literal):
            queue.advance(accrues=accrual == "always" or available[row], chosen=row in chosen)
        assert exact_debts(queues) == [queue.owed for queue in literal]
        assert (queues.owed >= 0).all()
        certificate = queues.certificate(turns)
        assert certificate.books_balance
        assert [Fraction(int(u), unit) for u in certificate.promised_units] == [q.promised for q in literal]
        assert [Fraction(int(u), unit) for u in certificate.forfeited_units] == [q.forfeited for q in literal]


def test_a_mask_is_accepted_instead_of_rows() -> None:
    rows, mask = FairnessQueues(3, 0.5), FairnessQueues(3, 0.5)
    rows.advance([0, 2])
    mask.advance(np.array([True, False, True]))
    assert exact_debts(rows) == exact_debts(mask)


def test_the_certificate_checks_independently_counted_turns() -> None:
    queues = FairnessQueues(2, 0.5)
    for chosen in ([0], [0], [0], [1]):
        queues.advance(chosen)
    assert queues.certificate([3, 1]).books_balance
    assert queues.certificate([3, 1]).promised.tolist() == [2.0, 2.0]
    wrong = queues.certificate([3, 0])
    assert not wrong.books_balance
    assert wrong.balanced.tolist() == [True, False]


def test_accrual_that_depends_on_availability_needs_it_and_only_available_clients_can_be_chosen() -> None:
    queues = FairnessQueues(2, 0.5, accrual="available")
    with pytest.raises(ReportError, match="needs the availability of every client"):
        queues.advance([])
    with pytest.raises(ReportError, match="client 1 was chosen but not available"):
        queues.advance([1], [True, False])
    assert queues.rounds.tolist() == [0, 0]


def test_the_debt_of_a_million_rounds_is_exact() -> None:
    queues = FairnessQueues(2, "999999999/1000000000")
    queues.restore({**queues.state(), "rounds": 10**6, "balance": np.array([0, -999_999_999 * 10**6])})
    assert exact_debts(queues) == [Fraction(999_999_999 * 10**6, 10**9), 0]


def test_queues_are_restored_from_their_state_and_other_rates_are_refused() -> None:
    queues = FairnessQueues(3, [0.1, 0.2, 0.3], accrual="available", max_owed=1)
    queues.retire([2])
    for _ in range(20):
        queues.advance([0], [True, True, False])
    restored = FairnessQueues(3, [0.1, 0.2, 0.3], accrual="available", max_owed=1)
    restored.restore(queues.state())
    for each in (queues, restored):
        each.advance([1], [True, True, True])
    assert exact_debts(restored) == exact_debts(queues)
    assert restored.forfeited.tolist() == queues.forfeited.tolist()
    with pytest.raises(StateError, match="are for 3 clients with 3 different rates, expected 3 clients with rate 1/2"):
        FairnessQueues(3, 0.5).restore(queues.state())
    with pytest.raises(StateError, match="are for 3 clients with rate 1/2, expected 4 clients with rate 1/2"):
        FairnessQueues(4, 0.5).restore(FairnessQueues(3, 0.5).state())


@pytest.mark.parametrize("key", ["rounds", "forfeited", "retired"])
def test_saved_queues_have_one_entry_for_each_client(key: str) -> None:
    queues = FairnessQueues(3, [0.1, 0.2, 0.3], accrual="available", max_owed=1)
    before = exact_debts(queues)
    with pytest.raises(StateError, match=rf"the saved '{key}' has shape \(2,\), expected \(3,\)"):
        queues.restore({**queues.state(), key: np.ones(2)})
    assert exact_debts(queues) == before


@pytest.mark.parametrize(
    ("rate", "fraction"),
    [
        (0.15, Fraction(3, 20)),
        ("3/20", Fraction(3, 20)),
        ("0.15", Fraction(3, 20)),
        (1 / 3, Fraction(1, 3)),
        (1, Fraction(1)),
        (0, Fraction(0)),
        (0.1234567, Fraction(1234567, 10**7)),
        (Fraction(2, 7), Fraction(2, 7)),
    ],
)
def test_a_rate_is_read_as_the_nearest_simple_fraction(rate: float | str | Fraction, fraction: Fraction) -> None:
    assert exact_rate(rate) == fraction


@pytest.mark.parametrize("rate", [-0.1, 1.1, "x", float("nan"), float("inf"), "1/0", None, [0.1]])
def test_an_invalid_rate_is_refused(rate: object) -> None:
    with pytest.raises(SettingError, match="guaranteed_rate must"):
        exact_rate(rate)  # type: ignore[arg-type]


def test_rates_without_a_common_denominator_are_rounded_up() -> None:
    rates = np.random.default_rng(0).random(50)
    units, per_turn = exact_rates(rates, 50)
    assert per_turn == FINEST
    assert (units / per_turn >= rates - 1e-16).all()
    assert (units / per_turn <= rates + 1e-9 + 1e-16).all()


def test_unknown_and_retired_clients_and_those_without_a_rate_are_refused_and_change_nothing() -> None:
    queues = FairnessQueues(2, 0.5)
    with pytest.raises(ReportError, match=r"chosen\[0\] = 5 is unknown"):
        queues.advance([5])
    with pytest.raises(ReportError, match="turns must be 2 whole numbers"):
        queues.certificate([1.0, 2.0])
    queues.retire([1])
    with pytest.raises(ReportError, match="client 1 has retired"):
        queues.advance([1])
    assert queues.rounds.tolist() == [0, 0]
    queues = FairnessQueues(2, ["1/2", "1/3"])
    with pytest.raises(SettingError, match="the clients have different rates, so 1 more cannot join"):
        queues.add(1)
    assert queues.clients == 2
    with pytest.raises(SettingError, match="one rate or 3, one per client"):
        FairnessQueues(3, [0.1, 0.2])


# Amended rates


@st.composite
def amended_lives(draw: st.DrawFn) -> list[tuple[str, Any]]:
    """Returns steps: rounds with chosen and available clients, amendments, joining and retiring clients, restores."""
    step = st.one_of(
        st.tuples(st.just("round"), st.integers(0, 2**16 - 1)),
        st.tuples(st.just("amend"), st.sampled_from(["1/4", "3/20", 0.1, "2/7", 0, 1, "1/3"])),
        st.tuples(st.just("add"), st.integers(1, 2)),
        st.tuples(st.just("retire"), st.integers(0, 7)),
        st.tuples(st.just("restore"), st.none()),
    )
    return draw(st.lists(step, min_size=1, max_size=40))


@pytest.mark.parametrize("accrual", ["always", "available"])
@pytest.mark.parametrize("caps", [(None, None), (1.3, 1.3), (0.7, 2.5), (3, 0.5)])
@given(life=amended_lives())
@settings(max_examples=12, deadline=None)
def test_amended_queues_count_each_round_at_the_rate_of_its_time(
    accrual: Literal["always", "available"], caps: tuple[float | None, float | None], life: list[tuple[str, Any]]
) -> None:
    rate, cap = "1/6", caps[0]
    queues = FairnessQueues(3, rate, accrual=accrual, max_owed=cap)
    turns, gone = [0] * 3, [False] * 3
    promised, owed, forfeited = ([Fraction(0)] * 3 for _ in range(3))

    def successor() -> FairnessQueues:
        return FairnessQueues(len(turns), rate, accrual=accrual, max_owed=cap)

    def limit() -> None:
        for row in range(len(turns)):
            most = owed[row] if cap is None else Fraction(cap)
            most = Fraction(math.floor(most * queues.units_per_turn), queues.units_per_turn)
            forfeited[row] += max(owed[row] - most, Fraction(0))
            owed[row] = min(owed[row], most)

    for step, argument in life:
        if step == "round":
            available = [bool(argument >> row & 1) and not gone[row] for row in range(len(turns))]
            chosen = [row for row in range(len(turns)) if available[row] and argument >> (8 + row) & 1]
            queues.advance(chosen, available)
            for row in range(len(turns)):
                if not gone[row] and (available[row] or accrual == "always"):
                    promised[row] += exact_rate(rate)
                    owed[row] += exact_rate(rate)
                if row in chosen:
                    turns[row] += 1
                    owed[row] = max(owed[row] - 1, Fraction(0))
        elif step == "amend":
            rate, cap = argument, caps[1]
            queues.settle()
            amended = successor()
            amended.restore(amended.amended_state(queues.state()))
            queues = amended
        elif step == "add" and len(turns) + argument <= 8:
            queues.add(argument)
            for numbers in (promised, owed, forfeited):
                numbers.extend([Fraction(0)] * argument)
            turns.extend([0] * argument)
            gone.extend([False] * argument)
        elif step == "retire" and argument < len(turns):
            queues.retire([argument])
            gone[argument] = True
        elif step == "restore":
            restored = successor()
            restored.restore(queues.state())
            queues = restored
        limit()
        certificate, unit = queues.certificate(turns), queues.units_per_turn
        assert [Fraction(units, unit) for units in certificate.promised_units.tolist()] == promised
        assert [Fraction(units, unit) for units in certificate.owed_units.tolist()] == owed
        assert [Fraction(units, unit) for units in certificate.forfeited_units.tolist()] == forfeited
        assert queues.guaranteed_rates.tolist() == [float(exact_rate(rate))] * len(turns)


def test_the_state_of_amended_queues_is_refused_by_queues_of_another_rate() -> None:
    queues = FairnessQueues(2, "1/4")
    queues.advance([0])
    amended = FairnessQueues(2, "1/6")
    amended.restore(amended.amended_state(queues.state()))
    assert amended.units_per_turn == 12
    for other in (FairnessQueues(2, "1/4"), FairnessQueues(3, "1/6"), FairnessQueues(2, "1/5")):
        with pytest.raises(StateError, match="the saved queues are for 2 clients with rate 1/6"):
            other.restore(amended.state())
    with pytest.raises(SettingError, match="common denominator of 3999999748, more than 1000000000"):
        FairnessQueues(2, "1/999999937").amended_state(queues.state())


@pytest.mark.parametrize("rate", ["1/6", ["1/6", "1/3"]])
def test_queues_restore_their_own_state_after_an_amended_one(rate: Any) -> None:
    """So that a policy whose restoration is interrupted can go back."""
    queues = FairnessQueues(2, "1/4")
    queues.advance([0])
    amended = FairnessQueues(2, rate)
    own = amended.state()
    amended.restore(amended.amended_state(queues.state()))
    assert amended.units_per_turn == 12
    amended.restore(own)
    assert amended.units_per_turn == 6
    assert amended.state().keys() == own.keys()
    assert all(np.array_equal(value, own[name]) for name, value in amended.state().items())


def test_an_amendment_to_the_same_rate_changes_nothing() -> None:
    queues = FairnessQueues(2, 0.15)
    queues.advance([1])
    state = FairnessQueues(2, "3/20").amended_state(queues.state())
    assert state.keys() == queues.state().keys()
    assert "base" not in state
