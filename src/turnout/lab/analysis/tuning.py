"""Finds the setting of fair-pace that meets a goal: simulates a grid of values, and confirms one with other seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Literal

import numpy as np

from turnout.errors import SettingError, suggestion
from turnout.kernel.arrays import FloatArray, as_count, as_number
from turnout.kernel.feasibility import feasibility
from turnout.lab.analysis.metrics import RunSummary, summarise
from turnout.lab.analysis.statistics import prediction_half_width
from turnout.lab.columns import RoundColumns
from turnout.lab.runs.play import play
from turnout.lab.worlds.base import World
from turnout.policies.base import SelectionPolicy

__all__ = ["Trial", "TuningResult", "find_setting"]

#: Builds a new policy and a new world from settings of the policy and a seed.
Build = Callable[[Mapping[str, Any], int], tuple[SelectionPolicy, World]]
#: The figures of a run that a goal can bound.
GoalFigure = Literal["shortfall_at_end", "mean_round", "p95_round"]
#: The settings that can be found.
TUNED = ("tolerance", "guaranteed_rate")
TOLERANCES = (0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)
RATES = 10  # the number of rates, evenly spaced up to the largest that can be promised
SEEDS, CONFIRMING_SEEDS = 12, 20
CONFIDENCE = 0.975  # of the prediction that one more run meets the goal


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """A value of the setting, and the figures of its simulated runs, one per seed.

    Attributes:
        value: The value.
        bound: The number that the goal's figure of one more run does not exceed, with 97.5 % confidence.
        meets: Whether one more run would meet the goal, with this confidence.
        runs: The figures of the runs.
    """

    value: float
    bound: float
    meets: bool
    runs: tuple[RunSummary, ...]

    @classmethod
    def of(cls, value: float, runs: Sequence[RunSummary], figure: GoalFigure, most: float) -> Trial:
        """Judges the runs of a value by a goal."""
        measured = np.array([getattr(run, figure) for run in runs])
        bound = float(measured.mean()) + prediction_half_width(measured, 2 * CONFIDENCE - 1)
        return cls(value, bound, bound <= most, tuple(runs))

    def values(self, figure: str) -> FloatArray:
        """Returns a figure of each run."""
        return np.array([getattr(run, figure) for run in self.runs])


@dataclass(frozen=True, slots=True, eq=False)
class TuningResult:
    """The simulated values of a setting, and the one that meets the goal.

    Attributes:
        setting: The name of the setting.
        figure: The figure that the goal bounds.
        most: Its largest value that meets the goal.
        trials: The trials of all values, in ascending order.
        answer: The trial of the recommended value with seeds that its choice did not use; None if no value meets the
            goal.
    """

    setting: str
    figure: GoalFigure
    most: float
    trials: tuple[Trial, ...]
    answer: Trial | None = None

    @property
    def runs_meeting(self) -> int:
        """How many runs of the answer met the goal."""
        return 0 if self.answer is None else int((self.answer.values(self.figure) <= self.most).sum())

    @property
    def closest(self) -> Trial:
        """The trial with the lowest bound on the goal's figure."""
        return min(self.trials, key=lambda trial: trial.bound)

    def choose(self) -> Trial | None:
        """Returns the trial that meets the goal at the lowest price.

        For a goal on time this is the smallest value, for a goal on fairness the largest one; a guaranteed rate is the
        largest in both cases. A value beyond the first that does not meet the goal meets it by chance.
        """
        if self.setting == "guaranteed_rate" or self.figure == "shortfall_at_end":
            return next(reversed(list(takewhile(lambda trial: trial.meets, self.trials))), None)
        return next((trial for trial in self.trials if trial.meets), None)


def find_setting(
    setting: str,
    build: Build,
    *,
    figure: GoalFigure,
    most: float,
    rounds: int = 500,
    values: Sequence[float] | None = None,
    seeds: int = SEEDS,
    seed: int = 0,
    watch: Callable[[int, int], None] | None = None,
) -> TuningResult:
    """Returns the value of a setting that meets a goal at the lowest price, and all values that were simulated.

    A value meets the goal if one more run would meet it with 97.5 % confidence. The recommended value is simulated
    again, with 20 seeds that its choice did not use.

    Args:
        setting: "tolerance" or "guaranteed_rate".
        build: Builds a policy and a world from settings of the policy and a seed.
        figure: The figure that the goal bounds: "shortfall_at_end" in turns, "mean_round" or "p95_round" in seconds.
        most: The largest value of the figure that meets the goal.
        rounds: The number of rounds of a run.
        values: The values to simulate; by default a grid for the setting.
        seeds: The number of runs of each value.
        seed: The first seed.
        watch: A progress callback; receives the number of finished runs and their total.
    """
    if setting not in TUNED:
        raise SettingError(f"cannot find {setting!r}{suggestion(setting, TUNED)}: find {', '.join(TUNED)}")
    name = "within" if figure == "shortfall_at_end" else figure
    most = as_number(name, most, SettingError, **({"least": 0} if name == "within" else {"above": 0}))
    rounds, seeds = as_count("rounds", rounds, SettingError, least=2), as_count("seeds", seeds, SettingError, least=2)
    grid = sorted(values) if values else _default_values(setting, build, seed)
    total, finished = len(grid) * seeds + CONFIRMING_SEEDS, 0

    def trial(value: float, own_seeds: range) -> Trial:
        nonlocal finished
        runs = []
        for own in own_seeds:
            runs.append(_run(*build({setting: value}, own), rounds))
            finished += 1
            if watch is not None:
                watch(finished, total)
        return Trial.of(value, runs, figure, most)

    result = TuningResult(setting, figure, most, tuple(trial(value, range(seed, seed + seeds)) for value in grid))
    chosen = result.choose()
    if chosen is None:
        return result
    answer = trial(chosen.value, range(seed + seeds, seed + seeds + CONFIRMING_SEEDS))
    return TuningResult(setting, figure, most, result.trials, answer)


def _run(policy: SelectionPolicy, world: World, rounds: int) -> RunSummary:
    guarantee = policy.guarantee
    if guarantee is None:
        raise SettingError(f"{policy.name} guarantees nothing, so there is nothing to tune: use fair-pace")
    columns = RoundColumns.from_records(play(policy, world, rounds), clients=world.clients)
    return summarise(columns, guaranteed_rate=guarantee.rate, accrual=guarantee.accrual, counts=guarantee.counts)


def _default_values(setting: str, build: Build, seed: int) -> Sequence[float]:
    # Every world can promise a very small rate.
    policy, world = build({"guaranteed_rate": 1e-6} if setting == "guaranteed_rate" else {}, seed)
    guarantee = policy.guarantee
    assert guarantee is not None, "fair-pace has a guarantee"
    if setting == "tolerance":
        # A client falls behind by its rate in every round in which it is not selected.
        least = 2 * float(guarantee.queues(policy.clients).guaranteed_rates.max())
        return [value for value in TOLERANCES if value >= least]
    availability = np.asarray(world.availability, dtype=np.float64)
    # With accrual="available" a rate is a share of the rounds for which a client is available.
    rates = availability if guarantee.accrual == "available" else np.ones(len(availability))
    scale = feasibility(rates, availability, policy.cohort_size or policy.clients).scale
    largest = min(scale, 1.0, 0.9 * float(guarantee.tolerance))
    # Rounded down, because the policy must accept the rate.
    return [math.floor(largest * share * 10_000 / RATES) / 10_000 for share in range(1, RATES + 1)]
