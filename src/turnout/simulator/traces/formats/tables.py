"""From rows as files give them to traces: what is told by a rule, and what is refused with its place.

Rules: rows may come in any order. Intervals that overlap or touch become one; one of no length says only that its
client exists. Of states or throughputs of one moment the last row counts; each holds until the next. A client is
unavailable before its first state. A record without an `end` ends with the latest moment of its file, for all clients
alike, and if that is longer than a day, with the whole day; the last throughput of a series without one holds as long
as the one before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray, as_number
from turnout.simulator.traces.data import (
    DAY,
    LEAST_MBPS,
    AvailabilityTrace,
    DeviceTrace,
    LinkTrace,
    Traces,
    merged,
    offsets,
)

ON, OFF = ("1", "on", "true"), ("0", "off", "false")
#: Within these the arithmetic of the simulator is exact enough: thirty years.
LARGEST = 1e9
#: A deviation of more than ten times the mean is no measurement.
LARGEST_DEVIATION = 10.0


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong with a file, and where."""

    file: str
    place: str
    what: str

    def __str__(self) -> str:
        return f"{self.file}, {self.place}: {self.what}" if self.place else f"{self.file}: {self.what}"


@dataclass(frozen=True, slots=True)
class Layout:
    """How a file that is not in our format says the same.

    `columns`: its word for each of ours, such as {"score": "CPU_F_AI_Score"}. `on`: the states that mean available; all
    others then do not. `drop_before` and `end`: availability before and from these seconds on is left out, and records
    end there.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    on: Sequence[str] = ()
    drop_before: float = 0.0
    end: float | None = None

    def __post_init__(self) -> None:
        for ours in self.columns:
            if ours not in KNOWN_COLUMNS:
                raise SettingError(f"there is no column {ours!r}; there are {', '.join(KNOWN_COLUMNS)}")
        as_number("drop_before", self.drop_before, SettingError, least=0, most=LARGEST)
        if self.end is not None:
            as_number("end", self.end, SettingError, above=self.drop_before, most=LARGEST)

    def theirs(self, column: str) -> str:
        """What the file calls it."""
        return self.columns.get(column, column)


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """One part of a file: the clients it names, whom each row belongs to, and the columns.

    `place` says where a row stands, for whoever must mend it.
    """

    file: str
    ids: Sequence[str]
    owner: IntArray
    columns: Mapping[str, npt.NDArray[Any] | Sequence[Any]]
    place: Callable[[int], str]

    def name(self, row: int) -> str:
        """The client of a row, as messages call it."""
        return repr(self.ids[self.owner[row]])


KNOWN_COLUMNS = (
    "client",
    "start",
    "stop",
    "time",
    "state",
    "end",
    "seconds_per_sample",
    "score",
    *(f"{way}{word}_{unit}" for unit in ("mbps", "kbps") for word in ("", "_deviation") for way in ("down", "up")),
    "ptr",
)


def part_of(columns: Sequence[str]) -> str | None:
    """Which part of the traces these columns tell, or None."""
    found = set(columns)
    if {"start", "stop"} <= found or {"time", "state"} <= found:
        return "availability"
    if found & {"seconds_per_sample", "score"}:
        return "devices"
    return "links" if found & {"down_mbps", "down_kbps"} else None


def traces_from(parts: Mapping[str, Rows], layout: Layout, problems: list[Problem]) -> Traces:
    """Every part built, with what is wrong added to `problems` and left out."""
    build = {"availability": _availability, "devices": _devices, "links": _links}
    return Traces(**{part: build[part](_Reader(rows, problems), layout) for part, rows in parts.items()})  # type: ignore[arg-type]


class _Reader:
    """Columns as numbers; rows with a problem are told once and sorted out."""

    def __init__(self, rows: Rows, problems: list[Problem]) -> None:
        self.rows, self._problems = rows, problems
        self.good: BoolArray = np.ones(len(rows.owner), dtype=np.bool_)
        self.clients = len(rows.ids)

    def has(self, column: str) -> bool:
        return column in self.rows.columns

    def numbers(self, column: str, *, above: float | None = None) -> FloatArray:
        """Finite, not negative, or above a bound."""
        given = self.rows.columns[column]
        values = _as_floats(given)
        largest = f", and at most {LARGEST:g}"
        if above is None:
            wrong, expected = ~((values >= 0) & (values <= LARGEST)), f"a number, not negative{largest}"
        else:
            wrong, expected = ~((values > above) & (values <= LARGEST)), f"a number above {above:g}{largest}"
        self.refuse(wrong, lambda row: f"{column} must be {expected}, not {_told(given[row])}")
        return values

    def rates(self, column: str) -> FloatArray | None:
        """Megabits a second, from either unit."""
        if self.has(f"{column}_mbps"):
            return self.numbers(f"{column}_mbps")
        return self.numbers(f"{column}_kbps") / 1000 if self.has(f"{column}_kbps") else None

    def each(self, column: str, values: FloatArray) -> FloatArray:
        """One number a client, of a column that must say the same in all its rows; NaN where no row is good."""
        owner = self.rows.owner
        some = np.full(self.clients, np.nan)
        some[owner[self.good][::-1]] = values[self.good][::-1]
        self.refuse(
            values != some[owner],
            lambda row: (
                f"{column} of client {self.rows.name(row)} is {values[row]:g} here and {some[owner[row]]:g} before: "
                "it must be the same in all rows of a client"
            ),
        )
        return some

    def refuse(self, wrong: BoolArray, what: Callable[[int], str]) -> None:
        """Tell of each row that is wrong and was not told of before."""
        for row in np.flatnonzero(wrong & self.good):
            self._problems.append(Problem(self.rows.file, self.rows.place(int(row)), what(int(row))))
        self.good &= ~wrong

    def once(self) -> None:
        """Refuse the second row of a client."""
        _, first = np.unique(self.rows.owner, return_index=True)
        again = np.ones(len(self.rows.owner), dtype=np.bool_)
        again[first] = False
        at = np.zeros(self.clients, dtype=np.int64)
        at[self.rows.owner[first]] = first
        self.refuse(
            again,
            lambda row: (
                f"client {self.rows.name(row)} stands there already "
                f"({self.rows.place(int(at[self.rows.owner[row]]))}): give each client once"
            ),
        )


def _availability(reader: _Reader, layout: Layout) -> AvailabilityTrace:
    by_states = reader.has("state")
    begins = reader.numbers("time" if by_states else "start")
    stops = begins if by_states else reader.numbers("stop")
    reader.refuse(stops < begins, lambda row: f"stop {stops[row]:g} lies before start {begins[row]:g}")
    states = _states(reader, layout) if by_states else None
    ends = _record_ends(reader, layout, stops)
    reader.refuse(
        (stops > ends[reader.rows.owner]) & (layout.end is None),
        lambda row: (
            f"{'time' if by_states else 'stop'} {stops[row]:g} lies after {ends[reader.rows.owner[row]]:g}, "
            "the end of its client's record"
        ),
    )
    owner, begins, stops = reader.rows.owner[reader.good], begins[reader.good], stops[reader.good]
    if states is not None:
        owner, begins, stops = _intervals(owner, begins, states[reader.good], ends)
    begins, stops = np.maximum(begins, layout.drop_before), np.minimum(stops, ends[owner])
    return AvailabilityTrace(tuple(reader.rows.ids), *merged(owner, begins, stops, reader.clients), ends)


def _states(reader: _Reader, layout: Layout) -> BoolArray:
    words, which = np.unique(np.asarray(reader.rows.columns["state"]), return_inverse=True)
    plain = [_plain_state(word) for word in words.tolist()]
    on = [_plain_state(word) for word in layout.on] or ON
    known = np.array([bool(layout.on) or word in ON + OFF for word in plain], dtype=np.bool_)
    reader.refuse(
        ~known[which],
        lambda row: (
            f"state {_told(reader.rows.columns['state'][row])} is not known: write {', '.join(ON)} or "
            f"{', '.join(OFF)}, or list the states that mean available in `on` of a Layout"
        ),
    )
    return np.array([word in on for word in plain], dtype=np.bool_)[which]


def _record_ends(reader: _Reader, layout: Layout, moments: FloatArray) -> FloatArray:
    if layout.end is not None:
        return np.full(reader.clients, float(layout.end))
    latest = float(moments[reader.good].max(initial=0.0))
    otherwise = math.ceil(latest / DAY) * DAY if latest > DAY else latest or DAY
    if not reader.has("end"):
        return np.full(reader.clients, otherwise)
    ends = reader.each("end", reader.numbers("end", above=0))
    return np.where(np.isnan(ends), otherwise, ends)


def _intervals(
    owner: IntArray, times: FloatArray, on: BoolArray, ends: FloatArray
) -> tuple[IntArray, FloatArray, FloatArray]:
    """From each state that means available to the next state of the same client."""
    owner, times, on = _last_of_each_moment(owner, times, on)
    until = np.append(times[1:], 0.0)
    last = np.append(owner[1:] != owner[:-1], True)[: len(owner)]
    until = np.where(last, ends[owner], until[: len(owner)])
    return owner[on], times[on], until[on]


def _devices(reader: _Reader, layout: Layout) -> DeviceTrace:  # noqa: ARG001
    unit = "score" if reader.has("score") else "seconds_per_sample"
    reader.refuse(
        np.full(len(reader.good), reader.has("score") and reader.has("seconds_per_sample")),
        lambda row: "there is a score and seconds_per_sample: give one of them",  # noqa: ARG005
    )
    values = reader.numbers(unit, above=0)
    reader.once()
    owner = reader.rows.owner[reader.good]
    return DeviceTrace(tuple(reader.rows.ids[row] for row in owner), values[reader.good], unit)  # type: ignore[arg-type]


def _links(reader: _Reader, layout: Layout) -> LinkTrace:  # noqa: ARG001
    down = reader.rates("down")
    assert down is not None  # it is what made this a part of links
    up = reader.rates("up")
    up = down if up is None else up
    nothing = np.zeros(len(down))
    given = [reader.rates(f"{way}_deviation") for way in ("down", "up")]
    down_spread, up_spread = (nothing if one is None else one for one in given)
    times = reader.numbers("time") if reader.has("time") else nothing
    ends = reader.each("end", reader.numbers("end", above=0)) if reader.has("end") else np.full(reader.clients, np.nan)
    until = ends[reader.rows.owner]
    reader.refuse(
        until <= times, lambda row: f"time {times[row]:g} must lie before {until[row]:g}, the end of its series"
    )
    if not reader.has("time"):
        reader.once()
    in_series = np.bincount(reader.rows.owner, minlength=reader.clients)[reader.rows.owner] > 1
    reader.refuse(
        in_series & ((down_spread > 0) | (up_spread > 0)),
        lambda row: f"client {reader.rows.name(row)} has a series and a deviation: a deviation is for constants only",
    )
    rows = np.flatnonzero(reader.good)
    owner, times, rows = _last_of_each_moment(reader.rows.owner[rows], times[rows], rows)
    kept = np.unique(owner)
    ptr = offsets(np.searchsorted(kept, owner), len(kept))
    first = rows[ptr[:-1]]
    trace = LinkTrace(
        tuple(reader.rows.ids[one] for one in kept),
        ptr,
        times,
        down[rows],
        up[rows],
        _series_ends(ptr, times, ends[kept]),
        down_spread[first],
        up_spread[first],
    )
    return trace.take(_credible(reader, trace, first))


def _series_ends(ptr: IntArray, times: FloatArray, given: FloatArray) -> FloatArray:
    last = ptr[1:] - 1
    step = np.where(last > ptr[:-1], times[last] - times[np.maximum(last - 1, 0)], 1.0)
    return np.where(np.isnan(given), times[last] + step, given)


def _credible(reader: _Reader, trace: LinkTrace, first: IntArray) -> IntArray:
    """The links that carry something; the others are told of at their `first` row."""
    for way, values, deviations in (
        ("down", trace.down, trace.down_deviations),
        ("up", trace.up, trace.up_deviations),
    ):
        means, spreads = np.zeros(len(reader.good)), np.zeros(len(reader.good))
        means[first], spreads[first] = trace.means(values), deviations
        here = np.isin(np.arange(len(reader.good)), first)
        reader.refuse(here & (means < LEAST_MBPS), partial(_too_slow, reader, way, means))
        reader.refuse(here & (spreads > LARGEST_DEVIATION * means), partial(_too_wide, reader, way))
    return np.flatnonzero(reader.good[first])


def _too_slow(reader: _Reader, way: str, means: FloatArray, row: int) -> str:
    return (
        f"client {reader.rows.name(row)} has {means[row]:g} Mbps {way} on average: at least {LEAST_MBPS:g} is "
        "expected; is the unit right?"
    )


def _too_wide(reader: _Reader, way: str, row: int) -> str:
    return f"the {way} deviation of client {reader.rows.name(row)} is more than {LARGEST_DEVIATION:g} times its mean"


def _last_of_each_moment(owner: IntArray, times: FloatArray, *columns: npt.NDArray[Any]) -> tuple[Any, ...]:
    """Sorted by client and time; of the rows of one moment the last."""
    order = np.lexsort((times, owner))  # stable: rows of one moment keep their order
    owner, times = owner[order], times[order]
    last = np.append((owner[1:] != owner[:-1]) | (times[1:] != times[:-1]), True)[: len(owner)]
    return owner[last], times[last], *(column[order][last] for column in columns)


def _as_floats(values: npt.NDArray[Any] | Sequence[Any]) -> FloatArray:
    """NaN for whatever is no number."""
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return np.array([_as_float(value) for value in values])


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _plain_state(word: object) -> str:
    text = str(word).strip().lower()
    return text.removesuffix(".0")


def _told(value: Any) -> str:
    """As its writer knows it."""
    value = value.item() if isinstance(value, np.generic) else value
    return "missing" if value in ("", None) else f"{value:g}" if isinstance(value, float) else repr(value)
