"""Short summaries of runs, small enough to compare many runs at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from turnout.dashboard.sources.ledger import CLOCKS
from turnout.kernel.arrays import FloatArray, IntArray
from turnout.kernel.slots.turns import FINISHED
from turnout.lab.analysis.metrics import JudgedPromise, Judgement, jain_index, judged_tolerance, known_guarantee
from turnout.lab.analysis.promise import knows_available
from turnout.lab.analysis.slots import SlotMetrics, slot_metrics, turn_clocks
from turnout.lab.columns import RoundColumns
from turnout.lab.runs.tables import RunInfo


@dataclass(frozen=True, slots=True, eq=False)
class Digest:
    """Summary of a run: durations of its rounds, turns of its clients, and metrics (rounds and values by name).

    Without rounds, a decision counts as a round that lasts until the next one, and metrics are ordered by the end of
    the turns: their rounds are the numbers of turns that had ended. `judgement` says how the run kept the promise by
    which it is judged; None if the store lacks the availability that the promise refers to. `clock` is when each round,
    or turn in that order, ended.
    """

    promise: JudgedPromise
    rounds: int
    seconds: FloatArray
    turns: IntArray
    metrics: dict[str, tuple[IntArray, FloatArray]]
    judgement: Judgement | None
    clock: FloatArray
    slots: SlotMetrics | None = None

    @property
    def staleness(self) -> float | None:
        """The mean staleness of updates, in versions if these are recorded, else in updates; None with rounds."""
        if self.slots is None:
            return None
        return float(self.metrics["staleness"][1].mean()) if "staleness" in self.metrics else self.slots.mean_staleness

    @property
    def figures(self) -> dict[str, float | None]:
        """The scalar figures of the comparison table."""
        return {
            "mean_round": float(self.seconds.mean()),
            "p95_round": float(np.percentile(self.seconds, 95)),
            "total_time": float(self.seconds.sum()),
            "least_share": None if self.judgement is None else self.judgement.summary.least_share,
            "jain": jain_index(self.turns),
            "shortfall": None if self.judgement is None else max(self.judgement.summary.largest_shortfall, 0.0),
            "accuracy": None if "accuracy" not in self.metrics else float(self.metrics["accuracy"][1][-1]),
            "rate": None if self.slots is None else self.slots.updates_per_second,
            "mean_turn": None if self.slots is None else self.slots.mean_turn,
            "staleness": self.staleness,
        }


def make_digest(columns: RoundColumns, promise: JudgedPromise, info: RunInfo) -> Digest:
    """Returns the digest of a run that has at least one round, judged by a promise and its own tolerance."""
    judgement = None
    if promise.accrual == "always" or knows_available(columns):
        judgement = promise.judge(columns, judged_tolerance(known_guarantee(info), None))
    is_timed = FINISHED in columns.metrics
    order = np.argsort(columns.metrics[FINISHED], kind="stable") if is_timed else np.arange(len(columns))
    metrics: dict[str, Any] = {}
    for name, values in columns.metrics.items():
        known = np.isfinite(values)
        if (absent := columns.absent.get(f"metrics.{name}")) is not None:
            known &= ~absent
        if known.any() and name not in CLOCKS:
            known = known[order]
            metrics[name] = (columns.rounds[known], values[order][known])
    if not is_timed:
        durations = columns.durations
        return Digest(promise, len(columns), durations, columns.turns, metrics, judgement, np.cumsum(durations))
    started, finished = turn_clocks(columns)
    between, slots = np.diff(started, prepend=0.0), slot_metrics(columns)
    return Digest(promise, len(columns), between, columns.turns, metrics, judgement, finished[order], slots)
