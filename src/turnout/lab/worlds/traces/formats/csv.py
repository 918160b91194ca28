"""CSV trace files: a header and one row per line; each file holds one part."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from turnout.lab.tables import csv_text
from turnout.lab.worlds.traces.data import Traces
from turnout.lab.worlds.traces.formats.columns import (
    ROW_COLUMNS,
    Columns,
    Part,
    TraceFormatError,
    find_columns,
    generated_ids,
    part_arrays,
)
from turnout.lab.worlds.traces.formats.tables import Problem, Rows, TraceLayout
from turnout.storage.encoding.limits import BoundedReader

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
