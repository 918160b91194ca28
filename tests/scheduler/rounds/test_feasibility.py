"""When the exact test of feasibility is used, and when the sum of all rates."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.fleets import OpenFleet, named, offered, play_round
from turnout.errors import InfeasiblePromise
from turnout.scheduler.rounds import feasibility
from turnout.scheduler.rounds.feasibility import require_feasible_fleet

SETTINGS = {"cohort_size": 1, "guaranteed_rate": 0.3, "accrual": "always"}


@pytest.mark.parametrize("clients", [3, 4])
def test_only_large_fleets_are_judged_by_the_sum_of_their_rates(
    open_fleet: OpenFleet, monkeypatch: pytest.MonkeyPatch, clients: int
) -> None:
    scheduler = open_fleet(settings=SETTINGS, allow_infeasible=True)
    for _ in range(3):
        play_round(scheduler, offered(*named(clients)))
    exact: list[Any] = []
    monkeypatch.setattr(feasibility, "require_feasible", lambda *given: exact.append(given))
    monkeypatch.setattr(feasibility, "LARGE_FLEET", 3)
    if clients == 3:
        require_feasible_fleet(scheduler._fleet)
        assert len(exact) == 1
    else:
        with pytest.raises(InfeasiblePromise):  # 4 · 0.3 is above 1
            require_feasible_fleet(scheduler._fleet)
        assert exact == []
