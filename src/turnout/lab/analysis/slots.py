"""Figures of runs without rounds: updates per second, and how old the model was from which each update began."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from turnout.errors import ReportError, SettingError
from turnout.kernel.arrays import FloatArray, IntArray, as_count
from turnout.kernel.slots.turns import FINISHED, STARTED
from turnout.lab.analysis.promise import with_outcome
from turnout.lab.columns import RoundColumns


@dataclass(frozen=True, slots=True)
class SlotMetrics:
    """Figures of a run without rounds.

    Attributes:
        seconds: The time at which the last turn was given.
        updates: The number of updates that had arrived by then.
        mean_turn: The mean duration of a turn in seconds.
        mean_staleness: The mean staleness of all updates, in versions of the model.
        largest_staleness: The largest staleness.
    """

    seconds: float
    updates: int
    mean_turn: float
    mean_staleness: float
    largest_staleness: int

    @property
    def updates_per_second(self) -> float:
        """The number of updates per second."""
        return self.updates / self.seconds if self.seconds > 0 else float("nan")


def slot_metrics(columns: RoundColumns, updates_per_version: int = 1) -> SlotMetrics:
    """Returns the figures of a run without rounds.

    Args:
        columns: The records of the turns.
        updates_per_version: The number of updates after which the server makes a new version of the model.

    Raises:
        ReportError: If the run has rounds.
    """
    started, finished = turn_clocks(columns)
    arrived = with_outcome(columns, ("arrived",))
    seconds = float(started.max(initial=0.0))
    stale = staleness(columns, updates_per_version)
    return SlotMetrics(
        seconds=seconds,
        updates=int(np.count_nonzero(arrived & (finished <= seconds))),
        mean_turn=float((finished - started).mean()) if len(started) else float("nan"),
        mean_staleness=float(stale.mean()) if len(stale) else float("nan"),
        largest_staleness=int(stale.max(initial=0)),
    )


def staleness(columns: RoundColumns, updates_per_version: int = 1) -> IntArray:
    """Returns the staleness of each update, in the order in which they arrived.

    It is the number of versions that the server made of the model between the start of the turn and its end. Failed and
    late turns bring no update. A turn that begins at the moment in which another one ends begins with its update.

    Args:
        columns: The records of the turns.
        updates_per_version: The number of updates of a new version.
    """
    size = as_count("updates_per_version", updates_per_version, SettingError)
    started, finished = turn_clocks(columns)
    kept = np.flatnonzero(with_outcome(columns, ("arrived",)))
    in_order = kept[np.lexsort((columns.rounds[kept], finished[kept]))]
    before_end = np.arange(len(in_order)) // size
    before_start = np.searchsorted(finished[in_order], started[in_order], side="right") // size
    versions: IntArray = np.maximum(before_end - before_start, 0)
    return versions


def turn_clocks(columns: RoundColumns) -> tuple[FloatArray, FloatArray]:
    """Returns when each turn began and ended, in seconds.

    Raises:
        ReportError: If the run has rounds.
    """
    if STARTED not in columns.metrics or FINISHED not in columns.metrics:
        raise ReportError("the run has rounds: play it with concurrency for figures of turns without rounds")
    return columns.metrics[STARTED], columns.metrics[FINISHED]
