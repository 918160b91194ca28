from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnout.errors import SettingError, StateError
from turnout.kernel.groups import NO_GROUP, GroupQueues

SITES = [("north", "south", None)[row % 3] for row in range(12)]
RATES: dict[str, Any] = {"north": 1.5, "south": "1/3"}


@given(st.lists(st.sets(st.integers(0, 11), max_size=5), max_size=40))
@settings(max_examples=50, deadline=None)
def test_the_debt_of_a_group_is_its_rate_minus_the_turns_of_its_members(cohorts: list[set[int]]) -> None:
    queues = GroupQueues(SITES, RATES)
    owed, turns = {"north": Fraction(0), "south": Fraction(0)}, {"north": 0, "south": 0}
    for cohort in cohorts:
        queues.advance(np.array(sorted(cohort), dtype=np.int64))
        for name, rate in (("north", Fraction(3, 2)), ("south", Fraction(1, 3))):
            count = sum(SITES[row] == name for row in cohort)
            owed[name] = max(owed[name] + rate - count, Fraction(0))
            turns[name] += count
    assert queues.owed.tolist() == [float(owed[name]) for name in queues.names]
    assert queues.of_clients().tolist() == [0.0 if site is None else float(owed[site]) for site in SITES]
    certificate = queues.certificate()
    assert certificate.turns.tolist() == queues.turns.tolist() == [turns[name] for name in queues.names]
    assert certificate.promised.tolist() == pytest.approx([1.5 * len(cohorts), len(cohorts) / 3])
    assert certificate.owed.tolist() == queues.owed.tolist()
    assert certificate.books_balance


def test_groups_may_be_numbers_and_a_group_without_a_rate_is_owed_nothing() -> None:
    queues = GroupQueues([7, 8, None, 7], {"7": "1/2"})
    assert queues.group_of.tolist() == [0, NO_GROUP, NO_GROUP, 0]
    assert queues.rates.tolist() == [0.5]
    queues.advance(np.array([1]))
    assert queues.of_clients().tolist() == [0.5, 0.0, 0.0, 0.5]


def test_a_certificate_does_not_change_with_later_rounds() -> None:
    queues = GroupQueues(SITES, RATES)
    queues.advance(np.array([0]))
    certificate = queues.certificate()
    queues.advance(np.array([0, 1, 3]))
    assert certificate.turns.tolist() == [1, 0]
    assert certificate.owed.tolist() == pytest.approx([0.5, 1 / 3])
    assert certificate.promised.tolist() == pytest.approx([1.5, 1 / 3])


def test_a_restored_state_continues_like_the_original() -> None:
    queues, other = GroupQueues(SITES, RATES), GroupQueues(SITES, RATES)
    for cohort in ([0, 1], [2], [3, 4, 6]):
        queues.advance(np.array(cohort))
    saved = queues.state()
    other.restore(other.checked(saved))
    for each in (queues, other):
        each.advance(np.array([1, 4]))
    assert all(np.array_equal(queues.state()[key], other.state()[key]) for key in saved)
    assert int(saved["rounds"][0]) == 3


@pytest.mark.parametrize("wrong", [{}, {"owed": np.zeros(3), "turns": np.zeros(2), "rounds": np.zeros(1)}])
def test_a_state_that_does_not_fit_is_refused_before_anything_changes(wrong: dict[str, Any]) -> None:
    queues = GroupQueues(SITES, RATES)
    queues.advance(np.array([0]))
    before = queues.state()
    with pytest.raises(StateError):
        queues.checked(wrong)
    assert all(np.array_equal(before[key], queues.state()[key]) for key in before)


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        ({}, "group_rates must map at least one group"),
        ({1: 0.5, "1": 0.5}, "no group twice"),
        ({"west": 1}, "group_rates has the group 'west', but groups assigns no client to it"),
        ({"north": "much"}, "group_rates of 'north' must be a number or a fraction such as '3/2', got 'much'"),
        ({"north": None}, "group_rates of 'north' must be a number or a fraction such as '3/2', got None"),
        ({"north": float("inf")}, "group_rates of 'north' must be a number"),
        ({"north": -1}, "group_rates of 'north' must not be negative, got -1"),
        ({"north": Fraction(1, 99_991), "south": Fraction(1, 99_989)}, "a common denominator of at most 1000000000"),
    ],
)
def test_invalid_rates_are_refused(rates: dict[Any, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        GroupQueues(SITES, rates)


@pytest.mark.parametrize(
    ("rates", "client_rate", "message"),
    [
        ({"north": 4}, 0.0, None),
        ({"north": 4.5}, 0.0, r"'north' is guaranteed 4.5 turns per round, but it can get at most 4: it has 4 clients"),
        ({"north": 2, "south": 2}, 0.0, None),
        ({"north": 3, "south": 2}, 0.0, "together are guaranteed 5 turns per round, but cohort_size is 4"),
        # Four clients of each group and four without: 0.3 each are 1.2 per group, more than the rate of "south".
        ({"north": 2, "south": 1}, 0.3, r"together are guaranteed 4.4 turns per round"),
        ({"north": 1.6, "south": 1}, 0.3, None),
    ],
)
def test_guarantees_that_do_not_fit_into_a_cohort_are_refused(
    rates: dict[str, Any], client_rate: float, message: str | None
) -> None:
    queues, client_rates = GroupQueues(SITES, rates), np.full(12, client_rate)
    if message is None:
        queues.require_feasible(client_rates, 4)
        return
    with pytest.raises(SettingError, match=message):
        queues.require_feasible(client_rates, 4)
