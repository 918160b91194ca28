"""What the formats of trace files share: the names of columns, and how a file that cannot be read says so."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from turnout.simulator.traces.data import AvailabilityTrace, DeviceTrace, LinkTrace
from turnout.simulator.traces.formats.tables import Layout, part_of

Columns: TypeAlias = dict[str, npt.NDArray[Any] | Sequence[Any]]
Part: TypeAlias = AvailabilityTrace | DeviceTrace | LinkTrace

NAMELESS = {"availability": "client", "devices": "device", "links": "link"}
#: Columns with one value a row; the others have one a client.
ROW_COLUMNS = {
    "availability": ("start", "stop", "time", "state"),
    "devices": ("seconds_per_sample", "score"),
    "links": ("down_mbps", "down_kbps", "up_mbps", "up_kbps", "time"),
}


class Unreadable(Exception):
    """Nothing more can be told about this file."""

    def __init__(self, what: str, place: str = "") -> None:
        super().__init__(what)
        self.place = place


def part_arrays(part: Part) -> dict[str, Any]:
    """A part by the names of our columns; what goes without saying is left out."""
    names = list(part.ids)
    if isinstance(part, AvailabilityTrace):
        return {"client": names, "ptr": part.ptr, "start": part.starts, "stop": part.stops, "end": part.ends}
    if isinstance(part, DeviceTrace):
        return {"client": names, part.unit: part.values}
    arrays = {"client": names, "down_mbps": part.down, "up_mbps": part.up}
    if (part.down_deviations > 0).any() or (part.up_deviations > 0).any():
        arrays |= {"down_deviation_mbps": part.down_deviations, "up_deviation_mbps": part.up_deviations}
    if len(part.times) == len(names) and (part.times == 0).all() and (part.ends == 1).all():
        return arrays  # constants
    return {**arrays, "ptr": part.ptr, "time": part.times, "end": part.ends}


def part_named(columns: Mapping[str, Any], found: Sequence[str], what: str) -> str:
    """Which part these columns tell."""
    part = part_of(list(columns))
    if part is None:
        raise Unreadable(expected_columns(found, what), "line 1" if what == "column" else "")
    return part


def expected_columns(found: Sequence[str], what: str) -> str:
    """What is said of columns that tell nothing."""
    return (
        f"the {what}s {', '.join(map(str, found)) or '(none)'} describe no trace: start and stop, time and state, "
        "seconds_per_sample, score, or down_mbps is required; give other names in the columns of a Layout"
    )


def refuse_missing(layout: Layout, found: Sequence[str]) -> None:
    """Refuse a layout that names a column which is not there."""
    for ours, theirs in layout.columns.items():
        if theirs not in found:
            raise Unreadable(f"there is no {theirs!r} to take for {ours!r}; there are {', '.join(found)}")


def numbered(part: str, count: int) -> list[str]:
    """Names that no other part has, so that nobody is joined by chance."""
    return [f"{NAMELESS[part]}-{number}" for number in range(count)]


def text_of(path: Path) -> str:
    """The text of a file, unpacked if it is packed."""
    data = path.read_bytes()
    try:
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig")
    except UnicodeDecodeError as odd:
        line = odd.object.count(b"\n", 0, odd.start) + 1
        raise Unreadable("is not UTF-8 text", f"line {line}") from odd
    except zlib.error as damaged:
        raise Unreadable(f"is damaged: {damaged}") from damaged


def plain(values: npt.NDArray[Any] | Sequence[Any]) -> list[Any]:
    """Python's numbers, whole ones without a point: they are read back the same."""
    if not isinstance(values, np.ndarray):
        return list(values)
    return [int(value) if value.is_integer() else value for value in values.tolist()]
