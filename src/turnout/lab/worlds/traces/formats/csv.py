"""CSV trace files: a header and one row per line; each file holds one part."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from turnout.lab.worlds.traces.data import Traces
from turnout.lab.worlds.traces.formats.columns import (
    ROW_COLUMNS,
    Columns,
    Part,
    TraceFormatError,
    as_plain_values,
    detect_part,
    generated_ids,
    part_arrays,
    read_lines,
    reject_missing_columns,
)
from turnout.lab.worlds.traces.formats.tables import KNOWN_COLUMNS, Layout, Problem, Rows

#: The largest number of columns, most of which are ignored.
MAX_COLUMNS = 1000
#: The largest number of cells; each takes about 60 bytes while the file is read.
MAX_CELLS = 20_000_000
#: The longest row in characters: a row can have several lines, because cells in quotes can.
MAX_ROW_LENGTH = 1 << 20


class _Lines:
    """The lines of a file; `length` counts the characters of the present row, which the reader of rows resets."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines, self.length = lines, 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self.length += len(line)
        if self.length > MAX_ROW_LENGTH:
            raise csv.Error(f"a row must have at most {MAX_ROW_LENGTH:,} characters, got more: close all quotes")
        return line


def read_csv(path: Path, layout: Layout, problems: list[Problem]) -> dict[str, Rows]:
    """Reads the part that the column names describe."""
    text = _Lines(read_lines(path))
    lines = csv.reader(text)
    try:
        header = [name.strip() for name in next(lines, [])]
        if len(header) > MAX_COLUMNS:
            raise TraceFormatError(f"a file must have at most {MAX_COLUMNS:,} columns, got {len(header):,}", "line 1")
        cells: list[list[str]] = []
        line_numbers: list[int] = []
        text.length = 0
        for row in lines:
            text.length = 0
            if len(row) == len(header):
                cells.append(row)
                line_numbers.append(lines.line_num)
                if len(cells) * len(header) > MAX_CELLS:
                    raise TraceFormatError(
                        f"a CSV file must have at most {MAX_CELLS:,} cells, got more: remove other columns, or write "
                        "an npz file"
                    )
            elif row:
                message = f"the row has {len(row)} cells, but the header has {len(header)}"
                problems.append(Problem(str(path), f"line {lines.line_num}", message))
    except csv.Error as error:
        raise TraceFormatError(str(error), f"line {lines.line_num}") from error
    if not any(header):
        raise TraceFormatError("the file is empty")
    duplicate = next((name for name in header if name and header.count(name) > 1), None)
    if duplicate is not None:
        raise TraceFormatError(f"the column {duplicate!r} occurs twice", "line 1")
    columns: Columns = {
        column: [row[header.index(layout.file_column(column))].strip() for row in cells]
        for column in KNOWN_COLUMNS
        if layout.file_column(column) in header
    }
    reject_missing_columns(layout, header)
    part = detect_part(columns, header, "column")
    if "client" not in columns and {"time", "start"} & set(columns):
        raise TraceFormatError("the column 'client' is missing, which states the owner of each row", "line 1")

    def location(row: int) -> str:
        return f"line {line_numbers[row]}"

    names = columns.pop("client", None)
    if names is None:
        return {part: Rows(str(path), generated_ids(part, len(cells)), np.arange(len(cells)), columns, location)}
    without_id = [row for row, name in enumerate(names) if not name]
    problems.extend(Problem(str(path), location(row), "client is missing") for row in without_id)
    ids = {name: index for index, name in enumerate(dict.fromkeys(names))}
    owner = np.array([ids[name] for name in names], dtype=np.int64)
    return {part: Rows(str(path), list(ids), owner, columns, location)}


def write_csv(traces: Traces) -> bytes:
    """Returns the only part of the traces as CSV."""
    (name, part), *_ = traces.parts.items()
    result = _as_columns(name, part)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(result)
    writer.writerows(zip(*result.values(), strict=True))
    return text.getvalue().encode()


def _as_columns(name: str, part: Part) -> dict[str, list[Any]]:
    """Returns columns of equal length; a client without intervals gets one of length zero."""
    arrays = {key: list(value) if key == "client" else value for key, value in part_arrays(part).items()}
    ptr = arrays.pop("ptr", None)
    if ptr is None:
        return {key: as_plain_values(value) for key, value in arrays.items()}
    counts = np.diff(ptr)
    rows = np.repeat(np.arange(len(counts)), np.maximum(counts, 1))
    has_interval = np.repeat(counts > 0, np.maximum(counts, 1))
    result = {}
    for key, value in arrays.items():
        if key in ROW_COLUMNS[name]:
            column = np.zeros(len(rows))
            column[has_interval] = value
            result[key] = as_plain_values(column)
        else:
            result[key] = [value[row] for row in rows] if key == "client" else as_plain_values(value[rows])
    return result
