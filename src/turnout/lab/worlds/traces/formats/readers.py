"""Trace files of both formats: CSV with a header and one part per file, and npz with the same columns as arrays.

An npz file holds no pickles; its `ptr` states which rows belong to which client.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from turnout.lab.columns import csv_text
from turnout.lab.worlds.traces.data import PARTS, AvailabilityTrace, DeviceTrace, LinkTrace, Traces, row_owners
from turnout.lab.worlds.traces.formats.tables import KNOWN_COLUMNS, Problem, Rows, TraceLayout, part_for
from turnout.storage.encoding.limits import BoundedReader
from turnout.storage.encoding.limits import read_npz as load_npz

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


#: The largest text of a file, decompressed. Its rows take about ten times as much memory; larger traces are read faster
#: as npz.
MAX_TEXT_BYTES = 1 << 28
#: The largest number of lines, which may be empty.
MAX_LINES = 20_000_000
#: The largest number of columns, most of which are ignored.
MAX_COLUMNS = 1000
#: The largest number of cells; each takes about 60 bytes while the file is read.
MAX_CELLS = 20_000_000
#: The longest row in characters: a row can have several lines, because cells in quotes can.
MAX_ROW_LENGTH = 1 << 20


class _Lines:
    """The lines of a file, which is not read at once; the reader of rows resets the `length` of the present row."""

    def __init__(self, text: io.TextIOWrapper) -> None:
        self._text, self.length, self.number = text, 0, 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._text.readline(MAX_ROW_LENGTH + 1)
        if not line:
            raise StopIteration
        self.length += len(line)
        self.number += 1
        if self.length > MAX_ROW_LENGTH:
            raise csv.Error(f"a row must have at most {MAX_ROW_LENGTH:,} characters, got more: close all quotes")
        if self.number > MAX_LINES:
            raise TraceFormatError(f"a file must have at most {MAX_LINES:,} lines, got more: write an npz file")
        return line


def read_csv(path: Path, layout: TraceLayout, problems: list[Problem]) -> dict[str, Rows]:
    """Reads the part that the column names describe."""
    header, cells, line_numbers = _read_cells(path, problems)
    if not any(header):
        raise TraceFormatError("the file is empty")
    duplicate = next((name for name in header if name and header.count(name) > 1), None)
    if duplicate is not None:
        raise TraceFormatError(f"the column {duplicate!r} occurs twice", "line 1")
    part, names = find_columns(layout, header, "column")
    columns: Columns = {column: [row[header.index(name)].strip() for row in cells] for column, name in names.items()}
    if "client" not in columns and {"time", "start"} & set(columns):
        raise TraceFormatError("the column 'client' is missing, which states the owner of each row", "line 1")

    def location(row: int) -> str:
        return f"line {line_numbers[row]}"

    owners = columns.pop("client", None)
    if owners is None:
        return {part: Rows(str(path), generated_ids(part, len(cells)), np.arange(len(cells)), columns, location)}
    without_id = [row for row, name in enumerate(owners) if not name]
    problems.extend(Problem(str(path), location(row), "client is missing") for row in without_id)
    ids = {name: index for index, name in enumerate(dict.fromkeys(owners))}
    owner = np.array([ids[name] for name in owners], dtype=np.int64)
    return {part: Rows(str(path), list(ids), owner, columns, location)}


def _read_cells(path: Path, problems: list[Problem]) -> tuple[list[str], list[list[str]], list[int]]:
    """Returns the header, the rows that have as many cells, and the line of each."""
    header: list[str] | None = None
    cells: list[list[str]] = []
    line_numbers: list[int] = []
    try:
        with path.open("rb") as file:
            content = gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file
            bounded = io.BufferedReader(BoundedReader(content, MAX_TEXT_BYTES))  # type: ignore[arg-type]
            lines = _Lines(io.TextIOWrapper(bounded, encoding="utf-8-sig", newline="\n"))
            rows = csv.reader(lines)
            for row in rows:
                lines.length = 0
                if header is None:
                    header = [name.strip() for name in row]
                    if not any(header):
                        break
                    if len(header) > MAX_COLUMNS:
                        raise TraceFormatError(
                            f"a file must have at most {MAX_COLUMNS:,} columns, got {len(header):,}", "line 1"
                        )
                elif len(row) == len(header):
                    cells.append(row)
                    line_numbers.append(rows.line_num)
                    if len(cells) * len(header) > MAX_CELLS:
                        raise TraceFormatError(
                            f"a CSV file must have at most {MAX_CELLS:,} cells, got more: remove other columns, or "
                            "write an npz file"
                        )
                elif row:
                    message = f"the row has {len(row)} cells, but the header has {len(header)}"
                    problems.append(Problem(str(path), f"line {rows.line_num}", message))
    except csv.Error as error:
        raise TraceFormatError(str(error), f"line {lines.number}") from error
    except UnicodeDecodeError as error:
        line = lines.number + 1 + error.object.count(b"\n", 0, error.start)
        raise TraceFormatError("the file is not UTF-8 text", f"line {line}") from error
    except zlib.error as error:
        raise TraceFormatError(f"the file is damaged: {error}") from error
    except ValueError as error:
        raise TraceFormatError(str(error)) from error
    return header or [], cells, line_numbers


def write_csv(traces: Traces) -> bytes:
    """Returns the only part of the traces as CSV."""
    (name, part), *_ = traces.parts.items()
    columns = _as_columns(name, part)
    return csv_text(columns, zip(*columns.values(), strict=True)).encode()


def _as_columns(name: str, part: Part) -> dict[str, list[Any]]:
    """Returns columns of equal length; a client without intervals gets one of length zero."""
    arrays = {key: list(value) if key == "client" else value for key, value in part_arrays(part).items()}
    ptr = arrays.pop("ptr", None)
    if ptr is None:
        return {key: _plain(value) for key, value in arrays.items()}
    counts = np.diff(ptr)
    rows = np.repeat(np.arange(len(counts)), np.maximum(counts, 1))
    has_interval = np.repeat(counts > 0, np.maximum(counts, 1))
    result = {}
    for key, value in arrays.items():
        if key in ROW_COLUMNS[name]:
            column = np.zeros(len(rows))
            column[has_interval] = value
            result[key] = _plain(column)
        else:
            result[key] = [value[row] for row in rows] if key == "client" else _plain(value[rows])
    return result


def _plain(values: npt.NDArray[Any] | Sequence[Any]) -> list[Any]:
    """Returns Python numbers, integral ones as integers; reading them back gives the same values."""
    if not isinstance(values, np.ndarray):
        return list(values)
    return [int(value) if value.is_integer() else value for value in values.tolist()]


#: The largest size of all arrays together, decompressed: 60 million intervals.
MAX_ARRAY_BYTES = 1 << 30
#: The largest number of values in an array, which may be stored in one byte each and is computed with in eight.
MAX_ROWS = 1 << 26
#: The largest number of clients: each has an id and an entry in several mappings.
MAX_CLIENTS = 5_000_000


def read_npz(path: Path, layout: TraceLayout, problems: list[Problem]) -> dict[str, Rows]:
    """Reads arrays named part.column, or arrays with plain column names, which describe one part."""
    arrays = _load_arrays(path)
    sections: dict[str, dict[str, npt.NDArray[Any]]] = {}
    for key, array in arrays.items():
        part, dot, column = key.partition(".")
        if dot and part in PARTS and column in KNOWN_COLUMNS:
            sections.setdefault(part, {})[column] = array
    if not sections:
        part, names = find_columns(layout, list(arrays), "array")
        sections = {part: {column: arrays[name] for column, name in names.items()}}
    return {part: _read_part(path, part, columns, problems) for part, columns in sections.items()}


def _read_part(path: Path, part: str, columns: dict[str, npt.NDArray[Any]], problems: list[Problem]) -> Rows:
    if part_for(list(columns)) != part:
        raise TraceFormatError(expected_columns(list(columns), "array"), part)
    for name, array in columns.items():
        if array.ndim != 1 or array.dtype.kind not in ("iu" if name == "ptr" else "iufbU"):
            raise TraceFormatError(
                f"must be a list of numbers or strings, not {array.dtype} of shape {array.shape}", f"array {name}"
            )
    columns = dict(columns)
    names, ptr = columns.pop("client", None), columns.pop("ptr", None)
    row_counts = {name: len(columns[name]) for name in ROW_COLUMNS[part] if name in columns}
    rows = next(iter(row_counts.values()))
    if ptr is None:
        if {"time", "start"} & set(columns):
            raise TraceFormatError(
                "the array 'ptr' is missing, which states that client i owns the rows ptr[i]:ptr[i+1]"
            )
        ptr = np.arange(rows + 1)
    ptr = ptr.astype(np.int64)
    if len(ptr) < 2 or ptr[0] != 0 or ptr[-1] != rows or (np.diff(ptr) < 0).any():
        raise TraceFormatError(f"must increase from 0 to {rows}, the number of rows", "array ptr")
    clients = len(ptr) - 1
    if clients > MAX_CLIENTS or (names is not None and len(names) > MAX_CLIENTS):
        raise TraceFormatError(
            f"a file must have at most {MAX_CLIENTS:,} clients, got {clients:,}: split the clients over several files"
        )
    owner = row_owners(ptr)
    by_row_columns: Columns = {}
    for name, array in columns.items():
        values = array[owner] if name not in ROW_COLUMNS[part] and len(array) == clients else array
        if len(values) != rows:
            raise TraceFormatError(f"has {len(array)} values, but there are {rows} rows", f"array {name}")
        by_row_columns[name] = values
    ids = generated_ids(part, clients) if names is None else [str(name).strip() for name in names.tolist()]
    _check_ids(path, ids, clients, problems)
    empty = np.flatnonzero(np.diff(ptr) == 0)
    if part == "links":
        problems.extend(Problem(str(path), f"client {ids[client]!r}", "has no rows: omit it") for client in empty)
    elif len(columns.get("end", ())) == clients:  # an interval of length zero keeps the end of a record without rows
        added = {**dict.fromkeys(by_row_columns, np.zeros(len(empty))), "end": columns["end"][empty]}
        owner = np.concatenate([owner, empty])
        by_row_columns = {name: np.concatenate([values, added[name]]) for name, values in by_row_columns.items()}
    return Rows(
        str(path), ids, owner, by_row_columns, lambda row: f"row {row}" if row < rows else f"client {ids[owner[row]]!r}"
    )


def _check_ids(path: Path, ids: Sequence[str], clients: int, problems: list[Problem]) -> None:
    if len(ids) != clients:
        raise TraceFormatError(f"has {len(ids)} ids, but there are {clients} clients", "array client")
    first: dict[str, int] = {}
    for index, name in enumerate(ids):
        if not name:
            problems.append(Problem(str(path), f"client[{index}]", "client is missing"))
        elif name in first:
            message = f"client {name!r} is already defined (client[{first[name]}]): define each client once"
            problems.append(Problem(str(path), f"client[{index}]", message))
        first.setdefault(name, index)


def _load_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    with path.open("rb") as file:
        if file.read(6) == b"\x93NUMPY":
            raise TraceFormatError("the file is a single array, not an npz file")
        try:
            arrays = load_npz(file, MAX_ARRAY_BYTES)
        except ValueError as error:
            raise TraceFormatError(
                f"the file is not an npz file of plain arrays ({error}); pickles are never read"
            ) from error
    for name, array in arrays.items():
        if array.size > MAX_ROWS:
            raise TraceFormatError(
                f"must have at most {MAX_ROWS:,} values, got {array.size:,}: split the clients over several files",
                f"array {name}",
            )
    return arrays


def write_npz(traces: Traces) -> bytes:
    """Returns all parts as npz bytes; each array is named part.column."""
    arrays: dict[str, Any] = {
        f"{name}.{column}": np.array(value) if column == "client" else value
        for name, part in traces.parts.items()
        for column, value in part_arrays(part).items()
    }
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()
