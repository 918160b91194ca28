from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from turnout import make_policy
from turnout.analysis.tuning import Goal, Played, Trial, Tuned, _boundary, knee_of, played, safe_side, tuned
from turnout.errors import SettingError
from turnout.policies.base import SelectionPolicy
from turnout.simulator import PaperWorld, RunPlan, World

ROUNDS = 80
PLAN = RunPlan("rbcsf", ROUNDS, settings={"cohort_size": 3}, world_settings={"clients": 12})
GOALS_ON_TIME = [Goal("mean_round", 7.0, ROUNDS), Goal("p95_round", 17.0, ROUNDS)]
QUICK: dict[str, Any] = {"points": 8, "coarse": 5, "fine": 10, "fresh": 20}


def build(settings: Mapping[str, Any], seed: int) -> tuple[SelectionPolicy, World]:
    return replace(PLAN, settings={**PLAN.settings, **settings}, seed=seed).build()


def met_in_fresh_trials(found: Tuned, trials: int = 10) -> int:
    """With seeds that neither the search nor its judges have seen."""
    assert found.chosen is not None
    figures = [played(*build(found.chosen.settings, 70_000 + seed), ROUNDS) for seed in range(trials)]
    return sum(getattr(one, found.goal.figure) <= found.goal.most for one in figures)


def trial_of(weight: float, mean_round: float, shortfall: float) -> Trial:
    row = Played(mean_round, mean_round, 0.1, shortfall, shortfall)
    return Trial({"speed_weight": weight}, np.array([row, row]))


@pytest.fixture(scope="module")
def fair() -> Tuned:
    return tuned(Goal.within(2, by=ROUNDS), build, **QUICK)


def test_a_promise_is_kept_in_nine_of_ten_fresh_trials(fair: Tuned) -> None:
    assert fair.answer is not None
    assert fair.answer.met(fair.goal) == 20
    assert met_in_fresh_trials(fair) >= 9


@pytest.mark.parametrize("goal", GOALS_ON_TIME)
def test_a_goal_on_time_is_met_in_nine_of_ten_fresh_trials(goal: Goal) -> None:
    found = tuned(goal, build, **QUICK, try_horizon=False)
    assert found.answer is not None
    assert found.horizon is None
    assert met_in_fresh_trials(found) >= 9


def test_the_bisection_agrees_with_a_grid() -> None:
    """With the same seeds, from the weight on from which all of the grid meet the goal."""
    found, grid = tuned(GOALS_ON_TIME[0], build, **QUICK, try_horizon=False), np.geomspace(0.05, 20, 20)
    met = []
    for weight in grid:
        figures = [played(*build({"speed_weight": weight}, seed), ROUNDS) for seed in range(QUICK["fine"])]
        met.append(Trial({"speed_weight": weight}, np.array(figures)).meets(found.goal))
    last_failing = np.flatnonzero(~np.array(met))[-1]
    assert found.answer is not None
    assert grid[last_failing] * 0.9 <= found.answer.weight <= grid[last_failing + 1] * 1.3


@pytest.mark.parametrize("edge", [0.2, 1.0, 7.3, 40.0])
def test_without_chance_the_bisection_finds_the_edge(edge: float) -> None:
    class Certain:
        """A world in which the shortfall is the weight, and the mean round 100 less than that."""

        def __init__(self, goal: Goal) -> None:
            self.goal = goal

        def trial(self, settings: Mapping[str, Any], seeds: int) -> Trial:
            weight = float(settings["speed_weight"])
            return Trial(settings, np.tile(Played(100 - weight, 100 - weight, 0.1, weight, weight), (seeds, 1)))

    fair, fast = Certain(Goal.within(edge)), Certain(Goal("mean_round", 100 - edge))
    curve = [fair.trial({"speed_weight": weight}, 4) for weight in (0.0, *np.geomspace(0.05, 100, 12))]
    below, above = _boundary(fair, curve, 4, 8), _boundary(fast, curve, 4, 8)  # type: ignore[arg-type]
    assert below is not None
    assert above is not None
    assert edge / 1.05 <= below["speed_weight"] <= edge <= above["speed_weight"] <= edge * 1.05


def test_the_curve_is_a_trade_off(fair: Tuned) -> None:
    weights = [one.weight for one in fair.curve]
    time, short = ([one.mean(name) for one in fair.curve] for name in ("mean_round", "shortfall"))
    assert weights[0] == 0
    assert weights == sorted(weights)
    assert time[0] > time[len(time) // 2] > time[-1]
    assert short[0] < short[len(short) // 2] < short[-1]
    assert fair.knee is not None
    assert 0 < fair.knee < len(fair.curve) - 1


def test_the_same_seed_gives_the_same_answer() -> None:
    one, other = (tuned(Goal.within(2, by=30), build, seed=4, points=3, coarse=3, fine=3, fresh=3) for _ in range(2))
    assert one.answer is not None
    assert other.answer is not None
    assert one.answer.settings == other.answer.settings
    assert np.array_equal(one.answer.figures, other.answer.figures)


def test_an_impossible_time_names_the_best_possible_and_a_remedy() -> None:
    found = tuned(Goal("mean_round", 0.5, ROUNDS), build, points=4, coarse=3, fine=3, fresh=4)
    assert found.chosen is None
    assert found.best.weight == found.curve[-1].weight
    assert found.remedy is not None
    assert "cohort_size" in found.remedy
    named = float(found.remedy.removeprefix("allow ").split(" s,")[0])
    assert named == found.attainable
    assert found.best.bound(Goal("mean_round", named, ROUNDS)) <= named


def test_an_impossible_promise_names_what_could_be_promised() -> None:
    def seldom(settings: Mapping[str, Any], seed: int) -> tuple[SelectionPolicy, World]:
        """One client is never there, and is promised its share all the same."""
        world = PaperWorld(seed, clients=12, availability=[0.0, *[0.8] * 11])
        return make_policy("rbcsf", 12, cohort_size=3, allow_infeasible=True, **settings), world

    found = tuned(Goal.within(2, by=40), seldom, points=4, coarse=3, fine=3, fresh=4)
    assert found.chosen is None
    assert found.remedy is not None
    assert "allow 6 turns" in found.remedy  # 0.15 of 40 rounds
    assert "guaranteed_rate" in found.remedy


def test_where_every_weight_meets_the_goal_the_cheapest_is_taken() -> None:
    easy = tuned(Goal.within(1000, by=30), build, points=4, coarse=3, fine=3, fresh=4)
    assert easy.answer is not None
    assert easy.answer.weight == safe_side(easy.curve[-1].weight, down=True)
    slow = tuned(Goal("mean_round", 1e6, 30), build, points=4, coarse=3, fine=3, fresh=4, try_horizon=False)
    assert slow.answer is not None
    assert slow.answer.weight == 0


def test_the_bound_covers_one_more_run() -> None:
    rng = np.random.default_rng(0)
    goal, covered = Goal("mean_round", 1.0), 0
    for _ in range(2000):
        sample = rng.normal(10, 2, 7)
        trial = Trial({"speed_weight": 1.0}, np.column_stack([sample[:6]] * 5))
        covered += sample[6] <= trial.bound(goal)
    assert 0.965 < covered / 2000 < 0.985
    assert Trial({"speed_weight": 1.0}, np.ones((1, 5))).bound(goal) == np.inf  # of one run nothing follows


def test_the_knee_is_where_the_curve_bends() -> None:
    bent = [trial_of(0, 10, 0), trial_of(1, 4, 1), trial_of(2, 3, 5), trial_of(3, 2, 10)]
    assert knee_of(bent) == 1
    assert knee_of(bent[:2]) is None
    assert knee_of([trial_of(0, 10, 0), trial_of(1, 9, 5), trial_of(2, 0, 10)]) is None  # bent the other way
    assert knee_of([trial_of(0, 1, 1)] * 4) is None


@pytest.mark.parametrize(
    ("weight", "down", "rounded"), [(0.8449, True, 0.84), (0.8449, False, 0.85), (1234.0, True, 1200.0), (0, True, 0)]
)
def test_weights_are_rounded_to_the_safe_side(weight: float, down: bool, rounded: float) -> None:
    assert safe_side(weight, down=down) == rounded


def test_who_watches_is_told_how_far_it_is() -> None:
    told: list[tuple[int, int]] = []
    tuned(
        Goal.within(2, by=20),
        build,
        points=3,
        coarse=2,
        fine=2,
        fresh=2,
        watch=lambda done, of: told.append((done, of)),
    )
    assert [done for done, _ in told] == [20 * (place + 1) for place in range(len(told))]
    assert all(done <= of for done, of in told)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Goal.within(-1), "within must be at least 0"),
        (lambda: Goal("mean_round", 0), "mean-round must be above 0"),
        (lambda: Goal("p95_round", float("nan")), "p95-round must be finite"),
        (lambda: Goal.within(3, by=1), "by must be at least 2"),
        (lambda: Goal("speed", 3), "shortfall, mean_round or p95_round"),  # type: ignore[arg-type]
        (lambda: tuned(Goal.within(3), build, points=1), "points must be at least 2"),
        (lambda: tuned(Goal.within(3), build, coarse=9, fine=3), "fine must be at least coarse"),
        (lambda: played(make_policy("random", 40), PaperWorld(), 2), "random guarantees nothing"),
    ],
)
def test_what_cannot_be_tuned_is_refused(make: Any, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        make()
