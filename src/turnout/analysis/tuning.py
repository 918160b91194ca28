"""Finds the speed weight that meets a goal, by simulation.

A larger speed weight makes rounds shorter and lets slow clients wait longer. A goal on fairness is therefore met below
some weight, and a goal on time above some weight. The search uses the same seeds for every weight; its result is
verified with seeds that the search did not use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from turnout.analysis.statistics import ConfidenceInterval, mean_confidence_interval, student_t
from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray, as_count, as_number, read_only
from turnout.policies.base import SelectionPolicy
from turnout.simulator.play import play
from turnout.simulator.world import World

#: Builds a new policy and a new world from settings of the policy and a seed.
Build = Callable[[Mapping[str, Any], int], tuple[SelectionPolicy, World]]
#: A progress callback; receives the rounds played so far and the estimated total.
Watch = Callable[[int, int], None]

CONFIDENCE = 0.975  # of the prediction that one more run meets the goal
FRESH_SEED_OFFSET = 1_000_000  # the distance of the verification seeds from those of the search
SAFETY_FACTOR = 1.1  # moves a weight to the safe side if fresh seeds did not confirm it
ATTEMPTS = 12
LOWEST_FACTOR, HIGHEST_FACTOR = 0.5, 4.0  # see _weights
#: The weights of the trials with a horizon, before division by the seconds of a fair round: about 5, 20 and 60 in the
#: paper's world.
HORIZON_WEIGHTS = (80.0, 250.0, 750.0)


class RunFigures(NamedTuple):
    """Five figures of one run; `shortfall` is how many turns the worst-served client is behind its guaranteed turns."""

    mean_round: float
    p95_round: float
    least_share: float
    shortfall: float
    worst_debt: float


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on one figure of a run after a number of rounds.

    After `rounds` rounds the figure must be at most `most`: turns for the shortfall, seconds for the other figures.

    >>> Goal.within(3, by=500).description
    'every client within 3 turns of its guarantee by round 500'
    """

    figure: Literal["shortfall", "mean_round", "p95_round"]
    most: float
    rounds: int = 500

    def __post_init__(self) -> None:
        name = {"shortfall": "within", "mean_round": "mean_round", "p95_round": "p95_round"}.get(self.figure)
        if name is None:
            raise SettingError(f"figure must be shortfall, mean_round or p95_round, not {self.figure!r}")
        if self.figure == "shortfall":
            as_number(name, self.most, SettingError, least=0)
        else:
            as_number(name, self.most, SettingError, above=0)
        as_count("by", self.rounds, SettingError, least=2)

    @classmethod
    def within(cls, turns: float, *, by: int = 500) -> Goal:
        """Returns the goal that after round `by` every client is at most `turns` turns behind its guaranteed turns."""
        return cls("shortfall", turns, by)

    @property
    def description(self) -> str:
        """The goal as a phrase for reports."""
        if self.figure == "shortfall":
            unit = "turn" if self.most == 1 else "turns"
            return f"every client within {self.most:g} {unit} of its guarantee by round {self.rounds}"
        which = "a mean round" if self.figure == "mean_round" else "95 % of the rounds"
        return f"{which} of at most {self.most:g} s over {self.rounds} rounds"

    @property
    def is_fairness(self) -> bool:
        """Whether small weights meet the goal; a goal on time is met by large weights."""
        return self.figure == "shortfall"


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """Settings that were simulated, and the resulting figures: one row per seed, one column per field of RunFigures."""

    settings: Mapping[str, Any]
    figures: FloatArray

    @property
    def weight(self) -> float:
        """The speed weight of the trial."""
        return float(self.settings["speed_weight"])

    def values(self, figure: str) -> FloatArray:
        """Returns one number per seed."""
        return self.figures[:, RunFigures._fields.index(figure)]

    def mean(self, figure: str) -> float:
        """Returns the mean over the seeds."""
        return float(self.values(figure).mean())

    def interval(self, figure: str) -> ConfidenceInterval:
        """Returns the mean over the seeds with its confidence interval."""
        return mean_confidence_interval(self.values(figure))

    def bound(self, goal: Goal) -> float:
        """Returns the upper prediction bound of the figure in one more run, with 97.5 % confidence.

        The bound is mean + t · standard deviation · sqrt(1 + 1/n).
        """
        values = self.values(goal.figure)
        if len(values) < 2:
            return math.inf
        quantile = student_t(2 * CONFIDENCE - 1, len(values) - 1) * math.sqrt(1 + 1 / len(values))
        return float(values.mean() + quantile * values.std(ddof=1))

    def meets(self, goal: Goal) -> bool:
        """Returns whether one more run would meet the goal, with 97.5 % confidence."""
        return self.bound(goal) <= goal.most

    def runs_meeting(self, goal: Goal) -> int:
        """Returns how many of the runs met the goal."""
        return int((self.values(goal.figure) <= goal.most).sum())


@dataclass(frozen=True, slots=True, eq=False)
class TuningResult:
    """The result of a search.

    `answer`: the paper's rule with the weight that meets the goal at the lowest price, on fresh seeds; None if no
    weight does. `horizon`: the same with a horizon (RBCSF), if that meets the goal, too. `best`: the simulated weight
    with the lowest bound on the goal's figure. `curve`: the trials of all weights; `knee`: an index into it.
    """

    goal: Goal
    answer: Trial | None
    horizon: Trial | None
    best: Trial
    curve: tuple[Trial, ...]
    knee: int | None

    @property
    def chosen(self) -> Trial | None:
        """The recommended settings: the paper's rule if it meets the goal, else the horizon."""
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
            return f"allow {self.attainable:g} turns or more rounds, raise cohort_size, or lower guaranteed_rate"
        return f"allow {self.attainable:g} s, or lower cohort_size: the slowest client of a smaller cohort is faster"


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
    """Returns the speed weight that meets the goal at the lowest price, and the trade-off around it.

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
    for name, count in (("points", points), ("coarse", coarse), ("fine", fine), ("fresh", fresh)):
        as_count(name, count, SettingError, least=2)
    if fine < coarse:
        raise SettingError(f"fine must be at least coarse, {coarse}, not {fine}: precision only grows")
    search = _Search(goal, build, as_count("seed", seed, SettingError, least=0), watch)
    search.expect_runs((points + 1) * coarse + fine * _steps(points) + 2 * fresh + len(HORIZON_WEIGHTS) * coarse)
    fairest = search.trial({"speed_weight": 0.0}, coarse)
    seconds = max(fairest.mean("mean_round"), 1e-9)
    weights = _weights(seconds, search.largest_debt({"speed_weight": 0.0}), points)
    curve = [fairest, *(search.trial({"speed_weight": weight}, coarse) for weight in weights)]
    best = min(curve, key=lambda trial: trial.bound(goal))
    settings = _boundary(search, curve, coarse, fine)
    answer = None if settings is None else search.confirm(settings, fine, fresh)
    horizon = _with_horizon(search, seconds, coarse, fine, fresh) if try_horizon else None
    return TuningResult(goal, answer, horizon, best, tuple(curve), find_knee(curve))


#: The former name of find_speed_weight.
tuned = find_speed_weight


def find_knee(curve: Sequence[Trial]) -> int | None:
    """Returns the index of the trial furthest below the line between the first and the last trial.

    Shortfall and mean round are scaled to 0…1 over the curve first. Returns None if no trial is below that line.
    """
    shortfalls = np.array([trial.mean("shortfall") for trial in curve])
    time = np.array([trial.mean("mean_round") for trial in curve])
    if len(curve) < 3 or np.ptp(shortfalls) == 0 or np.ptp(time) == 0:
        return None
    x, y = (shortfalls - shortfalls.min()) / np.ptp(shortfalls), (time - time.min()) / np.ptp(time)
    across, down = x[-1] - x[0], y[-1] - y[0]
    distance = (across * (y[0] - y) - (x[0] - x) * down) / math.hypot(across, down)
    index = int(distance.argmax())
    return index if distance[index] > 1e-9 else None


def round_to_safe_side(weight: float, *, down: bool) -> float:
    """Rounds a weight to two digits, downwards or upwards.

    >>> round_to_safe_side(1.2345, down=True), round_to_safe_side(123.45, down=False)
    (1.2, 130.0)
    """
    if weight <= 0:
        return 0.0
    digit = 10.0 ** (math.floor(math.log10(weight)) - 1)
    count = weight / digit
    whole = math.floor(count + 1e-9) if down else math.ceil(count - 1e-9)
    return float(f"{whole * digit:.2g}")


class _Search:
    """Simulates settings with seeds, each combination once, and verifies results with fresh seeds."""

    def __init__(self, goal: Goal, build: Build, seed: int, watch: Watch | None) -> None:
        self.goal, self._build, self._seed, self._watch = goal, build, seed, watch
        self._results: dict[tuple[tuple[tuple[str, Any], ...], int], RunFigures] = {}
        self._next_fresh_seed = seed + FRESH_SEED_OFFSET
        self._done, self._expected = 0, 0

    def expect_runs(self, runs: int) -> None:
        """Sets the estimated number of runs for the progress callback."""
        self._expected = runs * self.goal.rounds

    def largest_debt(self, settings: Mapping[str, Any]) -> float:
        """Returns the turns owed to a whole cohort at the end if none of its clients ever had a turn."""
        policy, _ = self._build(settings, self._seed)
        assert policy.debts is not None  # _run refuses policies without a guarantee
        rates = np.asarray(policy.debts.guaranteed_rates)
        return float((policy.cohort_size or policy.clients) * rates.max() * self.goal.rounds)

    def trial(self, settings: Mapping[str, Any], seeds: int) -> Trial:
        """Simulates the settings with the first `seeds` seeds of the search."""
        return self._trial_with(settings, range(self._seed, self._seed + seeds))

    def confirm(self, settings: Mapping[str, Any], fine: int, fresh: int) -> Trial | None:
        """Returns the trial of the settings on fresh seeds, or None if they do not meet the goal.

        If necessary, the weight is moved to the safe side. Only settings that meet the goal with every seed of the
        search are verified.
        """
        weight = round_to_safe_side(float(settings["speed_weight"]), down=self.goal.is_fairness)
        for _ in range(ATTEMPTS):
            candidate = {**settings, "speed_weight": weight}
            if self.trial(candidate, fine).runs_meeting(self.goal) == fine:
                first = self._next_fresh_seed
                self._next_fresh_seed += fresh
                trial = self._trial_with(candidate, range(first, first + fresh))
                if trial.runs_meeting(self.goal) == fresh:
                    return trial
            if "horizon" in settings or weight == 0:
                return None
            safer = weight / SAFETY_FACTOR if self.goal.is_fairness else weight * SAFETY_FACTOR
            weight = round_to_safe_side(safer, down=self.goal.is_fairness)
        return None

    def _trial_with(self, settings: Mapping[str, Any], seeds: range) -> Trial:
        figures = np.array([self._run(settings, seed) for seed in seeds], dtype=np.float64)
        return Trial(dict(settings), read_only(figures))

    def _run(self, settings: Mapping[str, Any], seed: int) -> RunFigures:
        key = (tuple(sorted(settings.items())), seed)
        if key not in self._results:
            self._results[key] = measure_run(*self._build(settings, seed), self.goal.rounds)
            self._done += self.goal.rounds
            if self._watch is not None:
                self._watch(self._done, max(self._done, self._expected))
        return self._results[key]


def measure_run(policy: SelectionPolicy, world: World, rounds: int) -> RunFigures:
    """Plays one run of a policy with a guarantee; the promised turns are those of its certificate."""
    if policy.guarantee is None:
        raise SettingError(f"{policy.name} guarantees nothing, so there is nothing to tune: use rbcsf")
    durations = np.array([record.report.duration for record in play(policy, world, rounds)])
    certificate = policy.certificate()
    assert certificate is not None
    return RunFigures(
        mean_round=float(durations.mean()),
        p95_round=float(np.percentile(durations, 95)),
        least_share=int(certificate.turns.min()) / rounds,
        shortfall=float((certificate.promised - certificate.turns).max()),
        worst_debt=float(certificate.owed.max()),
    )


def _weights(seconds: float, largest_debt: float, points: int) -> FloatArray:
    """Returns the weights to simulate, evenly spaced on a logarithmic scale.

    The lowest makes the seconds of a fair round worth half a turn; with the highest, a quarter of them outweighs every
    debt.
    """
    highest = max(HIGHEST_FACTOR * largest_debt, 100 * LOWEST_FACTOR) / seconds
    return np.geomspace(LOWEST_FACTOR / seconds, highest, points)


def _steps(points: int) -> int:
    """Returns the number of bisection steps that determine a weight to about 5 %."""
    return max(3, math.ceil(math.log2(200 / points)))


def _boundary(search: _Search, curve: Sequence[Trial], coarse: int, fine: int) -> dict[str, Any] | None:
    """Returns the last weight that meets the goal, seen from the side where it should be met; None if none does.

    The first weight that does not meet the goal ends the range, so that later weights that meet it by chance do not
    count.
    """
    goal = search.goal
    ordered = list(curve) if goal.is_fairness else list(curve)[::-1]
    meeting = 0
    while meeting < len(ordered) and ordered[meeting].meets(goal):
        meeting += 1
    if meeting == 0:
        # More seeds give a tighter bound.
        return dict(ordered[0].settings) if search.trial(ordered[0].settings, fine).meets(goal) else None
    passing = ordered[meeting - 1].weight
    if meeting == len(ordered):
        return {"speed_weight": passing}
    failing = ordered[meeting].weight
    steps = _steps(len(curve) - 1)
    if min(passing, failing) == 0:
        # Zero has no logarithm, and below the lowest positive weight nothing changes.
        return {"speed_weight": passing}
    for step in range(steps):
        seeds = min(coarse + math.ceil((fine - coarse) * (step + 1) / (steps - 1)), fine)
        middle = math.sqrt(passing * failing)
        if search.trial({"speed_weight": middle}, seeds).meets(goal):
            passing = middle
        else:
            failing = middle
    return {"speed_weight": passing}


def _with_horizon(search: _Search, seconds: float, coarse: int, fine: int, fresh: int) -> Trial | None:
    """Returns the trial with a horizon at the last round that meets the goal at the lowest price, or None.

    Args:
        search: The search that simulates and verifies the settings.
        seconds: The mean duration of a fair round.
        coarse: The number of seeds per trial.
        fine: The number of seeds of the search that must meet the goal.
        fresh: The number of seeds of the verification.
    """
    goal = search.goal
    candidates = [
        {"speed_weight": round_to_safe_side(weight / seconds, down=True), "horizon": goal.rounds, "prior": "fleet"}
        for weight in HORIZON_WEIGHTS
    ]
    price = "mean_round" if goal.is_fairness else "shortfall"
    meeting = [trial for trial in (search.trial(settings, coarse) for settings in candidates) if trial.meets(goal)]
    for trial in sorted(meeting, key=lambda trial: trial.mean(price)):
        confirmed = search.confirm(trial.settings, fine, fresh)
        if confirmed is not None:
            return confirmed
    return None
