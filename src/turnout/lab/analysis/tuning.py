"""Finds the settings of a policy that meet a goal, by simulation.

- The speed weight of rbcsf: a larger weight makes rounds shorter and lets slow clients wait longer. A goal on fairness
  is met below some weight, and a goal on time above some weight.
- The tolerance of fair-pace: a larger tolerance makes rounds shorter, up to a few turns.
- The guaranteed rate of fair-pace: a smaller rate makes rounds shorter.

Every search uses the same seeds for every value; its result is verified with seeds that the search did not use.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray
from turnout.kernel.feasibility import feasibility
from turnout.lab.analysis.search import Build, Effort, Search, Watch
from turnout.lab.analysis.trials import (
    GUARANTEED_RATE,
    PARAMETERS,
    SPEED_WEIGHT,
    TOLERANCE,
    Goal,
    Parameter,
    RunFigures,
    Trial,
    measure_run,
    round_to_safe_side,
)
from turnout.lab.worlds.base import World
from turnout.policies.base import SelectionPolicy

__all__ = [
    "GUARANTEED_RATE",
    "PARAMETERS",
    "SPEED_WEIGHT",
    "TOLERANCE",
    "Build",
    "Goal",
    "Parameter",
    "RunFigures",
    "Trial",
    "TuningResult",
    "Watch",
    "find_guaranteed_rate",
    "find_knee",
    "find_speed_weight",
    "find_tolerance",
    "measure_run",
    "round_to_safe_side",
]

LOWEST_FACTOR, HIGHEST_FACTOR = 0.5, 4.0  # see _weights
#: The weights of the trials with a horizon, before division by the seconds of a fair round: about 5, 20 and 60 in the
#: paper's world.
HORIZON_WEIGHTS = (80.0, 250.0, 750.0)
#: The tolerances of the curve, in turns: from twice the guaranteed rate, but at least the first number, to the second.
LOWEST_TOLERANCE, HIGHEST_TOLERANCE = 0.3, 12.0
#: The smallest rate of the curve, as a share of the largest rate that can be kept.
LOWEST_RATE_SHARE = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class TuningResult:
    """The result of a search.

    Attributes:
        goal: The goal.
        answer: The settings that meet the goal at the lowest price, on fresh seeds; None if there are none.
        horizon: The same with a horizon (RBCSF), if that meets the goal, too.
        best: The simulated settings with the lowest bound on the goal's figure.
        curve: The trials of all values of the parameter, in ascending order.
        knee: An index into the curve; see `find_knee`.
        parameter: The setting that was tuned.
    """

    goal: Goal
    answer: Trial | None
    horizon: Trial | None
    best: Trial
    curve: tuple[Trial, ...]
    knee: int | None
    parameter: Parameter = SPEED_WEIGHT

    @property
    def chosen(self) -> Trial | None:
        """The recommended settings: those without a horizon if they meet the goal, else the horizon."""
        return self.answer or self.horizon

    @property
    def horizon_is_better(self) -> bool:
        """Whether the horizon meets the goal at a lower price: shorter rounds, or fairer ones for a goal on time."""
        if self.horizon is None or self.answer is None:
            return self.horizon is not None
        price = "mean_round" if self.goal.is_fairness else "shortfall"
        rule, horizon = self.answer.interval(price), self.horizon.interval(price)
        return float(horizon.mean + horizon.half_width) < float(rule.mean - rule.half_width)

    @property
    def attainable(self) -> float:
        """The smallest value of the goal's figure that could be met, in turns or seconds, rounded up."""
        closest = self.best.bound(self.goal)
        return math.ceil(max(closest, 0)) if self.goal.is_fairness else math.ceil(closest * 10) / 10

    @property
    def remedy(self) -> str | None:
        """The change to the goal or the settings that makes a goal attainable, or None if it is met."""
        if self.chosen is not None:
            return None
        if self.goal.is_fairness:
            lower = "" if self.parameter is GUARANTEED_RATE else ", or lower guaranteed_rate"
            return f"allow {self.attainable:g} turns or more rounds, raise cohort_size{lower}"
        other = {TOLERANCE: ", lower guaranteed_rate", GUARANTEED_RATE: ", raise tolerance"}.get(self.parameter, "")
        smaller = "or lower cohort_size: the slowest client of a smaller cohort is faster"
        return f"allow {self.attainable:g} s{other}, {smaller}"

    def value(self, trial: Trial) -> float:
        """Returns the value of the tuned parameter in a trial."""
        return self.parameter.value(trial.settings)


def find_speed_weight(
    goal: Goal,
    build: Build,
    *,
    seed: int = 0,
    points: int = 12,
    coarse: int = 6,
    fine: int = 16,
    fresh: int = 20,
    try_horizon: bool = True,
    watch: Watch | None = None,
) -> TuningResult:
    """Returns the speed weight of rbcsf that meets the goal at the lowest price, and the trade-off around it.

    The search first simulates `points` weights with `coarse` seeds each. It then bisects the logarithm of the weight
    between the last weight that meets the goal and the first that does not, with up to `fine` seeds; a weight meets the
    goal if one more run would meet it with 97.5 % confidence. Finally, the weight is rounded to the safe side and
    simulated with all seeds of the search and with `fresh` other seeds, each of which must meet the goal. If one does
    not, the search moves the weight to the safe side and repeats the verification with new seeds.

    Args:
        goal: The goal to meet.
        build: Builds a policy and a world from settings and a seed.
        seed: The first seed of the search.
        points: The number of weights of the curve, in addition to 0.
        coarse: The number of seeds per weight of the curve.
        fine: The largest number of seeds per weight of the bisection.
        fresh: The number of seeds of the verification.
        try_horizon: Whether to try the horizon of RBCSF, too.
        watch: A progress callback.
    """
    effort = Effort(points, coarse, fine, fresh).checked()
    search = Search(goal, SPEED_WEIGHT, build, seed, watch)
    search.expect_runs(effort.runs + len(HORIZON_WEIGHTS) * coarse)
    fairest = search.trial({"speed_weight": 0.0}, coarse)
    seconds = max(fairest.mean("mean_round"), 1e-9)
    weights = _weights(seconds, _largest_debt(search), points)
    curve = [fairest, *(search.trial({"speed_weight": weight}, coarse) for weight in weights)]
    answer = _result(search, curve, effort)
    horizon = _with_horizon(search, seconds, effort) if try_horizon else None
    return TuningResult(goal, answer, horizon, _best(curve, goal), tuple(curve), find_knee(curve))


#: The former name of find_speed_weight.
tuned = find_speed_weight


def find_tolerance(
    goal: Goal,
    build: Build,
    *,
    seed: int = 0,
    points: int = 10,
    coarse: int = 16,
    fine: int = 16,
    fresh: int = 20,
    watch: Watch | None = None,
) -> TuningResult:
    """Returns the tolerance of fair-pace that meets the goal at the lowest price, and the trade-off around it.

    For a goal on time this is the smallest tolerance that meets it; for a goal on fairness the largest one. The search
    is that of find_speed_weight, over tolerances from twice the guaranteed rate (at least 0.3) to 12 turns. The curve
    is flat, so that it is simulated with as many seeds as the bisection.

    Args:
        goal: The goal to meet.
        build: Builds a policy and a world from settings and a seed.
        seed: The first seed of the search.
        points: The number of tolerances of the curve.
        coarse: The number of seeds per tolerance of the curve.
        fine: The largest number of seeds per tolerance of the bisection.
        fresh: The number of seeds of the verification.
        watch: A progress callback.
    """
    effort = Effort(points, coarse, fine, fresh).checked()
    search = Search(goal, TOLERANCE, build, seed, watch)
    policy, _ = search.example({})
    lowest = max(2 * float(np.max(_rates(policy))), LOWEST_TOLERANCE)
    return _find(search, np.geomspace(lowest, max(HIGHEST_TOLERANCE, 4 * lowest), points), effort)


def find_guaranteed_rate(
    goal: Goal,
    build: Build,
    *,
    seed: int = 0,
    points: int = 10,
    coarse: int = 6,
    fine: int = 16,
    fresh: int = 20,
    watch: Watch | None = None,
) -> TuningResult:
    """Returns the largest guaranteed rate of fair-pace that meets the goal, and the trade-off around it.

    The search is that of find_speed_weight, up to the largest rate that the clients of the world can be promised.

    Args:
        goal: The goal to meet.
        build: Builds a policy and a world from settings and a seed.
        seed: The first seed of the search.
        points: The number of rates of the curve.
        coarse: The number of seeds per rate of the curve.
        fine: The largest number of seeds per rate of the bisection.
        fresh: The number of seeds of the verification.
        watch: A progress callback.
    """
    effort = Effort(points, coarse, fine, fresh).checked()
    search = Search(goal, GUARANTEED_RATE, build, seed, watch)
    # Any policy can be built with a very small rate; its other settings determine which rates are possible.
    highest = _largest_rate(*search.example({"guaranteed_rate": 1e-6}))
    return _find(search, np.geomspace(LOWEST_RATE_SHARE * highest, highest, points), effort)


def find_knee(curve: Sequence[Trial], fairness: str = "shortfall") -> int | None:
    """Returns the index of the trial furthest below the line between the first and the last trial.

    The figure `fairness` and the mean round are scaled to 0…1 over the curve first. Returns None if no trial is below
    that line.
    """
    shortfalls = np.array([trial.mean(fairness) for trial in curve])
    time = np.array([trial.mean("mean_round") for trial in curve])
    if len(curve) < 3 or np.ptp(shortfalls) == 0 or np.ptp(time) == 0:
        return None
    x, y = (shortfalls - shortfalls.min()) / np.ptp(shortfalls), (time - time.min()) / np.ptp(time)
    across, down = x[-1] - x[0], y[-1] - y[0]
    distance = (across * (y[0] - y) - (x[0] - x) * down) / math.hypot(across, down)
    index = int(distance.argmax())
    return index if distance[index] > 1e-9 else None


def _find(search: Search, values: FloatArray, effort: Effort) -> TuningResult:
    """Simulates the curve of these values and returns the result of the search."""
    search.expect_runs(effort.runs)
    parameter, goal = search.parameter, search.goal
    if parameter is TOLERANCE:
        search.lowest = float(values[0])
    curve = [search.trial({parameter.name: float(value)}, effort.coarse) for value in values]
    knee = find_knee(curve, parameter.fairness) if parameter is TOLERANCE else None
    return TuningResult(goal, _result(search, curve, effort), None, _best(curve, goal), tuple(curve), knee, parameter)


def _result(search: Search, curve: Sequence[Trial], effort: Effort) -> Trial | None:
    settings = search.boundary(curve, effort)
    return None if settings is None else search.confirm(settings, effort)


def _best(curve: Sequence[Trial], goal: Goal) -> Trial:
    return min(curve, key=lambda trial: trial.bound(goal))


def _rates(policy: SelectionPolicy) -> FloatArray:
    """Returns the guaranteed rate of each client."""
    if policy.debts is None:
        raise SettingError(f"{policy.name} guarantees nothing, so there is nothing to tune: use fair-pace or rbcsf")
    return np.asarray(policy.debts.guaranteed_rates)


def _largest_debt(search: Search) -> float:
    """Returns the turns owed to a whole cohort at the end if none of its clients ever had a turn."""
    policy, _ = search.example({"speed_weight": 0.0})
    return float((policy.cohort_size or policy.clients) * _rates(policy).max() * search.goal.rounds)


def _largest_rate(policy: SelectionPolicy, world: World) -> float:
    """Returns the largest rate that can be promised to every client of the world, within the tolerance."""
    guarantee = policy.guarantee
    if guarantee is None:
        raise SettingError(f"{policy.name} guarantees nothing, so there is nothing to tune: use fair-pace or rbcsf")
    availability = np.asarray(world.availability, dtype=np.float64)
    # With accrual="available" a rate is a share of the rounds for which a client is available.
    rates = availability if guarantee.accrual == "available" else np.ones(len(availability))
    scale = feasibility(rates, availability, policy.cohort_size or policy.clients).scale
    # Rounded down, because the policy must accept the rate.
    return math.floor(min(scale, 1.0, 0.9 * float(guarantee.tolerance)) * 1000) / 1000


def _weights(seconds: float, largest_debt: float, points: int) -> FloatArray:
    """Returns the weights to simulate, evenly spaced on a logarithmic scale.

    The lowest makes the seconds of a fair round worth half a turn; with the highest, a quarter of them outweighs every
    debt.
    """
    highest = max(HIGHEST_FACTOR * largest_debt, 100 * LOWEST_FACTOR) / seconds
    return np.geomspace(LOWEST_FACTOR / seconds, highest, points)


def _with_horizon(search: Search, seconds: float, effort: Effort) -> Trial | None:
    """Returns the trial with a horizon at the last round that meets the goal at the lowest price, or None.

    Args:
        search: The search that simulates and verifies the settings.
        seconds: The mean duration of a fair round.
        effort: The numbers of seeds.
    """
    goal = search.goal
    candidates: list[dict[str, Any]] = [
        {"speed_weight": round_to_safe_side(weight / seconds, down=True), "horizon": goal.rounds, "prior": "fleet"}
        for weight in HORIZON_WEIGHTS
    ]
    price = "mean_round" if goal.is_fairness else "shortfall"
    trials = [search.trial(settings, effort.coarse) for settings in candidates]
    for trial in sorted((trial for trial in trials if trial.meets(goal)), key=lambda trial: trial.mean(price)):
        confirmed = search.confirm(trial.settings, effort, fixed=True)
        if confirmed is not None:
            return confirmed
    return None
