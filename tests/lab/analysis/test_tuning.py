from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from turnout import make_policy
from turnout.errors import SettingError
from turnout.kernel.feasibility import feasibility
from turnout.lab import PaperWorld, RunPlan, World, play_plan
from turnout.lab.analysis import tuning
from turnout.lab.analysis.metrics import RunSummary, summarise
from turnout.lab.analysis.tuning import Build, GoalFigure, Trial, TuningResult, find_setting
from turnout.policies.base import SelectionPolicy


def build_for(**settings: Any) -> Build:
    plan = RunPlan("fair-pace", 40, settings={"cohort_size": 3, **settings}, world_settings={"clients": 12})

    def build(tuned: Mapping[str, Any], seed: int) -> tuple[SelectionPolicy, World]:
        return replace(plan, settings={**plan.settings, **tuned}, seed=seed).build()

    return build


Runs = tuple[float, list[RunSummary]]


def runs_of(value: float, *, mean_round: float = 1.0, shortfall: float = 0.0, noise: float = 0.0) -> Runs:
    return value, [
        RunSummary(
            rounds=10,
            mean_round=mean_round + sign * noise,
            p95_round=mean_round,
            total_time=10.0,
            mean_cohort=3.0,
            least_share=0.1,
            jain=1.0,
            spread_of_turns=0.0,
            worst_debt=0.0,
            mean_debt=0.0,
            largest_shortfall=shortfall,
            shortfall_at_end=shortfall,
            share_of="of all rounds",
        )
        for sign in (-1, 0, 1)
    ]


def chosen(setting: str, figure: GoalFigure, most: float, *simulated: Runs) -> float | None:
    trials = tuple(Trial.of(value, runs, figure, most) for value, runs in simulated)
    cheapest = TuningResult(setting, figure, most, trials).choose()
    return None if cheapest is None else cheapest.value


def test_the_cheapest_value_that_meets_the_goal_is_chosen() -> None:
    """A larger value makes rounds shorter, and lets clients wait longer."""
    trials = [runs_of(value, mean_round=10 - value, shortfall=value) for value in (1.0, 2.0, 3.0, 4.0)]
    assert chosen("tolerance", "mean_round", 7.5, *trials) == 3.0
    assert chosen("tolerance", "mean_round", 20.0, *trials) == 1.0
    assert chosen("tolerance", "mean_round", 5.5, *trials) is None
    assert chosen("tolerance", "shortfall_at_end", 2.5, *trials) == 2.0
    assert chosen("tolerance", "shortfall_at_end", 0.5, *trials) is None


def test_the_largest_rate_that_surely_meets_the_goal_is_chosen() -> None:
    trials = [runs_of(value, mean_round=10 * value, shortfall=value) for value in (0.1, 0.2, 0.3)]
    assert chosen("guaranteed_rate", "mean_round", 2.5, *trials) == 0.2
    assert chosen("guaranteed_rate", "shortfall_at_end", 0.25, *trials) == 0.2
    assert chosen("tolerance", "mean_round", 5.0, runs_of(1.0, mean_round=4.9)) == 1.0
    assert chosen("tolerance", "mean_round", 5.0, runs_of(1.0, mean_round=4.9, noise=0.1)) is None
    trials = [runs_of(1.0, shortfall=1), runs_of(2.0, shortfall=3), runs_of(3.0, shortfall=1)]
    assert chosen("tolerance", "shortfall_at_end", 2.0, *trials) == 1.0


def test_the_bound_holds_for_39_of_40_further_runs() -> None:
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(2000):
        *few, another = rng.normal(5.0, 1.0, 7)
        runs = [replace(runs_of(1.0)[1][0], mean_round=float(value)) for value in few]
        covered += another <= Trial.of(1.0, runs, "mean_round", 0.0).bound
    assert covered / 2000 == pytest.approx(0.975, abs=0.01)


@pytest.mark.parametrize(
    ("setting", "figure", "most"),
    [("tolerance", "mean_round", 12.0), ("guaranteed_rate", "p95_round", 40.0), ("tolerance", "shortfall_at_end", 2)],
)
def test_a_setting_is_found_and_confirmed_with_other_seeds(
    setting: str, figure: GoalFigure, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "TOLERANCES", (0.1, 1.0, 3.0))
    monkeypatch.setattr(tuning, "RATES", 3)
    progress: list[tuple[int, int]] = []
    build, seeds = build_for(), set[int]()

    def counting(settings: Mapping[str, Any], seed: int) -> tuple[SelectionPolicy, World]:
        if setting in settings:
            seeds.add(seed)
        return build(settings, seed)

    result = find_setting(
        setting, counting, figure=figure, most=most, rounds=30, seeds=3, seed=7, watch=lambda *now: progress.append(now)
    )
    assert [one.value for one in result.trials] == sorted(one.value for one in result.trials)
    assert result.answer is not None
    assert result.answer.value == (result.choose() or result.answer).value
    assert seeds == set(range(7, 30))
    assert len(result.answer.runs) == 20
    assert result.runs_meeting >= 18
    assert progress[-1] == (len(result.trials) * 3 + 20,) * 2


@pytest.mark.thorough
def test_the_figures_are_those_of_the_run() -> None:
    result = find_setting("tolerance", build_for(), figure="mean_round", most=1e9, values=[2.0], rounds=40)
    plan = RunPlan("fair-pace", 40, 3, {"cohort_size": 3, "tolerance": 2.0}, world_settings={"clients": 12})
    own = summarise(play_plan(plan), guaranteed_rate=0.15, accrual="available", counts="completed")
    assert result.trials[0].runs[3] == own


@pytest.mark.parametrize("accrual", ["available", "always"])
def test_the_rates_end_with_the_largest_that_can_be_promised(accrual: str) -> None:
    build = build_for(accrual=accrual)
    result = find_setting("guaranteed_rate", build, figure="mean_round", most=0.01, rounds=2, seeds=2)
    largest, (_, world) = result.trials[-1].value, build({"guaranteed_rate": 0.01}, 0)
    rates = world.availability if accrual == "available" else np.ones(12)
    assert largest == pytest.approx(feasibility(rates, world.availability, 3).scale, abs=1e-3)
    with pytest.raises(SettingError):
        build({"guaranteed_rate": largest * 1.01}, 0)
    assert (result.answer, result.runs_meeting) == (None, 0)
    assert result.closest.bound == min(one.bound for one in result.trials)


def build_random(_: Mapping[str, Any], seed: int) -> tuple[SelectionPolicy, World]:
    return make_policy("random", 12), PaperWorld(clients=12, seed=seed)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (("tolerence", "mean_round", 1, {}), "did you mean 'tolerance'"),
        (("tolerance", "shortfall_at_end", -1, {}), "within must be"),
        (("tolerance", "mean_round", 0, {}), "mean_round must be above 0"),
        (("tolerance", "p95_round", 1, {"rounds": 1}), "rounds must be at"),
        (("tolerance", "p95_round", 1, {"seeds": 1}), "seeds must be at"),
        (
            ("tolerance", "mean_round", 1, {"rounds": 2, "values": [1.0]}),
            "random guarantees nothing, so there is nothing to tune",
        ),
    ],
)
def test_impossible_requests_are_rejected(request_: Any, message: str) -> None:
    setting, figure, most, options = request_
    with pytest.raises(SettingError, match=message):
        find_setting(setting, build_random, figure=figure, most=most, **options)
