"""Stateless lookups in traces at any moment, for many clients at once."""

from __future__ import annotations

from typing import Literal

import numpy as np

from turnout.kernel.arrays import BoolArray, FloatArray, IntArray
from turnout.lab.worlds.traces.data import AvailabilityTrace, LinkTrace, row_owners


def last_row(keys: FloatArray, low: IntArray, high: IntArray, target: FloatArray, *, below: bool = False) -> IntArray:
    """Returns the last row in low ≤ row < high whose key is at most `target`, or low − 1 if there is none.

    One binary search per element runs in parallel; the keys must be sorted within each range.

    Args:
        keys: The keys of all rows.
        low: The first row of each range.
        high: The end of each range, exclusive.
        target: The value to compare with, one per range.
        below: Whether the key must be below `target` instead of at most `target`.
    """
    row = low - 1
    if not len(keys):
        return row
    compare = np.less if below else np.less_equal
    step = 1 << (int((high - low).max(initial=0)).bit_length())
    while step := step >> 1:
        candidate = row + step
        in_range = candidate < high
        candidate[~in_range] = 0
        row += step * (in_range & compare(keys[candidate], target))
    return row


class PresenceTimes:
    """Availability at any moment; a record repeats after its end."""

    def __init__(self, trace: AvailabilityTrace) -> None:
        self._trace = trace
        self._all_rows = np.arange(len(trace.ids))
        self._departures = trace.stops.copy()
        self._extend_over_end()

    def available(self, second: float) -> BoolArray:
        """Returns which clients are available at this second, (N,)."""
        return self._interval(self._all_rows, second)[1]

    def remaining_seconds(self, rows: IntArray, second: float) -> FloatArray:
        """Returns for how many more seconds each client is available: infinity for ever, 0 if it is not."""
        interval, available, moment = self._interval(rows, second)
        seconds = np.zeros(len(rows))
        seconds[available] = self._departures[interval[available]] - moment[available]
        return seconds

    def _interval(self, rows: IntArray, second: float) -> tuple[IntArray, BoolArray, FloatArray]:
        ends, low, high = self._trace.ends[rows], self._trace.ptr[rows], self._trace.ptr[rows + 1]
        moment = np.mod(second, ends)
        interval = last_row(self._trace.starts, low, high, moment)
        available = interval >= low
        available[available] = moment[available] < self._trace.stops[interval[available]]
        return interval, available, moment

    def _extend_over_end(self) -> None:
        """Joins an interval at the end of a record with the one at its beginning."""
        ptr, starts, stops, ends = self._trace.ptr, self._trace.starts, self._trace.stops, self._trace.ends
        non_empty = np.flatnonzero(np.diff(ptr))
        first, last = ptr[non_empty], ptr[non_empty + 1] - 1
        continues = (starts[first] == 0) & (stops[last] == ends[non_empty])
        always = continues & (first == last)
        self._departures[last[continues]] = ends[non_empty[continues]] + stops[first[continues]]
        self._departures[last[always]] = np.inf


class Throughput:
    """One direction of the links: the duration of transfers that start at any position of a series."""

    def __init__(self, trace: LinkTrace, direction: Literal["down", "up"]) -> None:
        self._ptr = trace.ptr
        self._mbps = trace.down if direction == "down" else trace.up
        firsts = trace.times[trace.ptr[:-1]]
        self.lengths: FloatArray = trace.ends - firsts
        self.means = trace.means(self._mbps)
        self._row_offsets = trace.times - np.repeat(firsts, np.diff(trace.ptr))
        cumulative = np.concatenate([[0.0], np.cumsum(self._mbps * trace.steps)])
        before = cumulative[trace.ptr[:-1]]
        #: Megabits from the start of the series to each row, and over the whole series.
        self._cumulative = cumulative[:-1] - before[row_owners(trace.ptr)]
        self._totals = cumulative[trace.ptr[1:]] - before

    def transfer_seconds(self, links: IntArray, positions: FloatArray, megabits: FloatArray) -> FloatArray:
        """Returns the duration of each transfer; `positions` are seconds after the start of the series."""
        lengths, totals = self.lengths[links], self._totals[links]
        positions = np.mod(positions, lengths)
        target = self._megabits_at(links, positions) + megabits
        loops = np.ceil(target / totals) - 1
        remainder = np.clip(target - loops * totals, np.finfo(np.float64).tiny, totals)
        row = last_row(self._cumulative, self._ptr[links], self._ptr[links + 1], remainder, below=True)
        finished = self._row_offsets[row] + (remainder - self._cumulative[row]) / self._mbps[row]
        seconds: FloatArray = np.maximum(loops * lengths + finished - positions, 0.0)
        return seconds

    def mean_before(self, links: IntArray, positions: FloatArray, seconds: float) -> FloatArray:
        """Returns the mean throughput over the `seconds` before each position."""
        mean: FloatArray = (
            self._megabits_until(links, positions) - self._megabits_until(links, positions - seconds)
        ) / seconds
        return np.maximum(mean, 0.0)

    def _megabits_until(self, links: IntArray, positions: FloatArray) -> FloatArray:
        lengths = self.lengths[links]
        loops = np.floor(positions / lengths)
        megabits: FloatArray = loops * self._totals[links] + self._megabits_at(links, np.mod(positions, lengths))
        return megabits

    def _megabits_at(self, links: IntArray, positions: FloatArray) -> FloatArray:
        row = last_row(self._row_offsets, self._ptr[links], self._ptr[links + 1], positions)
        megabits: FloatArray = self._cumulative[row] + self._mbps[row] * (positions - self._row_offsets[row])
        return megabits
