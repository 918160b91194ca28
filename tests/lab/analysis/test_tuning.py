from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from turnout import make_policy
from turnout.errors import SettingError
from turnout.lab import PaperWorld, RunPlan, World, play_plan
from turnout.lab.analysis.metrics import summarise
from turnout.lab.analysis.search import ATTEMPTS, Effort, Search
from turnout.lab.analysis.tuning import (
    GUARANTEED_RATE,
    SPEED_WEIGHT,
    TOLERANCE,
    Goal,
    Parameter,
    RunFigures,
    Trial,
    TuningResult,
    find_guaranteed_rate,
    find_knee,
    find_speed_weight,
    find_tolerance,
    measure_run,
    round_to_safe_side,
)
from turnout.policies.base import SelectionPolicy

ROUNDS = 80
PLAN = RunPlan("rbcsf", ROUNDS, settings={"cohort_size": 3}, world_settings={"clients": 12})
GOALS_ON_TIME = [Goal("mean_round", 7.0, ROUNDS), Goal("p95_round", 17.0, ROUNDS)]
EFFORTS: dict[str, dict[str, Any]] = {
    "short": {"points": 4, "coarse": 3, "fine": 5, "fresh": 6},
    "long": {"points": 8, "coarse": 5, "fine": 10, "fresh": 20},
}
SHORT_AND_LONG = ["short", pytest.param("long", marks=pytest.mark.thorough)]
with_efforts = pytest.mark.parametrize("effort", SHORT_AND_LONG)


def with_pace_efforts(short: Goal, long: Goal) -> pytest.MarkDecorator:
    """Parametrises a test of FairPace, which takes longer per round."""
    few, many = {"points": 4, "coarse": 3, "fine": 5, "fresh": 6}, {"points": 6, "coarse": 5, "fine": 10, "fresh": 20}
    return pytest.mark.parametrize(
        ("goal", "effort"),
        [pytest.param(short, few, id="short"), pytest.param(long, many, id="long", marks=pytest.mark.thorough)],
    )


def build(settings: Mapping[str, Any], seed: int) -> tuple[SelectionPolicy, World]:
    return replace(PLAN, settings={**PLAN.settings, **settings}, seed=seed).build()


def fresh_runs_meeting(result: TuningResult, trials: int = 10) -> int:
    """Returns how many runs meet the goal, with seeds that neither the search nor its verification used."""
    assert result.chosen is not None
    figures = [measure_run(*build(result.chosen.settings, 70_000 + seed), ROUNDS) for seed in range(trials)]
    return sum(getattr(trial, result.goal.figure) <= result.goal.most for trial in figures)


def make_trial(weight: float, mean_round: float, shortfall: float) -> Trial:
    row = RunFigures(mean_round, mean_round, 0.1, shortfall, shortfall, shortfall)
    return Trial({"speed_weight": weight}, np.array([row, row]))


@pytest.fixture(scope="module", params=SHORT_AND_LONG)
def fair(request: pytest.FixtureRequest) -> TuningResult:
    return find_speed_weight(Goal.within(2, by=ROUNDS), build, **EFFORTS[request.param])


def test_a_fairness_goal_is_met_in_nine_of_ten_fresh_runs(fair: TuningResult) -> None:
    assert fair.answer is not None
    assert fair.answer.runs_meeting(fair.goal) == len(fair.answer.figures) >= EFFORTS["short"]["fresh"]
    assert fresh_runs_meeting(fair) >= 9


@cache
def weight_for(goal: Goal, effort: str) -> TuningResult:
    return find_speed_weight(goal, build, **EFFORTS[effort], try_horizon=False)


@with_efforts
@pytest.mark.parametrize("goal", [pytest.param(GOALS_ON_TIME[1], marks=pytest.mark.thorough), GOALS_ON_TIME[0]])
def test_a_time_goal_is_met_in_nine_of_ten_fresh_runs(goal: Goal, effort: str) -> None:
    result = weight_for(goal, effort)
    assert result.answer is not None
    assert result.horizon is None
    assert fresh_runs_meeting(result) >= 9


@with_efforts
def test_the_bisection_agrees_with_a_grid(effort: str) -> None:
    """The grid uses the same seeds; the boundary is the weight from which all larger ones meet the goal."""
    result = weight_for(GOALS_ON_TIME[0], effort)
    seeds, grid = EFFORTS[effort]["fine"], np.geomspace(0.05, 20, 12 if effort == "short" else 20)
    runs_meeting = []
    for weight in grid:
        figures = [measure_run(*build({"speed_weight": weight}, seed), ROUNDS) for seed in range(seeds)]
        runs_meeting.append(Trial({"speed_weight": weight}, np.array(figures)).meets(result.goal))
    last_failing = np.flatnonzero(~np.array(runs_meeting))[-1]
    assert result.answer is not None
    assert grid[last_failing] * 0.9 <= result.answer.weight <= grid[last_failing + 1] * 1.3


class Certain(Search):
    """A search without noise, in which shortfall and mean round are functions of the value of the parameter."""

    def __init__(
        self, goal: Goal, parameter: Parameter, shortfall: Callable[[float], float], time: Callable[[float], float]
    ) -> None:
        super().__init__(goal, parameter, build, 0, None)
        self.shortfall, self.time = shortfall, time

    def trial(self, settings: Mapping[str, Any], seeds: int) -> Trial:
        value = self.parameter.value(settings)
        time, shortfall = self.time(value), self.shortfall(value)
        return Trial(settings, np.tile(RunFigures(time, time, 0.1, shortfall, shortfall, shortfall), (seeds, 1)))

    def boundary_on(self, values: Iterable[float]) -> float | None:
        name = self.parameter.name
        settings = self.boundary([self.trial({name: value}, 4) for value in values], Effort(12, 4, 8, 4))
        return None if settings is None else self.parameter.value(settings)


@pytest.mark.parametrize("edge", [0.2, 1.0, 7.3, 40.0])
def test_without_noise_the_bisection_finds_the_boundary(edge: float) -> None:
    def find(goal: Goal, parameter: Parameter, time: Callable[[float], float]) -> float:
        found = Certain(goal, parameter, lambda value: value, time).boundary_on((0.0, *np.geomspace(0.05, 100, 12)))
        assert found is not None
        return found

    for parameter in (SPEED_WEIGHT, TOLERANCE):
        below = find(Goal.within(edge), parameter, lambda value: 100 - value)
        above = find(Goal("mean_round", 100 - edge), parameter, lambda value: 100 - value)
        assert edge / 1.05 <= below <= edge <= above <= edge * 1.05
    # A smaller rate makes rounds shorter, and the shortfall smaller: both goals are met below the edge.
    assert edge / 1.05 <= find(Goal.within(edge), GUARANTEED_RATE, lambda value: value) <= edge
    assert edge / 1.05 <= find(Goal("mean_round", edge), GUARANTEED_RATE, lambda value: value) <= edge


def test_the_first_tolerance_is_found_even_if_larger_ones_are_no_faster() -> None:
    def level(value: float) -> float:
        return max(10 - value, 5.0) + (0.2 if value > 8 else 0.0)  # noise of a flat curve

    values = np.geomspace(0.3, 12, 10)
    found = Certain(Goal("mean_round", 5.1), TOLERANCE, lambda value: value, level).boundary_on(values)
    assert found is not None
    assert 4.9 <= found <= 4.9 * 1.05
    assert Certain(Goal("mean_round", 4.0), TOLERANCE, lambda value: value, level).boundary_on(values) is None
    assert Certain(Goal("mean_round", 11.0), TOLERANCE, lambda value: value, level).boundary_on(values) == values[0]


def test_a_value_is_not_moved_below_the_lowest() -> None:
    search = Certain(Goal.within(1.0), TOLERANCE, lambda _: 2.0, lambda _: 1.0)
    search.lowest = 0.5
    tried: list[float] = []
    simulate = search.trial

    def trial(settings: Mapping[str, Any], seeds: int) -> Trial:
        tried.append(float(settings["tolerance"]))
        return simulate(settings, seeds)

    search.trial = trial  # type: ignore[method-assign]
    assert search.confirm({"tolerance": 0.7}, Effort(3, 2, 2, 2)) is None
    assert tried == [0.7, 0.63, 0.57, 0.51]


def test_a_value_is_moved_to_the_safe_side_only_so_often_and_not_at_all_if_it_is_fixed_or_zero() -> None:
    search = Certain(Goal("mean_round", 1.0), SPEED_WEIGHT, lambda _: 0.0, lambda _: 2.0)
    tried: list[float] = []
    simulate = search.trial

    def trial(settings: Mapping[str, Any], seeds: int) -> Trial:
        tried.append(float(settings["speed_weight"]))
        return simulate(settings, seeds)

    search.trial = trial  # type: ignore[method-assign]
    assert search.confirm({"speed_weight": 1.0}, Effort(3, 2, 2, 2)) is None
    assert len(tried) == ATTEMPTS
    assert tried == sorted(set(tried))  # a larger weight makes rounds shorter
    for weight, is_fixed in ((1.0, True), (0.0, False)):
        tried.clear()
        assert search.confirm({"speed_weight": weight}, Effort(3, 2, 2, 2), fixed=is_fixed) is None
        assert tried == [weight]


@pytest.mark.parametrize("find", [find_speed_weight, find_tolerance, find_guaranteed_rate])
def test_a_policy_that_guarantees_nothing_cannot_be_tuned(find: Any) -> None:
    def build_random(_: Mapping[str, Any], seed: int) -> tuple[SelectionPolicy, World]:
        return make_policy("random", 12, cohort_size=3), PaperWorld(seed, clients=12)

    with pytest.raises(SettingError, match="random guarantees nothing, so there is nothing to tune"):
        find(Goal("mean_round", 1.0, 5), build_random, points=2, coarse=2, fine=2, fresh=2)


PACE = RunPlan("fair-pace", ROUNDS, settings={"cohort_size": 3}, world_settings={"clients": 12})


def build_pace(settings: Mapping[str, Any], seed: int) -> tuple[SelectionPolicy, World]:
    return replace(PACE, settings={**PACE.settings, **settings}, seed=seed).build()


CALM = replace(PACE, world_settings={"clients": 12, "noise": "none"})  # runs differ less, so that few are enough


def build_calm(settings: Mapping[str, Any], seed: int) -> tuple[SelectionPolicy, World]:
    return replace(CALM, settings={**CALM.settings, **settings}, seed=seed).build()


@with_pace_efforts(Goal("mean_round", 7.0, 40), Goal("mean_round", 6.7, 70))
def test_the_smallest_tolerance_for_a_mean_round_is_found_and_holds_in_fresh_runs(
    goal: Goal, effort: dict[str, Any]
) -> None:
    def build_always(settings: Mapping[str, Any], seed: int) -> tuple[SelectionPolicy, World]:
        return build_calm({"guaranteed_rate": 0.2, "accrual": "always", **settings}, seed)

    result = find_tolerance(goal, build_always, **effort)
    assert result.parameter is TOLERANCE
    assert result.answer is not None
    assert list(result.answer.settings) == ["tolerance"]
    assert result.answer.runs_meeting(goal) == effort["fresh"]
    fresh = [
        measure_run(*build_always(result.answer.settings, 70_000 + seed), goal.rounds)
        for seed in range(effort["fresh"])
    ]
    assert sum(figures.mean_round <= goal.most for figures in fresh) >= 0.9 * effort["fresh"]
    tolerances = [result.value(trial) for trial in result.curve]
    assert tolerances == sorted(tolerances)
    smaller = [trial for trial in result.curve if result.value(trial) < result.value(result.answer) / 1.3]
    assert smaller
    assert not any(trial.meets(goal) for trial in smaller)
    # A shorter round costs a larger shortfall at some time.
    assert result.curve[0].mean("largest_shortfall") < result.curve[-1].mean("largest_shortfall")
    assert result.curve[0].mean("mean_round") > result.curve[-1].mean("mean_round")


@with_pace_efforts(Goal("mean_round", 5.6, 50), Goal("mean_round", 5.6, 60))
def test_the_largest_guaranteed_rate_for_a_mean_round_is_found_and_holds_in_fresh_runs(
    goal: Goal, effort: dict[str, Any]
) -> None:
    def runs_meeting(rate: float) -> int:
        built = (build_calm({"guaranteed_rate": rate}, 70_000 + seed) for seed in range(effort["fresh"]))
        figures = [measure_run(*each, goal.rounds) for each in built]
        return sum(run.mean_round <= goal.most for run in figures)

    result = find_guaranteed_rate(goal, build_calm, **effort)
    assert result.parameter is GUARANTEED_RATE
    assert result.answer is not None
    assert result.answer.runs_meeting(goal) == effort["fresh"]
    rate = result.value(result.answer)
    assert runs_meeting(rate) >= 0.9 * effort["fresh"]
    assert runs_meeting(1.4 * rate) <= 0.5 * effort["fresh"]
    assert result.knee is None
    rates = [result.value(trial) for trial in result.curve]
    assert rates == sorted(rates)
    assert 0.25 <= rates[-1] < 0.4  # cohorts of 3 of 12 clients, of which 80 % are available
    shares = [trial.mean("least_share") for trial in result.curve]
    assert shares[0] < shares[-1]


def test_a_fairness_goal_gives_the_largest_tolerance_that_meets_it() -> None:
    goal = Goal.within(1, by=50)
    result = find_tolerance(goal, build_pace, points=4, coarse=3, fine=4, fresh=5)
    assert result.answer is not None
    assert result.answer.mean("shortfall") <= 1
    assert result.value(result.answer) < result.value(result.curve[-1])


@pytest.mark.parametrize(
    ("find", "advice"),
    [(find_tolerance, "lower guaranteed_rate"), (find_guaranteed_rate, "raise tolerance")],
)
def test_an_impossible_goal_for_fair_pace_gives_a_remedy(find: Any, advice: str) -> None:
    result = find(Goal("mean_round", 0.5, 30), build_pace, points=3, coarse=2, fine=2, fresh=2)
    assert result.chosen is None
    assert advice in result.remedy
    assert "cohort_size" in result.remedy


def test_rates_that_cannot_be_kept_are_not_tried() -> None:
    def build_live(settings: Mapping[str, Any], seed: int) -> tuple[SelectionPolicy, World]:
        """Builds a policy that accepts any rate, as live fleets do."""
        every = {"cohort_size": 3, "allow_infeasible": True, "accrual": "always", **settings}
        return make_policy("fair-pace", 12, **every), PaperWorld(seed, clients=12)

    result = find_guaranteed_rate(Goal("mean_round", 1e6, 20), build_live, points=3, coarse=2, fine=2, fresh=2)
    assert 0.2 < result.value(result.curve[-1]) <= 0.25
    assert result.answer is not None
    assert result.value(result.answer) <= 0.25


def test_the_figures_of_a_run_equal_those_of_its_columns() -> None:
    for settings in ({}, {"accrual": "always"}, {"paid": "contributed", "tolerance": 0.5}):
        figures = measure_run(*build_pace(settings, 5), ROUNDS)
        columns = play_plan(replace(PACE, settings={**PACE.settings, **settings}, seed=5))
        terms: Any = {"accrual": settings.get("accrual", "available"), "paid": settings.get("paid", "chosen")}
        summary = summarise(columns, guaranteed_rate=0.15, **terms)
        assert figures.mean_round == pytest.approx(summary.mean_round)
        assert figures.p95_round == pytest.approx(np.percentile(columns.durations, 95))
        assert figures.least_share == summary.least_share
        assert figures.shortfall == summary.shortfall_at_end
        assert figures.largest_shortfall == summary.largest_shortfall
        assert figures.worst_debt == summary.worst_debt


def test_the_curve_is_a_trade_off(fair: TuningResult) -> None:
    weights = [trial.weight for trial in fair.curve]
    time, shortfall = ([trial.mean(name) for trial in fair.curve] for name in ("mean_round", "shortfall"))
    assert weights[0] == 0
    assert weights == sorted(weights)
    assert time[0] > time[len(time) // 2] > time[-1]
    assert shortfall[0] < shortfall[len(shortfall) // 2] < shortfall[-1]
    assert fair.knee is not None
    assert 0 < fair.knee < len(fair.curve) - 1


def test_the_same_seed_gives_the_same_answer() -> None:
    trial, other = (
        find_speed_weight(Goal.within(2, by=20), build, seed=4, points=3, coarse=2, fine=3, fresh=3) for _ in range(2)
    )
    assert trial.answer is not None
    assert other.answer is not None
    assert trial.answer.settings == other.answer.settings
    assert np.array_equal(trial.answer.figures, other.answer.figures)


@pytest.mark.parametrize("figure", ["mean_round", "p95_round"])
def test_an_impossible_time_goal_gives_the_best_weight_and_a_remedy(figure: Any) -> None:
    result = find_speed_weight(Goal(figure, 0.5, 40), build, points=4, coarse=3, fine=3, fresh=4)
    assert result.chosen is None
    assert result.best.weight == result.curve[-1].weight
    assert result.remedy is not None
    assert "cohort_size" in result.remedy
    allowed = float(result.remedy.removeprefix("allow ").split(" s,")[0])
    assert allowed == result.attainable
    assert result.best.bound(Goal(figure, allowed, 40)) <= allowed


def test_an_impossible_fairness_goal_gives_an_achievable_one() -> None:
    def build_rarely_available(settings: Mapping[str, Any], seed: int) -> tuple[SelectionPolicy, World]:
        """Builds a world in which one client is never available but has a guarantee."""
        world = PaperWorld(seed, clients=12, availability=[0.0, *[0.8] * 11])
        return make_policy("rbcsf", 12, cohort_size=3, allow_infeasible=True, **settings), world

    result = find_speed_weight(Goal.within(2, by=40), build_rarely_available, points=4, coarse=3, fine=3, fresh=4)
    assert result.chosen is None
    assert result.remedy is not None
    assert "allow 6 turns" in result.remedy  # 0.15 of 40 rounds
    assert "guaranteed_rate" in result.remedy


def test_if_every_weight_meets_the_goal_the_cheapest_is_returned() -> None:
    easy = find_speed_weight(Goal.within(1000, by=30), build, points=4, coarse=3, fine=3, fresh=4)
    assert easy.answer is not None
    assert easy.answer.weight == round_to_safe_side(easy.curve[-1].weight, down=True)
    slow = find_speed_weight(Goal("mean_round", 1e6, 30), build, points=4, coarse=3, fine=3, fresh=4, try_horizon=False)
    assert slow.answer is not None
    assert slow.answer.weight == 0


def test_the_bound_covers_one_more_run_at_its_confidence() -> None:
    rng = np.random.default_rng(0)
    goal, covered = Goal("mean_round", 1.0), 0
    for _ in range(2000):
        sample = rng.normal(10, 2, 7)
        trial = Trial({"speed_weight": 1.0}, np.column_stack([sample[:6]] * 6))
        covered += sample[6] <= trial.bound(goal)
    assert 0.965 < covered / 2000 < 0.985
    assert Trial({"speed_weight": 1.0}, np.ones((1, 6))).bound(goal) == np.inf  # one run gives no bound


def test_the_knee_is_where_the_curve_bends() -> None:
    convex = [make_trial(0, 10, 0), make_trial(1, 4, 1), make_trial(2, 3, 5), make_trial(3, 2, 10)]
    assert find_knee(convex) == 1
    assert find_knee(convex[:2]) is None
    assert find_knee([make_trial(0, 10, 0), make_trial(1, 9, 5), make_trial(2, 0, 10)]) is None  # concave
    assert find_knee([make_trial(0, 1, 1)] * 4) is None


@pytest.mark.parametrize(
    ("weight", "down", "rounded"), [(0.8449, True, 0.84), (0.8449, False, 0.85), (1234.0, True, 1200.0), (0, True, 0)]
)
def test_weights_are_rounded_to_the_safe_side(weight: float, down: bool, rounded: float) -> None:
    assert round_to_safe_side(weight, down=down) == rounded


def test_the_callback_receives_the_progress() -> None:
    progress: list[tuple[int, int]] = []
    find_speed_weight(
        Goal.within(2, by=20),
        build,
        points=3,
        coarse=2,
        fine=2,
        fresh=2,
        watch=lambda done, total: progress.append((done, total)),
    )
    assert [done for done, _ in progress] == [20 * (index + 1) for index in range(len(progress))]
    assert all(done <= total for done, total in progress)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Goal.within(-1), "within must be at least 0"),
        (lambda: Goal("mean_round", 0), "mean_round must be above 0"),
        (lambda: Goal("p95_round", float("nan")), "p95_round must be finite"),
        (lambda: Goal.within(3, by=1), "by must be at least 2"),
        (lambda: Goal("speed", 3), "shortfall, mean_round or p95_round"),  # type: ignore[arg-type]
        (lambda: find_speed_weight(Goal.within(3), build, points=1), "points must be at least 2"),
        (lambda: find_speed_weight(Goal.within(3), build, coarse=9, fine=3), "fine must be at least coarse"),
        (lambda: measure_run(make_policy("random", 40), PaperWorld(), 2), "random guarantees nothing"),
    ],
)
def test_invalid_goals_and_searches_are_rejected(make: Any, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        make()
