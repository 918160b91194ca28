"""Traces asked about any moment, for many clients at once; asking changes nothing."""

from __future__ import annotations

from typing import Literal

import numpy as np

from turnout.kernel.arrays import BoolArray, FloatArray, IntArray
from turnout.simulator.traces.data import AvailabilityTrace, LinkTrace, owners


def last_row(keys: FloatArray, low: IntArray, high: IntArray, wanted: FloatArray, *, below: bool = False) -> IntArray:
    """The last row from `low` to `high` whose key is at most `wanted` (or below it), else low − 1; one search each."""
    row = low - 1
    if not len(keys):
        return row
    compare = np.less if below else np.less_equal
    step = 1 << (int((high - low).max(initial=0)).bit_length())
    while step := step >> 1:
        ahead = row + step
        within = ahead < high
        ahead[~within] = 0
        row += step * (within & compare(keys[ahead], wanted))
    return row


class Presence:
    """Who is there at which moment; after its end a record begins again, or its client is gone for good."""

    def __init__(self, trace: AvailabilityTrace, after_end: Literal["loop", "stop"] = "loop") -> None:
        self._trace, self._loops = trace, after_end == "loop"
        self._everyone = np.arange(len(trace.ids))
        self._leaves = trace.stops.copy()
        if self._loops:
            self._stay_over_the_end()

    def available(self, second: float) -> BoolArray:
        """Who is there at this moment."""
        return self._interval(self._everyone, second)[1]

    def stays(self, rows: IntArray, second: float) -> FloatArray:
        """How many more seconds each is there, from this moment on; infinity for ever, 0 if it is not."""
        place, there, inside = self._interval(rows, second)
        seconds = np.zeros(len(rows))
        seconds[there] = self._leaves[place[there]] - inside[there]
        return seconds

    def _interval(self, rows: IntArray, second: float) -> tuple[IntArray, BoolArray, FloatArray]:
        ends, low, high = self._trace.ends[rows], self._trace.ptr[rows], self._trace.ptr[rows + 1]
        inside = np.mod(second, ends) if self._loops else np.full(len(rows), second)
        place = last_row(self._trace.starts, low, high, inside)
        there = place >= low
        there[there] = inside[there] < self._trace.stops[place[there]]
        return place, there, inside

    def _stay_over_the_end(self) -> None:
        """Who is there when its record ends, and when it begins, does not leave in between."""
        ptr, starts, stops, ends = self._trace.ptr, self._trace.starts, self._trace.stops, self._trace.ends
        some = np.flatnonzero(np.diff(ptr))
        first, last = ptr[some], ptr[some + 1] - 1
        over = (starts[first] == 0) & (stops[last] == ends[some])
        always = over & (first == last)
        self._leaves[last[over]] = ends[some[over]] + stops[first[over]]
        self._leaves[last[always]] = np.inf


class Throughput:
    """One direction of the links: how long a transfer takes, from any place of a series on."""

    def __init__(self, trace: LinkTrace, direction: Literal["down", "up"]) -> None:
        self._ptr = trace.ptr
        self._mbps = trace.down if direction == "down" else trace.up
        firsts = trace.times[trace.ptr[:-1]]
        self.lengths: FloatArray = trace.ends - firsts
        self.means = trace.means(self._mbps)
        self._begins = trace.times - np.repeat(firsts, np.diff(trace.ptr))
        carried = np.concatenate([[0.0], np.cumsum(self._mbps * trace.steps)])
        before = carried[trace.ptr[:-1]]
        #: Megabits from the beginning of its series to each row, and of each whole series.
        self._carried = carried[:-1] - before[owners(trace.ptr)]
        self._totals = carried[trace.ptr[1:]] - before

    def seconds(self, links: IntArray, places: FloatArray, megabits: FloatArray) -> FloatArray:
        """How long each transfer takes that begins at a place of its series, in seconds after the series began."""
        lengths, totals = self.lengths[links], self._totals[links]
        places = np.mod(places, lengths)
        wanted = self._within(links, places) + megabits
        loops = np.ceil(wanted / totals) - 1
        rest = np.clip(wanted - loops * totals, np.finfo(np.float64).tiny, totals)
        row = last_row(self._carried, self._ptr[links], self._ptr[links + 1], rest, below=True)
        over = self._begins[row] + (rest - self._carried[row]) / self._mbps[row]
        seconds: FloatArray = np.maximum(loops * lengths + over - places, 0.0)
        return seconds

    def mean_before(self, links: IntArray, places: FloatArray, seconds: float) -> FloatArray:
        """The mean throughput of so many seconds before a place."""
        mean: FloatArray = (self._until(links, places) - self._until(links, places - seconds)) / seconds
        return np.maximum(mean, 0.0)

    def _until(self, links: IntArray, places: FloatArray) -> FloatArray:
        lengths = self.lengths[links]
        loops = np.floor(places / lengths)
        until: FloatArray = loops * self._totals[links] + self._within(links, np.mod(places, lengths))
        return until

    def _within(self, links: IntArray, places: FloatArray) -> FloatArray:
        row = last_row(self._begins, self._ptr[links], self._ptr[links + 1], places)
        within: FloatArray = self._carried[row] + self._mbps[row] * (places - self._begins[row])
        return within
