"""Validation of the rows of trace files, and their conversion to traces.

Rules: rows can be in any order. Overlapping and touching intervals are merged; an interval of length zero only states
that its client exists. If a client has several states or throughputs for the same moment, the last row counts; each
holds until the next one. A client is unavailable before its first state. Without an `end`, all records end at the
latest moment of the file, rounded up to whole days if that is longer than a day. Without an `end`, the last throughput
of a series holds as long as the previous one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray, as_number
from turnout.lab.worlds.traces.data import (
    DAY,
    MIN_MBPS,
    AvailabilityTrace,
    DeviceTrace,
    LinkTrace,
    Traces,
    merge_intervals,
    row_offsets,
)

ON_STATES, OFF_STATES = ("1", "on", "true"), ("0", "off", "false")
#: The largest number in a file, about thirty years in seconds; keeps the arithmetic of the simulator exact enough.
MAX_NUMBER = 1e9
#: The largest credible ratio of standard deviation to mean.
MAX_DEVIATION = 10.0


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of a file and its location."""

    file: str
    location: str
    description: str

    def __str__(self) -> str:
        return (
            f"{self.file}, {self.location}: {self.description}" if self.location else f"{self.file}: {self.description}"
        )


@dataclass(frozen=True, slots=True)
class TraceLayout:
    """The layout of a file with other column names or state values than the standard ones.

    `columns`: the name in the file for each standard column, such as {"score": "CPU_F_AI_Score"}. `on`: the states that
    mean available; all other states then mean unavailable. `drop_before` and `end`: availability before the first and
    after the second of these seconds is dropped, and records end at `end`.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    on: Sequence[str] = ()
    drop_before: float = 0.0
    end: float | None = None

    def __post_init__(self) -> None:
        for column in self.columns:
            if column not in KNOWN_COLUMNS:
                raise SettingError(f"there is no column {column!r}; there are {', '.join(KNOWN_COLUMNS)}")
        as_number("drop_before", self.drop_before, SettingError, least=0, most=MAX_NUMBER)
        if self.end is not None:
            as_number("end", self.end, SettingError, above=self.drop_before, most=MAX_NUMBER)

    def file_column(self, column: str) -> str:
        """Returns the name in the file of a standard column."""
        return self.columns.get(column, column)


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """One part of a file: its clients, the owner of each row, and the columns.

    `location` returns the location of a row in the file, for error messages.
    """

    file: str
    ids: Sequence[str]
    owner: IntArray
    columns: Mapping[str, npt.NDArray[Any] | Sequence[Any]]
    location: Callable[[int], str]

    def name(self, row: int) -> str:
        """Returns the client of a row, quoted for messages."""
        return repr(self.ids[self.owner[row]])


_RATES = (f"{way}{what}_{unit}" for unit in ("mbps", "kbps") for what in ("", "_deviation") for way in ("down", "up"))
KNOWN_COLUMNS = ("client", "start", "stop", "time", "state", "end", "seconds_per_sample", "score", *_RATES, "ptr")


def part_for(columns: Sequence[str]) -> str | None:
    """Returns the part that these columns describe, or None."""
    names = set(columns)
    if {"start", "stop"} <= names or {"time", "state"} <= names:
        return "availability"
    if names & {"seconds_per_sample", "score"}:
        return "devices"
    return "links" if names & {"down_mbps", "down_kbps"} else None


def build_traces(parts: Mapping[str, Rows], layout: TraceLayout, problems: list[Problem]) -> Traces:
    """Builds every part from its valid rows, and adds the invalid ones to `problems`."""
    build = {"availability": _availability, "devices": _devices, "links": _links}
    return Traces(**{part: build[part](_TableReader(rows, problems), layout) for part, rows in parts.items()})  # type: ignore[arg-type]


class _TableReader:
    """Reads columns as numbers; reports each invalid row once and marks it as invalid."""

    def __init__(self, rows: Rows, problems: list[Problem]) -> None:
        self.rows, self._problems = rows, problems
        self.valid: BoolArray = np.ones(len(rows.owner), dtype=np.bool_)
        self.clients = len(rows.ids)

    def has(self, column: str) -> bool:
        return column in self.rows.columns

    def numbers(self, column: str, *, above: float | None = None) -> FloatArray:
        """Returns finite numbers that are not negative, or above a bound."""
        values_in_file = self.rows.columns[column]
        values = _as_floats(values_in_file)
        largest = f", and at most {MAX_NUMBER:g}"
        if above is None:
            invalid, expected = ~((values >= 0) & (values <= MAX_NUMBER)), f"a number, not negative{largest}"
        else:
            invalid, expected = ~((values > above) & (values <= MAX_NUMBER)), f"a number above {above:g}{largest}"
        self.reject(invalid, lambda row: f"{column} must be {expected}, not {_format_value(values_in_file[row])}")
        return values

    def rates(self, column: str) -> FloatArray | None:
        """Returns megabits per second from a column in either unit."""
        if self.has(f"{column}_mbps"):
            return self.numbers(f"{column}_mbps")
        return self.numbers(f"{column}_kbps") / 1000 if self.has(f"{column}_kbps") else None

    def ends(self) -> FloatArray:
        """Returns the end of each client's record, which all of its rows state; NaN without a valid row."""
        ends = np.full(self.clients, np.nan)
        if not self.has("end"):
            return ends
        values, owner = self.numbers("end", above=0), self.rows.owner
        ends[owner[self.valid][::-1]] = values[self.valid][::-1]
        self.reject(
            values != ends[owner],
            lambda row: (
                f"end of client {self.rows.name(row)} is {values[row]:g} here and {ends[owner[row]]:g} before: it "
                "must be the same in all rows of a client"
            ),
        )
        return ends

    def reject(self, invalid: BoolArray, description: Callable[[int], str]) -> None:
        """Reports each row that is invalid and was not reported before."""
        for row in np.flatnonzero(invalid & self.valid):
            self._problems.append(Problem(self.rows.file, self.rows.location(int(row)), description(int(row))))
        self.valid &= ~invalid

    def reject_duplicates(self) -> None:
        """Rejects all but the first row of a client."""
        _, first = np.unique(self.rows.owner, return_index=True)
        is_duplicate = np.ones(len(self.rows.owner), dtype=np.bool_)
        is_duplicate[first] = False
        first_row = np.zeros(self.clients, dtype=np.int64)
        first_row[self.rows.owner[first]] = first
        self.reject(
            is_duplicate,
            lambda row: (
                f"client {self.rows.name(row)} is already defined "
                f"({self.rows.location(int(first_row[self.rows.owner[row]]))}): define each client once"
            ),
        )


def _availability(reader: _TableReader, layout: TraceLayout) -> AvailabilityTrace:
    by_states = reader.has("state")
    starts = reader.numbers("time" if by_states else "start")
    stops = starts if by_states else reader.numbers("stop")
    reader.reject(stops < starts, lambda row: f"stop {stops[row]:g} lies before start {starts[row]:g}")
    states = _parse_states(reader, layout) if by_states else None
    ends = _record_ends(reader, layout, stops)
    reader.reject(
        (stops > ends[reader.rows.owner]) & (layout.end is None),
        lambda row: (
            f"{'time' if by_states else 'stop'} {stops[row]:g} lies after {ends[reader.rows.owner[row]]:g}, "
            "the end of its client's record"
        ),
    )
    owner, starts, stops = reader.rows.owner[reader.valid], starts[reader.valid], stops[reader.valid]
    if states is not None:
        owner, starts, stops = _intervals(owner, starts, states[reader.valid], ends)
    starts, stops = np.maximum(starts, layout.drop_before), np.minimum(stops, ends[owner])
    return AvailabilityTrace(tuple(reader.rows.ids), *merge_intervals(owner, starts, stops, reader.clients), ends)


def _parse_states(reader: _TableReader, layout: TraceLayout) -> BoolArray:
    states, index = _distinct(reader.rows.columns["state"])
    normalised = [_normalise_state(state) for state in states]
    on = [_normalise_state(state) for state in layout.on] or ON_STATES
    known = np.array([bool(layout.on) or state in ON_STATES + OFF_STATES for state in normalised], dtype=np.bool_)
    reader.reject(
        ~known[index],
        lambda row: (
            f"state {_format_value(reader.rows.columns['state'][row])} is not known: write {', '.join(ON_STATES)} or "
            f"{', '.join(OFF_STATES)}, or list the states that mean available in `on` of a Layout"
        ),
    )
    return np.array([state in on for state in normalised], dtype=np.bool_)[index]


def _distinct(values: npt.NDArray[Any] | Sequence[Any]) -> tuple[list[Any], IntArray]:
    """Returns the distinct values, and the index of each value in them.

    An array of strings would reserve the length of the longest one for each of them.
    """
    if isinstance(values, np.ndarray):
        distinct, index = np.unique(values, return_inverse=True)
        return distinct.tolist(), index
    indices: dict[Any, int] = {}
    index = np.array([indices.setdefault(value, len(indices)) for value in values], dtype=np.int64)
    return list(indices), index


def _record_ends(reader: _TableReader, layout: TraceLayout, moments: FloatArray) -> FloatArray:
    if layout.end is not None:
        return np.full(reader.clients, float(layout.end))
    latest = float(moments[reader.valid].max(initial=0.0))
    default = math.ceil(latest / DAY) * DAY if latest > DAY else latest or DAY
    ends = reader.ends()
    return np.where(np.isnan(ends), default, ends)


def _intervals(
    owner: IntArray, times: FloatArray, on: BoolArray, ends: FloatArray
) -> tuple[IntArray, FloatArray, FloatArray]:
    """Returns intervals from each state that means available to the next state of the same client."""
    owner, times, on = _last_row_per_moment(owner, times, on)
    until = np.append(times[1:], 0.0)
    last = np.append(owner[1:] != owner[:-1], True)[: len(owner)]
    until = np.where(last, ends[owner], until[: len(owner)])
    return owner[on], times[on], until[on]


def _devices(reader: _TableReader, layout: TraceLayout) -> DeviceTrace:  # noqa: ARG001
    unit = "score" if reader.has("score") else "seconds_per_sample"
    reader.reject(
        np.full(len(reader.valid), reader.has("score") and reader.has("seconds_per_sample")),
        lambda row: "score and seconds_per_sample exclude each other: give one of them",  # noqa: ARG005
    )
    values = reader.numbers(unit, above=0)
    reader.reject_duplicates()
    owner = reader.rows.owner[reader.valid]
    return DeviceTrace(tuple(reader.rows.ids[row] for row in owner), values[reader.valid], unit)  # type: ignore[arg-type]


def _links(reader: _TableReader, layout: TraceLayout) -> LinkTrace:  # noqa: ARG001
    down = reader.rates("down")
    assert down is not None  # the column that identifies this part
    up = reader.rates("up")
    up = down if up is None else up
    zeros = np.zeros(len(down))
    deviations = [reader.rates(f"{direction}_deviation") for direction in ("down", "up")]
    down_spread, up_spread = (zeros if column is None else column for column in deviations)
    times = reader.numbers("time") if reader.has("time") else zeros
    ends = reader.ends()
    until = ends[reader.rows.owner]
    reader.reject(
        until <= times, lambda row: f"time {times[row]:g} must lie before {until[row]:g}, the end of its series"
    )
    if not reader.has("time"):
        reader.reject_duplicates()
    in_series = np.bincount(reader.rows.owner, minlength=reader.clients)[reader.rows.owner] > 1
    reader.reject(
        in_series & ((down_spread > 0) | (up_spread > 0)),
        lambda row: f"client {reader.rows.name(row)} has a series and a deviation: a deviation is for constants only",
    )
    rows = np.flatnonzero(reader.valid)
    owner, times, rows = _last_row_per_moment(reader.rows.owner[rows], times[rows], rows)
    clients = np.unique(owner)
    ptr = row_offsets(np.searchsorted(clients, owner), len(clients))
    first = rows[ptr[:-1]]
    trace = LinkTrace(
        tuple(reader.rows.ids[client] for client in clients),
        ptr,
        times,
        down[rows],
        up[rows],
        _series_ends(ptr, times, ends[clients]),
        down_spread[first],
        up_spread[first],
    )
    return trace.take(_credible_links(reader, trace, first))


def _series_ends(ptr: IntArray, times: FloatArray, stated_ends: FloatArray) -> FloatArray:
    last = ptr[1:] - 1
    step = np.where(last > ptr[:-1], times[last] - times[np.maximum(last - 1, 0)], 1.0)
    return np.where(np.isnan(stated_ends), times[last] + step, stated_ends)


def _credible_links(reader: _TableReader, trace: LinkTrace, first: IntArray) -> IntArray:
    """Returns the links with a credible throughput; the others are reported at their first row."""
    _check_rates(reader, first, "down", trace.means(trace.down), trace.down_deviations)
    _check_rates(reader, first, "up", trace.means(trace.up), trace.up_deviations)
    return np.flatnonzero(reader.valid[first])


def _check_rates(
    reader: _TableReader, first: IntArray, direction: str, means_of_links: FloatArray, deviations: FloatArray
) -> None:
    means, spreads = np.full(len(reader.valid), np.inf), np.zeros(len(reader.valid))
    means[first], spreads[first] = means_of_links, deviations
    reader.reject(
        means < MIN_MBPS,
        lambda row: (
            f"client {reader.rows.name(row)} has {means[row]:g} Mbps {direction} on average: at least {MIN_MBPS:g} is "
            "expected; check the unit"
        ),
    )
    most = f"{MAX_DEVIATION:g} times its mean"
    reader.reject(
        spreads > MAX_DEVIATION * means,
        lambda row: f"the {direction} deviation of client {reader.rows.name(row)} is more than {most}",
    )


def _last_row_per_moment(owner: IntArray, times: FloatArray, *columns: npt.NDArray[Any]) -> tuple[Any, ...]:
    """Returns rows sorted by client and time, with the last row of each moment."""
    order = np.lexsort((times, owner))  # a stable sort keeps the order of rows of the same moment
    owner, times = owner[order], times[order]
    last = np.append((owner[1:] != owner[:-1]) | (times[1:] != times[:-1]), True)[: len(owner)]
    return owner[last], times[last], *(column[order][last] for column in columns)


def _as_floats(values: npt.NDArray[Any] | Sequence[Any]) -> FloatArray:
    """Returns NaN for values that are not numbers."""
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return np.array([_as_float(value) for value in values])


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _normalise_state(state: object) -> str:
    text = str(state).strip().lower()
    return text.removesuffix(".0")


def _format_value(value: Any) -> str:
    """Returns the value as it is written in the file."""
    value = value.item() if isinstance(value, np.generic) else value
    return "missing" if value in ("", None) else f"{value:g}" if isinstance(value, float) else repr(value)
