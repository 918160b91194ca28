"""Logs stored runs to a tracker, as if they were played now."""

from __future__ import annotations

import numpy as np

from turnout.kernel.arrays import FloatArray, exact_rates
from turnout.kernel.guarantee import Guarantee
from turnout.kernel.slots.turns import STARTED
from turnout.lab.analysis.promise import accrual_mask, outcomes_paid, with_outcome
from turnout.lab.columns import RoundColumns
from turnout.tracking import RoundMeter, Tracker


def track_run(tracker: Tracker, columns: RoundColumns, guarantee: Guarantee | None) -> None:
    """Logs the metrics of every round of a stored run; `guarantee` is that of its policy, if it has one."""
    meter = RoundMeter()
    behind = _behind(columns, guarantee)
    for index, record in enumerate(columns.records()):
        metrics = meter.measure(record)
        if behind is not None:
            metrics["promise/turns_behind"] = float(behind[index])
        tracker.log(metrics, record.round)


def turns_behind(columns: RoundColumns, guarantee: Guarantee) -> FloatArray:
    """Returns the turns that the client furthest behind is behind its promise after each round, (T,)."""
    rates, units_per_turn = exact_rates(guarantee.rate, columns.clients)
    accruing = accrual_mask(columns, guarantee.accrual)
    counts = with_outcome(columns, outcomes_paid(guarantee.paid))
    starts = columns.starts.tolist()
    units = np.zeros(columns.clients, dtype=np.int64)
    furthest = np.empty(len(columns), dtype=np.int64)
    for index in range(len(columns)):
        rows = slice(starts[index], starts[index + 1])
        units += accruing[index] * rates
        units[columns.chosen[rows][counts[rows]]] -= units_per_turn
        furthest[index] = units.max()
    behind: FloatArray = furthest / units_per_turn
    return behind


def _behind(columns: RoundColumns, guarantee: Guarantee | None) -> FloatArray | None:
    """Returns None without rounds, without a promise, or if the availability that it refers to was not stored."""
    if guarantee is None or STARTED in columns.metrics:
        return None
    if guarantee.accrual == "available" and (columns.available is None or "available" in columns.absent):
        return None
    return turns_behind(columns, guarantee)
