"""Trace data (availability intervals, device speeds, link throughputs), and lookups in it at any moment."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np

from turnout.errors import DatasetError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray

DAY = 86400.0
#: A lower mean throughput indicates a wrong unit or a dead link.
MIN_MBPS = 1e-3
PARTS = ("availability", "devices", "links")
#: The seconds per sample of a device with the median score, in the middle of recorded devices.
TYPICAL_SECONDS = 0.078


@dataclass(frozen=True, slots=True, eq=False)
class AvailabilityTrace:
    """The intervals in which each client is available.

    Client i owns the intervals ptr[i]:ptr[i+1], sorted and disjoint; each covers `starts` ≤ time < `stops`, in seconds.
    Its record lasts from 0 to `ends[i]`.
    """

    ids: tuple[str, ...]
    ptr: IntArray
    starts: FloatArray
    stops: FloatArray
    ends: FloatArray

    @property
    def shares(self) -> FloatArray:
        """The share of its record in which each client is available, (N,)."""
        seconds = np.bincount(row_owners(self.ptr), self.stops - self.starts, len(self.ids))
        return np.minimum(seconds / self.ends, 1.0)

    def take(self, rows: IntArray) -> AvailabilityTrace:
        """Returns the records of these rows, in the given order."""
        ptr, indices = _take_rows(self.ptr, rows)
        return AvailabilityTrace(
            tuple(self.ids[row] for row in rows), ptr, self.starts[indices], self.stops[indices], self.ends[rows]
        )


@dataclass(frozen=True, slots=True, eq=False)
class DeviceTrace:
    """The speed of each device: seconds per sample, or a score that is larger for faster devices."""

    ids: tuple[str, ...]
    values: FloatArray
    unit: Literal["seconds_per_sample", "score"] = "seconds_per_sample"

    @property
    def seconds_per_sample(self) -> FloatArray:
        """The seconds per sample of each device; a device of the median score takes TYPICAL_SECONDS."""
        if self.unit == "seconds_per_sample":
            return self.values
        return TYPICAL_SECONDS * np.median(self.values) / self.values

    def take(self, rows: IntArray) -> DeviceTrace:
        """Returns the devices of these rows, in the given order."""
        return DeviceTrace(tuple(self.ids[row] for row in rows), self.values[rows], self.unit)


@dataclass(frozen=True, slots=True, eq=False)
class LinkTrace:
    """The throughput of each client's link, in megabits per second.

    Link i owns the rows ptr[i]:ptr[i+1]; each row states the throughputs `down` and `up` from its time until the next
    row. The series ends at `ends[i]` and then repeats; a series of one row is a constant. A constant with a deviation
    is a mean around which each exchange draws its throughput.
    """

    ids: tuple[str, ...]
    ptr: IntArray
    times: FloatArray
    down: FloatArray
    up: FloatArray
    ends: FloatArray
    down_deviations: FloatArray
    up_deviations: FloatArray

    @property
    def steps(self) -> FloatArray:
        """The duration of each row, in seconds."""
        after = np.empty_like(self.times)
        after[:-1] = self.times[1:]
        after[self.ptr[1:] - 1] = self.ends
        return after - self.times

    def means(self, values: FloatArray) -> FloatArray:
        """Returns the time-weighted mean of a column for each link."""
        owner, steps = row_owners(self.ptr), self.steps
        sums = np.bincount(owner, values * steps, len(self.ids))
        return sums / np.bincount(owner, steps, len(self.ids))

    def take(self, rows: IntArray) -> LinkTrace:
        """Returns the links of these rows, in the given order."""
        ptr, indices = _take_rows(self.ptr, rows)
        ids, by_row = tuple(self.ids[row] for row in rows), (self.times, self.down, self.up)
        by_link = (self.ends, self.down_deviations, self.up_deviations)
        return LinkTrace(ids, ptr, *(each[indices] for each in by_row), *(each[rows] for each in by_link))


@dataclass(frozen=True, slots=True, eq=False)
class Traces:
    """The recorded parts; a part that was not recorded is None."""

    availability: AvailabilityTrace | None = None
    devices: DeviceTrace | None = None
    links: LinkTrace | None = None

    @property
    def parts(self) -> dict[str, AvailabilityTrace | DeviceTrace | LinkTrace]:
        """The recorded parts by name."""
        parts = {name: getattr(self, name) for name in PARTS}
        return {name: part for name, part in parts.items() if part is not None}

    @property
    def fingerprint(self) -> str:
        """A digest of the records that does not depend on their file format."""
        digest = hashlib.sha256()
        for name, part in self.parts.items():
            digest.update(name.encode())
            for column in fields(part):
                digest.update(_as_bytes(getattr(part, column.name)))
        return digest.hexdigest()[:16]

    def merge(self, other: Traces) -> Traces:
        """Returns the parts of both; rejects a part that both contain, because either could be meant."""
        duplicates = [name for name in self.parts if name in other.parts]
        if duplicates:
            raise DatasetError(f"{duplicates[0]} occurs in two files: give only one of them")
        return Traces(**{**self.parts, **other.parts})  # type: ignore[arg-type]  # each name has its own type


def row_owners(ptr: IntArray) -> IntArray:
    """Returns the index of the owner of each row, given the offsets `ptr`."""
    return np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))


def row_offsets(owner: IntArray, clients: int) -> IntArray:
    """Returns the offsets `ptr` of rows that are sorted by their owner."""
    return np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=clients))]).astype(np.int64)


def merge_intervals(
    owner: IntArray, starts: FloatArray, stops: FloatArray, clients: int
) -> tuple[IntArray, FloatArray, FloatArray]:
    """Returns sorted, disjoint intervals as (ptr, starts, stops).

    Overlapping and touching intervals of a client are merged; empty intervals are dropped.
    """
    order = np.lexsort((starts, owner))
    order = order[stops[order] > starts[order]]
    owner, starts, stops = owner[order], starts[order], stops[order]
    touching = (owner[1:] == owner[:-1]) & (starts[1:] <= stops[:-1])
    if touching.any():
        # The running maximum of stops per client; computed only for clients with touching intervals, which are few.
        reach = stops.copy()
        ptr = row_offsets(owner, clients)
        for client in np.unique(owner[1:][touching]):
            own_rows = slice(ptr[client], ptr[client + 1])
            reach[own_rows] = np.maximum.accumulate(stops[own_rows])
        is_first = np.append(True, (owner[1:] != owner[:-1]) | (starts[1:] > reach[:-1]))
        is_last = np.append(is_first[1:], True)
        owner, starts, stops = owner[is_first], starts[is_first], reach[is_last]
    return row_offsets(owner, clients), starts, stops


def _take_rows(ptr: IntArray, rows: IntArray) -> tuple[IntArray, IntArray]:
    counts = np.diff(ptr)[rows]
    new_ptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return new_ptr, np.arange(new_ptr[-1]) + np.repeat(ptr[rows] - new_ptr[:-1], counts)


def _as_bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, Sequence):
        return "\0".join(value).encode()
    return np.ascontiguousarray(value).tobytes()


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
        megabits = self._megabits_until(links, positions) - self._megabits_until(links, positions - seconds)
        return np.maximum(megabits / seconds, 0.0)

    def _megabits_until(self, links: IntArray, positions: FloatArray) -> FloatArray:
        lengths = self.lengths[links]
        loops = np.floor(positions / lengths)
        megabits: FloatArray = loops * self._totals[links] + self._megabits_at(links, np.mod(positions, lengths))
        return megabits

    def _megabits_at(self, links: IntArray, positions: FloatArray) -> FloatArray:
        row = last_row(self._row_offsets, self._ptr[links], self._ptr[links + 1], positions)
        megabits: FloatArray = self._cumulative[row] + self._mbps[row] * (positions - self._row_offsets[row])
        return megabits
