"""What a comparison measures: one value per seed of every policy, means over the seeds, and the promise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from turnout.errors import SettingError
from turnout.kernel.certificate import Tolerance
from turnout.lab.analysis.judging import JudgedPromise, Judgement, worst_of
from turnout.lab.analysis.learning_curves import LearningCurve
from turnout.lab.analysis.statistics import mean_confidence_interval
from turnout.lab.columns import RoundColumns
from turnout.lab.runs.tables import RunTable, TablePart
from turnout.tracking.names import flat_settings

ACCURACY = "accuracy"
#: Measures of rounds and of turns without rounds, in the order of the table.
ROUND_MEASURES = ("mean_round", "p95_round", "total_time", "mean_cohort")
SLOT_MEASURES = ("updates_per_second", "mean_turn", "mean_staleness", "largest_staleness")
FAIRNESS = ("least_share", "largest_shortfall", "shortfall_at_end", "worst_debt", "jain")
TRAINING = ("final_accuracy", "best_accuracy")
TARGET = ("minutes_to_target", "rounds_to_target", "reached_target")


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy of a comparison: its name, its settings as a plan holds them, its seeds, and its tolerance."""

    name: str
    plan: Mapping[str, Any]
    seeds: Sequence[int]
    tolerance: Tolerance

    @property
    def settings(self) -> dict[str, Any]:
        """The policy and its settings."""
        return {"policy": self.plan.get("policy"), **(self.plan.get("settings") or {})}


@dataclass(frozen=True, slots=True)
class Measurement:
    """The measures of a policy: one value per seed each, and its statuses."""

    contender: Contender
    values: Mapping[str, list[float]]
    statuses: Sequence[Any]
    share_of: str

    @property
    def tolerance(self) -> float:
        """The tolerance by which the policy is judged."""
        return float(self.contender.tolerance)

    def interval(self, measure: str) -> dict[str, float]:
        """Returns the mean over the seeds, and half the width of its confidence interval."""
        return _interval(self.values[measure])


@dataclass(frozen=True, slots=True)
class Comparison:
    """The measures of all policies, over the rounds that all their runs have.

    Attributes:
        measured: The measures of each policy.
        reference: The index of the policy with which the others are compared, seed by seed.
        promise: The promise by which all are judged.
        rounds: The number of rounds that are compared.
        lengths: The smallest and the largest number of rounds of a run.
        target: The accuracy whose time is measured, or None.
        concurrency: The number of slots without rounds, or None.
    """

    measured: Sequence[Measurement]
    reference: int
    promise: JudgedPromise
    rounds: int
    lengths: tuple[int, int]
    target: float | None
    concurrency: int | None

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
        return TRAINING[0] in self.measured[0].values

    def note(self) -> str | None:
        """Returns a sentence if the runs have different lengths."""
        if self.lengths[0] == self.lengths[1]:
            return None
        what = "rounds" if self.concurrency is None else "turns"
        return (
            f"The runs have {self.lengths[0]:,} to {self.lengths[1]:,} {what}: only the first {self.rounds:,} of each "
            "are compared."
        )

    def as_dict(self) -> dict[str, Any]:
        """Returns everything as plain values, with NaN as None."""
        promise = {
            "guaranteed_rate": self.promise.number,
            "accrual": self.promise.accrual,
            "counts": self.promise.counts,
            "share_of": self.measured[0].share_of,
        }
        slots = {} if self.concurrency is None else {"concurrency": self.concurrency}
        plan = self.measured[0].contender.plan
        data = {
            "seeds": self.seeds,
            "baseline": self.baseline,
            **slots,
            "guaranteed_rate": self.promise.number,
            "accrual": self.promise.accrual,
            "promise": promise,
            "rounds": self.rounds,
            "lengths": list(self.lengths),
            "target": self.target,
            "world": {"name": plan.get("world"), **(plan.get("world_settings") or {})},
            "policies": [self._row(measured) for measured in self.measured],
        }
        return {name: _without_nan(value) for name, value in data.items()}

    def seeds_table(self) -> RunTable:
        """Returns one row per policy and seed, with the settings as columns."""
        parts = []
        for measured in self.measured:
            contender = measured.contender
            constants = {
                "contender": contender.name,
                **flat_settings({"setting": contender.settings}),
                **flat_settings({"world": contender.plan.get("world"), "world_setting": _world(contender.plan)}),
                "rounds": self.rounds,
                "guaranteed_rate": self.promise.number,
                "accrual": self.promise.accrual,
                "counts": self.promise.counts,
                "tolerance": measured.tolerance,
                **({} if self.target is None else {"target": self.target}),
            }
            columns = {"seed": np.array(contender.seeds), "status": np.array(measured.statuses)}
            columns |= {name: np.array(values) for name, values in measured.values.items()}
            parts.append(TablePart(constants, columns))
        return RunTable(parts)

    def policies_table(self) -> RunTable:
        """Returns one row per policy: means, half-widths, and the worst seed."""
        rows = []
        for measured, row in zip(self.measured, self.as_dict()["policies"], strict=True):
            settings = flat_settings({"setting": measured.contender.settings})
            figures = {name: value for name, value in row.items() if name not in ("settings", "per_seed")}
            rows.append(TablePart({**flat_settings(figures), **settings}, {}))
        return RunTable(rows)

    def _row(self, measured: Measurement) -> dict[str, Any]:
        values, baseline = measured.values, self.measured[self.reference].values
        row: dict[str, Any] = {"policy": measured.contender.name}
        if self.concurrency is None:
            row["mean_round"] = measured.interval("mean_round")
            saved = [1 - own / other for own, other in zip(values["total_time"], baseline["total_time"], strict=True)]
            row["time_saved"] = _interval(saved)
        else:
            rates = zip(values["updates_per_second"], baseline["updates_per_second"], strict=True)
            row["updates_per_second"] = measured.interval("updates_per_second")
            row["speedup"] = _interval([own / other for own, other in rates])
            row["mean_staleness"] = measured.interval("mean_staleness")
        if self.trains:
            row["final_accuracy"] = measured.interval("final_accuracy")
        if self.target is not None:
            row["minutes_to_target"] = measured.interval("minutes_to_target")
            row["rounds_to_target"] = measured.interval("rounds_to_target")
            row["never_reached_target"] = values["reached_target"].count(0.0)
        per_seed = [
            {"seed": seed, "status": status, **{name: values[name][index] for name in values}}
            for index, (seed, status) in enumerate(zip(measured.contender.seeds, measured.statuses, strict=True))
        ]
        return {
            **row,
            "least_share": measured.interval("least_share"),
            "share_of": measured.share_of,
            "worst_debt": measured.interval("worst_debt"),
            "shortfall": measured.interval("largest_shortfall"),
            "largest_shortfall": max(values["largest_shortfall"]),
            "shortfall_at_end": max(values["shortfall_at_end"]),
            "tolerance": measured.tolerance,
            "status": worst_of(list(measured.statuses)),
            "jain": measured.interval("jain"),
            "settings": measured.contender.settings,
            "per_seed": per_seed,
        }


def measure(
    contender: Contender,
    runs: Sequence[RoundColumns],
    promise: JudgedPromise,
    target: float | None,
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
    values = {name: [_figure(one, name) for one in judged] for name in FAIRNESS}
    for name in SLOT_MEASURES if judged[0].slots is not None else ROUND_MEASURES:
        values[name] = [_figure(one, name) for one in judged]
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
    statuses = [one.status for one in judged]
    return Measurement(contender, values, statuses, judged[0].summary.share_of)


def _figure(judged: Judgement, name: str) -> float:
    source: Any = judged.slots if name in SLOT_MEASURES else judged.summary
    return float(getattr(source, name))


def _interval(values: Sequence[float]) -> dict[str, float]:
    mean, half_width = mean_confidence_interval(np.array(values))
    return {"mean": float(mean), "half_width": float(half_width)}


def _world(plan: Mapping[str, Any]) -> Mapping[str, Any]:
    settings: Mapping[str, Any] = plan.get("world_settings") or {}
    return settings


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_nan(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value
