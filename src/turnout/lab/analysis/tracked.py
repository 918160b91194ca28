"""Logs the rounds of runs to trackers, as they are stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from turnout.kernel.arrays import FloatArray, IntArray, exact_rates
from turnout.kernel.guarantee import Guarantee
from turnout.kernel.slots.turns import STARTED
from turnout.lab.analysis.judging import guarantee_of_plan
from turnout.lab.analysis.promise import accrual_mask, counted_outcomes, knows_available, with_outcome
from turnout.lab.columns import RoundColumns
from turnout.tracking import RoundMeter, Tracker


class TrackedRun:
    """Logs one run to trackers, part by part.

    How far clients are behind is logged in runs with rounds, if the store holds what the promise refers to.

    Args:
        trackers: The trackers.
        plan: The plan of the run, as its store holds it.
    """

    def __init__(self, trackers: Sequence[Tracker], plan: Mapping[str, Any]) -> None:
        self.rounds = 0
        self._trackers, self._plan, self._meter = trackers, plan, RoundMeter()
        self._owed: IntArray | None = None

    def log(self, columns: RoundColumns) -> None:
        """Logs the metrics of the next rounds."""
        if self._owed is None:
            self._owed = np.zeros(columns.clients, dtype=np.int64)
        behind = _behind(columns, guarantee_of_plan(self._plan, columns.clients), self._owed)
        for index, record in enumerate(columns.records()):
            metrics = self._meter.measure(record)
            if behind is not None:
                metrics["promise/turns_behind"] = float(behind[index])
            for tracker in self._trackers:
                tracker.log(metrics, record.round)
        self.rounds += len(columns)

    def close(self) -> None:
        """Closes the trackers."""
        for tracker in self._trackers:
            tracker.close()


def turns_behind(columns: RoundColumns, guarantee: Guarantee, owed: IntArray | None = None) -> FloatArray:
    """Returns the turns that the client furthest behind is behind its promise after each round, (T,).

    Args:
        columns: The rounds.
        guarantee: The promise.
        owed: What each client is owed before the first round, in exact units; it is changed to that after the last.
    """
    rates, units_per_turn = exact_rates(guarantee.rate, columns.clients)
    accruing = accrual_mask(columns, guarantee.accrual)
    counts = with_outcome(columns, counted_outcomes(guarantee.counts))
    starts = columns.starts.tolist()
    units = np.zeros(columns.clients, dtype=np.int64) if owed is None else owed
    furthest = np.empty(len(columns), dtype=np.int64)
    for index in range(len(columns)):
        rows = slice(starts[index], starts[index + 1])
        units += accruing[index] * rates
        units[columns.chosen[rows][counts[rows]]] -= units_per_turn
        furthest[index] = units.max()
    behind: FloatArray = furthest / units_per_turn
    return behind


def _behind(columns: RoundColumns, guarantee: Guarantee | None, owed: IntArray) -> FloatArray | None:
    """Returns None without rounds, without a promise, or if the availability that it refers to was not stored."""
    if guarantee is None or STARTED in columns.metrics:
        return None
    if guarantee.accrual == "available" and not knows_available(columns):
        return None
    return turns_behind(columns, guarantee, owed)
