"""Helpers shared by the trace file formats: column names, part detection and the error of unreadable files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy.typing as npt

from turnout.lab.worlds.traces.data import AvailabilityTrace, DeviceTrace, LinkTrace
from turnout.lab.worlds.traces.formats.tables import KNOWN_COLUMNS, TraceLayout, part_for

Columns: TypeAlias = dict[str, npt.NDArray[Any] | Sequence[Any]]
Part: TypeAlias = AvailabilityTrace | DeviceTrace | LinkTrace

ID_PREFIXES = {"availability": "client", "devices": "device", "links": "link"}
#: Columns with one value per row; all others have one value per client.
ROW_COLUMNS = {
    "availability": ("start", "stop", "time", "state"),
    "devices": ("seconds_per_sample", "score"),
    "links": ("down_mbps", "down_kbps", "up_mbps", "up_kbps", "time"),
}


class TraceFormatError(Exception):
    """A trace file, or a record in it, that cannot be read; `location` states where the problem is."""

    def __init__(self, message: str, location: str = "") -> None:
        super().__init__(message)
        self.location = location


def part_arrays(part: Part) -> dict[str, Any]:
    """Returns the arrays of a part by column name, without columns that have default values."""
    names = list(part.ids)
    if isinstance(part, AvailabilityTrace):
        return {"client": names, "ptr": part.ptr, "start": part.starts, "stop": part.stops, "end": part.ends}
    if isinstance(part, DeviceTrace):
        return {"client": names, part.unit: part.values}
    arrays = {"client": names, "down_mbps": part.down, "up_mbps": part.up}
    if (part.down_deviations > 0).any() or (part.up_deviations > 0).any():
        arrays |= {"down_deviation_mbps": part.down_deviations, "up_deviation_mbps": part.up_deviations}
    if len(part.times) == len(names) and (part.times == 0).all() and (part.ends == 1).all():
        return arrays  # constants need neither times nor ends
    return {**arrays, "ptr": part.ptr, "time": part.times, "end": part.ends}


def find_columns(layout: TraceLayout, names: Sequence[str], kind: str) -> tuple[str, dict[str, str]]:
    """Returns the part that the columns of a file describe, and the name in the file of each standard column."""
    for column, file_column in layout.columns.items():
        if file_column not in names:
            raise TraceFormatError(
                f"the file has no {file_column!r}, which the layout names for {column!r}; it has {', '.join(names)}"
            )
    columns = {name: layout.file_column(name) for name in KNOWN_COLUMNS if layout.file_column(name) in names}
    part = part_for(list(columns))
    if part is None:
        raise TraceFormatError(expected_columns(names, kind), "line 1" if kind == "column" else "")
    return part, columns


def expected_columns(names: Sequence[str], kind: str) -> str:
    """Returns the message about columns that describe no part."""
    return (
        f"the {kind}s {', '.join(map(str, names)) or '(none)'} describe no trace: start and stop, time and state, "
        "seconds_per_sample, score, or down_mbps is required; give other names in the columns of a Layout"
    )


def generated_ids(part: str, count: int) -> list[str]:
    """Returns ids for a part without ids; the prefix differs between parts, so that no ids match by coincidence."""
    return [f"{ID_PREFIXES[part]}-{number}" for number in range(count)]
