"""When the exact test of feasibility is used, and when the sum of all rates."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from live.fleets import OpenFleet, named, offered, play_round, state_of
from turnout.errors import InfeasiblePromise
from turnout.kernel import feasibility as exact_test
from turnout.live.turns import feasibility
from turnout.live.turns.feasibility import require_feasible, rounded_down

SETTINGS = {"cohort_size": 1, "guaranteed_rate": 0.3, "accrual": "always"}


@pytest.mark.parametrize("clients", [3, 4])
def test_only_large_fleets_are_judged_by_the_sum_of_their_rates(
    open_fleet: OpenFleet, monkeypatch: pytest.MonkeyPatch, clients: int
) -> None:
    scheduler = open_fleet(settings=SETTINGS, allow_infeasible=True)
    for _ in range(3):
        play_round(scheduler, offered(*named(clients)))
    exact: list[Any] = []
    monkeypatch.setattr(exact_test, "require_feasible", lambda *given: exact.append(given))
    monkeypatch.setattr(feasibility, "LARGE_FLEET", 3)
    if clients == 3:
        require_feasible(state_of(scheduler).fleet)
        assert len(exact) == 1
    else:
        with pytest.raises(InfeasiblePromise):  # 4 · 0.3 is above 1
            require_feasible(state_of(scheduler).fleet)
        assert exact == []


@pytest.mark.parametrize(("rate", "feasible"), [("1/4", True), ("0.2501", False)])
def test_a_large_fleet_may_be_promised_exactly_as_many_turns_as_there_are(
    open_fleet: OpenFleet, monkeypatch: pytest.MonkeyPatch, rate: str, feasible: bool
) -> None:
    scheduler = open_fleet(settings={**SETTINGS, "guaranteed_rate": rate}, allow_infeasible=True)
    play_round(scheduler, offered(*named(4)))
    exact: list[Any] = []
    monkeypatch.setattr(exact_test, "require_feasible", lambda *given: exact.append(given))
    monkeypatch.setattr(feasibility, "LARGE_FLEET", 3)
    if feasible:
        require_feasible(state_of(scheduler).fleet)
    else:
        with pytest.raises(
            InfeasiblePromise, match=r"a guaranteed_rate of at most 0\.25, use a cohort_size of at least 2"
        ):
            require_feasible(state_of(scheduler).fleet)
    assert exact == []


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (Fraction(0), "0"),
        (Fraction(-1, 3), "0"),
        (Fraction(2, 3), "0.666"),
        (Fraction(1, 4), "0.25"),
        (Fraction(1), "1"),
    ],
)
def test_rates_are_rounded_down_to_three_digits(rate: Fraction, text: str) -> None:
    assert rounded_down(rate) == text
