"""What traces hold: when clients may train, how fast they compute, how fast they are connected."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from turnout.errors import DatasetError
from turnout.kernel.arrays import FloatArray, IntArray

DAY = 86400.0
#: A link that is slower than this on average is a mistake of units, or no link.
LEAST_MBPS = 1e-3
PARTS = ("availability", "devices", "links")


@dataclass(frozen=True, slots=True, eq=False)
class AvailabilityTrace:
    """When each client may train.

    Client i owns the intervals ptr[i]:ptr[i+1], each from `starts` up to but without `stops`, in seconds, in order and
    apart. Its record lasts from 0 to `ends[i]`.
    """

    ids: tuple[str, ...]
    ptr: IntArray
    starts: FloatArray
    stops: FloatArray
    ends: FloatArray

    @property
    def shares(self) -> FloatArray:
        """The share of its record that each client is available."""
        seconds = np.bincount(owners(self.ptr), self.stops - self.starts, len(self.ids))
        shares: FloatArray = np.minimum(seconds / self.ends, 1.0)
        return shares

    def take(self, rows: IntArray) -> AvailabilityTrace:
        """The records of these rows, in their order."""
        ptr, kept = _taken(self.ptr, rows)
        return AvailabilityTrace(
            tuple(self.ids[row] for row in rows), ptr, self.starts[kept], self.stops[kept], self.ends[rows]
        )


@dataclass(frozen=True, slots=True, eq=False)
class DeviceTrace:
    """How fast each device computes: in seconds a sample, or as a score of which more is faster."""

    ids: tuple[str, ...]
    values: FloatArray
    unit: Literal["seconds_per_sample", "score"] = "seconds_per_sample"

    def seconds_per_sample(self, typical: float) -> FloatArray:
        """Where there are scores, the device of the median score takes `typical` seconds, and others in proportion."""
        return self.values if self.unit == "seconds_per_sample" else typical * np.median(self.values) / self.values

    def take(self, rows: IntArray) -> DeviceTrace:
        """The devices of these rows, in their order."""
        return DeviceTrace(tuple(self.ids[row] for row in rows), self.values[rows], self.unit)


@dataclass(frozen=True, slots=True, eq=False)
class LinkTrace:
    """How fast each client is connected, in megabits a second.

    Link i owns the rows ptr[i]:ptr[i+1]: from `times` on, and until the next, it carries `down` and `up`. The series
    ends at `ends[i]` and begins again; one of a single row is a constant. A constant may have a deviation: then it is a
    mean, around which each exchange draws its own throughput.
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
        """How long each row holds, in seconds."""
        after = np.empty_like(self.times)
        after[:-1] = self.times[1:]
        after[self.ptr[1:] - 1] = self.ends
        steps: FloatArray = after - self.times
        return steps

    def means(self, values: FloatArray) -> FloatArray:
        """The mean over time of a column, one number a link."""
        owner, steps = owners(self.ptr), self.steps
        sums = np.bincount(owner, values * steps, len(self.ids))
        means: FloatArray = sums / np.bincount(owner, steps, len(self.ids))
        return means

    def take(self, rows: IntArray) -> LinkTrace:
        """The links of these rows, in their order."""
        ptr, kept = _taken(self.ptr, rows)
        return LinkTrace(
            tuple(self.ids[row] for row in rows),
            ptr,
            self.times[kept],
            self.down[kept],
            self.up[kept],
            self.ends[rows],
            self.down_deviations[rows],
            self.up_deviations[rows],
        )


@dataclass(frozen=True, slots=True, eq=False)
class Traces:
    """What has been recorded; None of what has not."""

    availability: AvailabilityTrace | None = None
    devices: DeviceTrace | None = None
    links: LinkTrace | None = None

    @property
    def parts(self) -> dict[str, AvailabilityTrace | DeviceTrace | LinkTrace]:
        """Those that are there, by name."""
        found = {name: getattr(self, name) for name in PARTS}
        return {name: part for name, part in found.items() if part is not None}

    @property
    def fingerprint(self) -> str:
        """The same for the same records, in whatever format they came."""
        digest = hashlib.sha256()
        for name, part in self.parts.items():
            digest.update(name.encode())
            for one in fields(part):
                digest.update(_as_bytes(getattr(part, one.name)))
        return digest.hexdigest()[:16]

    def joined_with(self, other: Traces) -> Traces:
        """Both together; what both hold is refused, as nobody can tell which is meant."""
        twice = [name for name in self.parts if name in other.parts]
        if twice:
            raise DatasetError(f"two files hold {twice[0]}: give one of them")
        return Traces(**{**self.parts, **other.parts})  # type: ignore[arg-type]  # by name, each has its type


def owners(ptr: IntArray) -> IntArray:
    """Whom each row belongs to: what `ptr` says, row by row."""
    return np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))


def offsets(owner: IntArray, clients: int) -> IntArray:
    """The `ptr` of rows that are sorted by their owner."""
    return np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=clients))]).astype(np.int64)


def merged(
    owner: IntArray, starts: FloatArray, stops: FloatArray, clients: int
) -> tuple[IntArray, FloatArray, FloatArray]:
    """Intervals in order and apart, as (ptr, starts, stops): where they overlap or touch, one; empty ones, none."""
    order = np.lexsort((starts, owner))
    order = order[stops[order] > starts[order]]
    owner, starts, stops = owner[order], starts[order], stops[order]
    touching = (owner[1:] == owner[:-1]) & (starts[1:] <= stops[:-1])
    if touching.any():
        # How far anything before it reaches, client by client: only those that need it, as the others are many.
        reach = stops.copy()
        ptr = offsets(owner, clients)
        for client in np.unique(owner[1:][touching]):
            mine = slice(ptr[client], ptr[client + 1])
            reach[mine] = np.maximum.accumulate(stops[mine])
        begins = np.append(True, (owner[1:] != owner[:-1]) | (starts[1:] > reach[:-1]))
        lasts = np.append(begins[1:], True)
        owner, starts, stops = owner[begins], starts[begins], reach[lasts]
    return offsets(owner, clients), starts, stops


def _taken(ptr: IntArray, rows: IntArray) -> tuple[IntArray, IntArray]:
    counts = np.diff(ptr)[rows]
    new = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return new, np.arange(new[-1]) + np.repeat(ptr[rows] - new[:-1], counts)


def _as_bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, Sequence):
        return "\0".join(value).encode()
    array: npt.NDArray[Any] = value
    return np.ascontiguousarray(array).tobytes()
