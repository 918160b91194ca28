"""When the exact test of feasibility is used, and when the sum of all rates."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from fractions import Fraction
from typing import Any

import pytest

from live.fleets import OpenFleet, named, offered, play_round, state_of
from turnout.errors import InfeasiblePromise
from turnout.kernel import feasibility as exact_test
from turnout.live.turns import feasibility
from turnout.live.turns.feasibility import require_feasible, rounded_down


@pytest.mark.parametrize(
    ("clients", "rate", "exact_tests", "refusal"),
    [
        (3, "0.3", 1, nullcontext()),
        (4, "0.3", 0, pytest.raises(InfeasiblePromise)),  # 4 · 0.3 is above 1
        (4, "1/4", 0, nullcontext()),  # exactly as many turns as there are
        (4, "0.2501", 0, pytest.raises(InfeasiblePromise, match=r"at most 0\.25, or a cohort_size of at least 2")),
    ],
)
def test_only_large_fleets_are_judged_by_the_sum_of_their_rates(
    open_fleet: OpenFleet,
    monkeypatch: pytest.MonkeyPatch,
    clients: int,
    rate: str,
    exact_tests: int,
    refusal: AbstractContextManager[object],
) -> None:
    settings = {"cohort_size": 1, "guaranteed_rate": rate, "accrual": "always"}
    scheduler = open_fleet(settings=settings, allow_infeasible=True)
    for _ in range(3):
        play_round(scheduler, offered(*named(clients)))
    exact: list[Any] = []
    monkeypatch.setattr(exact_test, "require_feasible", lambda *given: exact.append(given))
    monkeypatch.setattr(feasibility, "LARGE_FLEET", 3)
    with refusal:
        require_feasible(state_of(scheduler).fleet)
    assert len(exact) == exact_tests


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
