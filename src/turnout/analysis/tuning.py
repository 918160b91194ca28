"""From a goal in plain words to a speed weight, by playing what would happen.

A larger speed weight makes rounds shorter and lets slow clients wait longer; so a promise on fairness is met below some
weight, and one on time above some weight. That weight is looked for with the same seeds at every weight, and what is
found is held against seeds that had no part in the search.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from turnout.analysis.metrics import ConfidenceInterval, mean_and_band, student_t
from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray, as_count, as_number, read_only
from turnout.policies.base import SelectionPolicy
from turnout.simulator.play import play
from turnout.simulator.world import World

#: From settings of the policy and a seed to a fresh policy in a fresh world.
Build = Callable[[Mapping[str, Any], int], tuple[SelectionPolicy, World]]
#: Told how many rounds were played, and how many it will be about.
Watch = Callable[[int, int], None]

CONFIDENCE = 0.975  # that a run which is still to come meets the goal
FAR = 1_000_000  # from the seeds of the search to those that judge it
STEP_BACK = 1.1  # the factor by which a weight is made safer that fresh seeds did not confirm
ATTEMPTS = 12
LIGHTEST, HEAVIEST = 0.5, 4.0  # see _weights
HORIZON_WEIGHTS = (80.0, 250.0, 750.0)  # times 1 / (seconds of a fair round): about 5, 20 and 60 in the paper's world


class Played(NamedTuple):
    """One run in five numbers. `shortfall`: how many turns the worst-off client has less than it was promised."""

    mean_round: float
    p95_round: float
    least_share: float
    shortfall: float
    worst_debt: float


@dataclass(frozen=True, slots=True)
class Goal:
    """After `rounds` rounds one figure of the run is at most `most`: turns for the shortfall, seconds for the others.

    >>> Goal.within(3, by=500).words
    'every client within 3 turns of what it was promised by round 500'
    """

    figure: Literal["shortfall", "mean_round", "p95_round"]
    most: float
    rounds: int = 500

    def __post_init__(self) -> None:
        name = {"shortfall": "within", "mean_round": "mean-round", "p95_round": "p95-round"}.get(self.figure)
        if name is None:
            raise SettingError(f"a goal is about shortfall, mean_round or p95_round, not {self.figure!r}")
        if self.figure == "shortfall":
            as_number(name, self.most, SettingError, least=0)
        else:
            as_number(name, self.most, SettingError, above=0)
        as_count("by", self.rounds, SettingError, least=2)

    @classmethod
    def within(cls, turns: float, *, by: int = 500) -> Goal:
        """Every client has, after round `by`, at most so many turns less than it was promised."""
        return cls("shortfall", turns, by)

    @property
    def words(self) -> str:
        """As a person would say it."""
        if self.figure == "shortfall":
            unit = "turn" if self.most == 1 else "turns"
            return f"every client within {self.most:g} {unit} of what it was promised by round {self.rounds}"
        which = "a mean round" if self.figure == "mean_round" else "95 % of the rounds"
        return f"{which} of at most {self.most:g} s over {self.rounds} rounds"

    @property
    def is_fairness(self) -> bool:
        """Met by small weights; a goal on time is met by large ones."""
        return self.figure == "shortfall"


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """Settings that were played, and what came of it: one row a seed, one column a figure of Played."""

    settings: Mapping[str, Any]
    figures: FloatArray

    @property
    def weight(self) -> float:
        """Its speed weight."""
        return float(self.settings["speed_weight"])

    def of(self, figure: str) -> FloatArray:
        """One number a seed."""
        return self.figures[:, Played._fields.index(figure)]

    def mean(self, figure: str) -> float:
        """Over the seeds."""
        return float(self.of(figure).mean())

    def band(self, figure: str) -> ConfidenceInterval:
        """The mean over seeds with its confidence interval."""
        return mean_and_band(self.of(figure))

    def bound(self, goal: Goal) -> float:
        """At most this, with 97.5 % confidence, is the figure in one more run: mean + t · deviation · sqrt(1 + 1/n)."""
        values = self.of(goal.figure)
        if len(values) < 2:
            return math.inf
        reach = student_t(2 * CONFIDENCE - 1, len(values) - 1) * math.sqrt(1 + 1 / len(values))
        return float(values.mean() + reach * values.std(ddof=1))

    def meets(self, goal: Goal) -> bool:
        """Would one more run meet the goal, with 97.5 % confidence?"""
        return self.bound(goal) <= goal.most

    def met(self, goal: Goal) -> int:
        """How many of its runs did."""
        return int((self.of(goal.figure) <= goal.most).sum())


@dataclass(frozen=True, slots=True, eq=False)
class Tuned:
    """What was found.

    `answer`: the paper's rule at the weight that meets the goal and costs least, on fresh seeds; None if none does.
    `horizon`: the same with a horizon (RBCSF), where that meets the goal too. `best`: of the weights tried, the one
    with the lowest bound on the goal's figure. `curve`: what each weight gives; `knee`: a place in it.
    """

    goal: Goal
    answer: Trial | None
    horizon: Trial | None
    best: Trial
    curve: tuple[Trial, ...]
    knee: int | None

    @property
    def chosen(self) -> Trial | None:
        """What is recommended: the paper's rule where it can meet the goal, else the horizon."""
        return self.answer or self.horizon

    @property
    def horizon_is_better(self) -> bool:
        """Does the horizon meet the goal at a lower price: shorter rounds, or for a goal on time, fairer ones?"""
        if self.horizon is None or self.answer is None:
            return self.horizon is not None
        price = "mean_round" if self.goal.is_fairness else "shortfall"
        ours, theirs = self.answer.band(price), self.horizon.band(price)
        return float(theirs.mean + theirs.half_width) < float(ours.mean - ours.half_width)

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


def tuned(
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
) -> Tuned:
    """The speed weight that meets the goal at the lowest price, and the whole trade-off around it.

    First `points` weights are played with `coarse` seeds each; then the place where the goal begins or ceases to be met
    is bisected, on the logarithm of the weight, with up to `fine` seeds. At each step the question is whether one more
    run would meet the goal with 97.5 % confidence. The answer, rounded to the safe side, is at last played with all
    seeds of the search and with `fresh` others, each of which must meet the goal; otherwise the weight is taken back a
    little, and judged by yet others.
    """
    for name, count in (("points", points), ("coarse", coarse), ("fine", fine), ("fresh", fresh)):
        as_count(name, count, SettingError, least=2)
    if fine < coarse:
        raise SettingError(f"fine must be at least coarse, {coarse}, not {fine}: precision only grows")
    search = _Search(goal, build, as_count("seed", seed, SettingError, least=0), watch)
    search.expect((points + 1) * coarse + fine * _steps(points) + 2 * fresh + len(HORIZON_WEIGHTS) * coarse)
    fair = search.trial({"speed_weight": 0.0}, coarse)
    seconds = max(fair.mean("mean_round"), 1e-9)
    weights = _weights(seconds, search.most_owed({"speed_weight": 0.0}), points)
    curve = [fair, *(search.trial({"speed_weight": weight}, coarse) for weight in weights)]
    best = min(curve, key=lambda one: one.bound(goal))
    found = _boundary(search, curve, coarse, fine)
    answer = None if found is None else search.confirmed(found, fine, fresh)
    horizon = _with_horizon(search, seconds, coarse, fine, fresh) if try_horizon else None
    return Tuned(goal, answer, horizon, best, tuple(curve), knee_of(curve))


def knee_of(curve: Sequence[Trial]) -> int | None:
    """Where the trade-off bends most: the point furthest below the straight line from the first to the last weight.

    Shortfall and mean round are scaled to 0…1 over the curve before. None where no point is below that line.
    """
    short = np.array([one.mean("shortfall") for one in curve])
    time = np.array([one.mean("mean_round") for one in curve])
    if len(curve) < 3 or np.ptp(short) == 0 or np.ptp(time) == 0:
        return None
    x, y = (short - short.min()) / np.ptp(short), (time - time.min()) / np.ptp(time)
    across, down = x[-1] - x[0], y[-1] - y[0]
    below = (across * (y[0] - y) - (x[0] - x) * down) / math.hypot(across, down)
    place = int(below.argmax())
    return place if below[place] > 1e-9 else None


def safe_side(weight: float, *, down: bool) -> float:
    """To two digits, downwards or upwards.

    >>> safe_side(1.2345, down=True), safe_side(123.45, down=False)
    (1.2, 130.0)
    """
    if weight <= 0:
        return 0.0
    digit = 10.0 ** (math.floor(math.log10(weight)) - 1)
    count = weight / digit
    whole = math.floor(count + 1e-9) if down else math.ceil(count - 1e-9)
    return float(f"{whole * digit:.2g}")


class _Search:
    """Plays settings with seeds, each once, and judges with others."""

    def __init__(self, goal: Goal, build: Build, seed: int, watch: Watch | None) -> None:
        self.goal, self._build, self._seed, self._watch = goal, build, seed, watch
        self._kept: dict[tuple[tuple[tuple[str, Any], ...], int], Played] = {}
        self._judges = seed + FAR
        self._done, self._expected = 0, 0

    def expect(self, runs: int) -> None:
        """About so many."""
        self._expected = runs * self.goal.rounds

    def most_owed(self, settings: Mapping[str, Any]) -> float:
        """Turns that a whole cohort could be owed at the end, had none of it had a turn."""
        policy, _ = self._build(settings, self._seed)
        rates = np.asarray(policy.queues.guaranteed_rates)  # type: ignore[attr-defined]  # _run has refused others
        return float((policy.cohort_size or policy.clients) * rates.max() * self.goal.rounds)

    def trial(self, settings: Mapping[str, Any], seeds: int) -> Trial:
        """With the first so many seeds of the search."""
        return self._of(settings, range(self._seed, self._seed + seeds))

    def confirmed(self, settings: Mapping[str, Any], fine: int, fresh: int) -> Trial | None:
        """On fresh seeds, if need be a little further on the safe side; None if even that does not meet the goal.

        Only what meets the goal with every seed of the search, too, is put before them.
        """
        weight = safe_side(float(settings["speed_weight"]), down=self.goal.is_fairness)
        for _ in range(ATTEMPTS):
            tried = {**settings, "speed_weight": weight}
            if self.trial(tried, fine).met(self.goal) == fine:
                first = self._judges
                self._judges += fresh
                judged = self._of(tried, range(first, first + fresh))
                if judged.met(self.goal) == fresh:
                    return judged
            if "horizon" in settings or weight == 0:
                return None
            safer = weight / STEP_BACK if self.goal.is_fairness else weight * STEP_BACK
            weight = safe_side(safer, down=self.goal.is_fairness)
        return None

    def _of(self, settings: Mapping[str, Any], seeds: range) -> Trial:
        figures = np.array([self._run(settings, seed) for seed in seeds], dtype=np.float64)
        return Trial(dict(settings), read_only(figures))

    def _run(self, settings: Mapping[str, Any], seed: int) -> Played:
        key = (tuple(sorted(settings.items())), seed)
        if key not in self._kept:
            self._kept[key] = played(*self._build(settings, seed), self.goal.rounds)
            self._done += self.goal.rounds
            if self._watch is not None:
                self._watch(self._done, max(self._done, self._expected))
        return self._kept[key]


def played(policy: SelectionPolicy, world: World, rounds: int) -> Played:
    """One run of a policy that gives a guarantee, in five numbers; what was promised is what its certificate says."""
    make = getattr(policy, "certificate", None)
    if make is None:
        raise SettingError(f"{policy.name} guarantees nothing, so there is nothing to tune: use rbcsf")
    durations = np.array([record.report.duration for record in play(policy, world, rounds)])
    certificate = make()
    return Played(
        mean_round=float(durations.mean()),
        p95_round=float(np.percentile(durations, 95)),
        least_share=int(certificate.turns.min()) / rounds,
        shortfall=float((certificate.promised - certificate.turns).max()),
        worst_debt=float(certificate.owed.max()),
    )


def _weights(seconds: float, most_owed: float, points: int) -> FloatArray:
    """From where a fair round's seconds are worth half a turn to where a quarter of them outweighs every debt."""
    heaviest = max(HEAVIEST * most_owed, 100 * LIGHTEST) / seconds
    return np.geomspace(LIGHTEST / seconds, heaviest, points)


def _steps(points: int) -> int:
    """Halvings until a weight is known to about 5 %."""
    return max(3, math.ceil(math.log2(200 / points)))


def _boundary(search: _Search, curve: Sequence[Trial], coarse: int, fine: int) -> dict[str, Any] | None:
    """The weight up to which, or from which on, the goal is met; None if it is met nowhere.

    Counted from the side where it should be met, so that a curve with bumps is judged by its unbroken stretch.
    """
    goal = search.goal
    ordered = list(curve) if goal.is_fairness else list(curve)[::-1]
    meeting = 0
    while meeting < len(ordered) and ordered[meeting].meets(goal):
        meeting += 1
    if meeting == 0:
        # With more seeds the bound is nearer to the truth.
        return dict(ordered[0].settings) if search.trial(ordered[0].settings, fine).meets(goal) else None
    good = ordered[meeting - 1].weight
    if meeting == len(ordered):
        return {"speed_weight": good}
    bad = ordered[meeting].weight
    steps = _steps(len(curve) - 1)
    if min(good, bad) == 0:
        # There is no logarithm of 0: below the lightest weight nothing changes any more.
        return {"speed_weight": good}
    for step in range(steps):
        seeds = min(coarse + math.ceil((fine - coarse) * (step + 1) / (steps - 1)), fine)
        middle = math.sqrt(good * bad)
        if search.trial({"speed_weight": middle}, seeds).meets(goal):
            good = middle
        else:
            bad = middle
    return {"speed_weight": good}


def _with_horizon(search: _Search, seconds: float, coarse: int, fine: int, fresh: int) -> Trial | None:
    """A horizon at the last round, with the weight that meets the goal at the lowest price."""
    goal = search.goal
    settings = [
        {"speed_weight": safe_side(one / seconds, down=True), "horizon": goal.rounds, "prior": "fleet"}
        for one in HORIZON_WEIGHTS
    ]
    price = "mean_round" if goal.is_fairness else "shortfall"
    meeting = [one for one in (search.trial(own, coarse) for own in settings) if one.meets(goal)]
    for one in sorted(meeting, key=lambda one: one.mean(price)):
        judged = search.confirmed(one.settings, fine, fresh)
        if judged is not None:
            return judged
    return None
