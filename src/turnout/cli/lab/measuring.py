"""What a comparison measures: one value per seed of every policy, means over the seeds, and the promise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from turnout.errors import SettingError
from turnout.kernel.certificate import Tolerance
from turnout.lab.analysis.metrics import JudgedPromise, worst_of
from turnout.lab.analysis.statistics import LearningCurve, mean_confidence_interval
from turnout.lab.columns import RoundColumns
from turnout.lab.runs.tables import RunTable, TablePart
from turnout.tracking.trackers import flat_settings

ACCURACY = "accuracy"
#: Measures of rounds and of turns without rounds, in the order of the table.
ROUND_MEASURES = ("mean_round", "p95_round", "total_time", "mean_cohort")
SLOT_MEASURES = ("updates_per_second", "mean_turn", "mean_staleness", "largest_staleness")
FAIRNESS = ("least_share", "largest_shortfall", "shortfall_at_end", "worst_debt", "jain")
#: The measures whose means over the seeds are shown.
MEANS = (
    *("mean_round", "updates_per_second", "mean_staleness", "final_accuracy", "minutes_to_target", "rounds_to_target"),
    *("least_share", "worst_debt", "jain"),
)


@dataclass(frozen=True, slots=True)
class MeasuredPolicy:
    """A policy of a comparison: its name, its plan, its seeds, its tolerance, and its runs in a store, one per seed."""

    name: str
    plan: Mapping[str, Any]
    seeds: Sequence[int]
    tolerance: Tolerance
    runs: Sequence[int] = ()

    @property
    def settings(self) -> dict[str, Any]:
        """The policy and its settings."""
        return {"policy": self.plan.get("policy"), **(self.plan.get("settings") or {})}


@dataclass(frozen=True, slots=True)
class Measurement:
    """The measures of a policy: one value per seed each, and its statuses; `diverged` counts models with NaN."""

    contender: MeasuredPolicy
    values: Mapping[str, list[float]]
    statuses: Sequence[Any]
    share_of: str
    diverged: int = 0

    @property
    def tolerance(self) -> float:
        """The tolerance by which the policy is judged."""
        return float(self.contender.tolerance)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The measures of all policies, whose runs have equally many rounds.

    Attributes:
        measured: The measures of each policy.
        reference: The index of the policy with which the others are compared, seed by seed.
        promise: The promise by which all are judged.
        rounds: The number of rounds of a run.
        target: The accuracy whose time is measured, or None.
    """

    measured: Sequence[Measurement]
    reference: int
    promise: JudgedPromise
    rounds: int
    target: float | None = None

    @property
    def concurrency(self) -> int | None:
        """The number of slots without rounds, or None."""
        return self.measured[0].contender.plan.get("concurrency")

    @property
    def baseline(self) -> str:
        """The name of the policy with which the others are compared."""
        return self.measured[self.reference].contender.name

    @property
    def seeds(self) -> int:
        """The number of seeds."""
        return len(self.measured[0].contender.seeds)

    @property
    def trains(self) -> bool:
        """Whether the runs have measured an accuracy."""
        return "final_accuracy" in self.measured[0].values

    def as_dict(self) -> dict[str, Any]:
        """Returns everything as plain values, with NaN as None."""
        plan = self.measured[0].contender.plan
        data = {
            "seeds": self.seeds,
            "baseline": self.baseline,
            "concurrency": self.concurrency,
            "promise": {**self._promise, "share_of": self.measured[0].share_of},
            "rounds": self.rounds,
            "target": self.target,
            "world": {"name": plan.get("world"), **(plan.get("world_settings") or {})},
            "policies": [self._row(measured) for measured in self.measured],
        }
        return {name: _without_nan(value) for name, value in data.items()}

    @property
    def _promise(self) -> dict[str, Any]:
        return {"guaranteed_rate": self.promise.number, "accrual": self.promise.accrual, "counts": self.promise.counts}

    def seeds_table(self) -> RunTable:
        """Returns one row per policy and seed, with the settings as columns."""
        parts = []
        for measured in self.measured:
            contender = measured.contender
            world = {"world": contender.plan.get("world"), "world_setting": contender.plan.get("world_settings") or {}}
            constants = {
                "contender": contender.name,
                **flat_settings({"setting": contender.settings, **world}),
                "rounds": self.rounds,
                **self._promise,
                "tolerance": measured.tolerance,
                **({} if self.target is None else {"target": self.target}),
            }
            columns = {"seed": np.array(contender.seeds), "status": np.array(measured.statuses)}
            columns |= {name: np.array(values) for name, values in measured.values.items()}
            parts.append(TablePart(constants, columns))
        return RunTable(parts)

    def _row(self, measured: Measurement) -> dict[str, Any]:
        values, baseline = measured.values, self.measured[self.reference].values
        relative = "total_time" if self.concurrency is None else "updates_per_second"
        ratios = [own / other for own, other in zip(values[relative], baseline[relative], strict=True)]
        speed = {"speedup": ratios} if self.concurrency else {"time_saved": [1 - ratio for ratio in ratios]}
        seeds = zip(measured.contender.seeds, measured.statuses, *values.values(), strict=True)
        never = {} if self.target is None else {"never_reached_target": values["reached_target"].count(0.0)}
        return {
            "policy": measured.contender.name,
            **{name: _interval(values[name]) for name in MEANS if name in values},
            **{name: _interval(own) for name, own in speed.items()},
            **never,
            "share_of": measured.share_of,
            "shortfall": _interval(values["largest_shortfall"]),
            "largest_shortfall": max(values["largest_shortfall"]),
            "shortfall_at_end": max(values["shortfall_at_end"]),
            "tolerance": measured.tolerance,
            "status": worst_of(list(measured.statuses)),
            "settings": measured.contender.settings,
            "per_seed": [dict(zip(("seed", "status", *values), row, strict=True)) for row in seeds],
        }


def measure(
    contender: MeasuredPolicy, runs: Sequence[RoundColumns], promise: JudgedPromise, target: float | None
) -> Measurement:
    """Measures the runs of a policy, one per seed.

    Args:
        contender: The policy.
        runs: Its runs.
        promise: The promise by which it is judged.
        target: The accuracy whose time is measured, or None.

    Raises:
        SettingError: If there is a target, but the world trains no model.
    """
    judged = [promise.judge(columns, contender.tolerance) for columns in runs]
    values = {name: [float(getattr(one.summary, name)) for one in judged] for name in FAIRNESS}
    if judged[0].slots is None:
        values |= {name: [float(getattr(one.summary, name)) for one in judged] for name in ROUND_MEASURES}
    else:
        values |= {name: [float(getattr(one.slots, name)) for one in judged] for name in SLOT_MEASURES}
    if all(ACCURACY in columns.metrics for columns in runs):
        curves = [LearningCurve.of(columns) for columns in runs]
        values["final_accuracy"] = [curve.final for curve in curves]
        values["best_accuracy"] = [float(curve.accuracies.max()) for curve in curves]
        if target is not None:
            values["minutes_to_target"] = [curve.minutes_to(target) for curve in curves]
            values["rounds_to_target"] = [curve.rounds_to(target) for curve in curves]
            values["reached_target"] = [float(curve.reaches(target)) for curve in curves]
    elif target is not None:
        raise SettingError(
            f"a target accuracy of {target:g} needs runs that measure accuracy: this world trains no model; use the "
            "world 'training'"
        )
    diverged = sum(int(np.nansum(columns.metrics.get("diverged", 0.0))) for columns in runs)
    return Measurement(contender, values, [one.status for one in judged], judged[0].summary.share_of, diverged)


def _interval(values: Sequence[float]) -> dict[str, float]:
    mean, half_width = mean_confidence_interval(np.array(values))
    return {"mean": float(mean), "half_width": float(half_width)}


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_nan(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value
