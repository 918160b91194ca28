"""Per-client statistics that several policies learn from reports: last losses and mean times."""

from __future__ import annotations

import numpy as np

from turnout.errors import SettingError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray, as_number
from turnout.kernel.rounds import TIMED_OUTCOMES, RoundReport
from turnout.policies.base import Memory


class LastLosses(Memory):
    """The last loss that each client reported.

    The value is +inf before a client's first turn, and −inf if it had turns but never reported a loss.
    """

    values: FloatArray

    def __init__(self, clients: int) -> None:
        super().__init__(clients)
        self._remember(values=np.inf)

    @property
    def tried(self) -> BoolArray:
        """The clients that have had a turn."""
        had: BoolArray = self.values < np.inf
        return had

    def guessed(self) -> FloatArray:
        """Returns the last losses, with the mean of all reported losses (1 if there is none) for missing ones."""
        reported = self.values[np.isfinite(self.values)]
        guess = float(reported.mean()) if len(reported) else 1.0
        losses: FloatArray = np.where(self.values == -np.inf, guess, self.values)
        return losses

    def learn_from(self, report: RoundReport) -> None:
        """Stores the losses of a report; a client that reported none keeps its earlier loss."""
        rows = report.clients
        if report.losses is not None:
            reported = ~np.isnan(report.losses)
            self.values[rows[reported]] = report.losses[reported]
            rows = rows[~reported]
        self.values[rows[self.values[rows] == np.inf]] = -np.inf


class MeanTimes(Memory):
    """The mean time of each client, in seconds, and the longest time of all.

    A client that arrived contributes its time, a late one its deadline until its true time is known; a failure
    contributes nothing.
    """

    totals: FloatArray
    counts: IntArray
    longest: float

    def __init__(self, clients: int) -> None:
        super().__init__(clients)
        self._remember(totals=0.0, counts=0)
        self._remember_shared(longest=0.0)

    @property
    def measured(self) -> BoolArray:
        """The clients with a known time."""
        known: BoolArray = self.counts > 0
        return known

    def means(self) -> FloatArray:
        """Returns the mean seconds of each client, 0 if none are known."""
        return self.totals / np.maximum(self.counts, 1)

    def learn_from(self, report: RoundReport) -> None:
        """Adds the times of a report."""
        late = report.late_arrivals
        if late is not None:
            np.add.at(self.totals, late.clients, late.exchange_times - late.deadlines)
            self.longest = max(self.longest, float(late.exchange_times.max(initial=0.0)))
        timed = report.with_outcome(*TIMED_OUTCOMES)
        rows, times = report.clients[timed], report.exchange_times[timed]
        self.totals[rows] += times
        self.counts[rows] += 1
        self.longest = max(self.longest, float(times.max(initial=0.0)))

    def forget(self, rows: IntArray) -> None:
        """Removes the times of these clients.

        If they have times, the longest time of all may be theirs: it becomes the largest mean time of the others.
        """
        had_times = self.counts[rows].any()
        super().forget(rows)
        if had_times:
            self.longest = float(self.means().max(initial=0.0))


def as_share(field: str, value: object) -> float:
    """Returns a setting after checking that it lies between 0 and 1."""
    return as_number(field, value, SettingError, least=0, most=1)


def part_of(share: float, count: int) -> int:
    """Returns share · count rounded down; rounding errors are ignored, so that 0.29 of 100 is 29."""
    return int(share * count + 1e-9)
