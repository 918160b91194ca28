"""Traces as CSV: a header, then one row a line; one part a file."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np

from turnout.simulator.traces.data import Traces
from turnout.simulator.traces.formats.columns import (
    ROW_COLUMNS,
    Columns,
    Part,
    Unreadable,
    numbered,
    part_arrays,
    part_named,
    plain,
    refuse_missing,
    text_of,
)
from turnout.simulator.traces.formats.tables import KNOWN_COLUMNS, Layout, Problem, Rows


def csv_parts(path: Path, layout: Layout, problems: list[Problem]) -> dict[str, Rows]:
    """The one part that its columns tell."""
    lines = csv.reader(io.StringIO(text_of(path)))
    try:
        header = [word.strip() for word in next(lines, [])]
        cells: list[list[str]] = []
        numbers: list[int] = []
        for row in lines:
            if len(row) == len(header):
                cells.append(row)
                numbers.append(lines.line_num)
            elif row:
                wrong = f"{len(row)} cells, but the header has {len(header)}"
                problems.append(Problem(str(path), f"line {lines.line_num}", wrong))
    except csv.Error as malformed:
        raise Unreadable(str(malformed), f"line {lines.line_num}") from malformed
    if not any(header):
        raise Unreadable("it is empty")
    twice = next((word for word in header if word and header.count(word) > 1), None)
    if twice is not None:
        raise Unreadable(f"the column {twice!r} stands there twice", "line 1")
    columns: Columns = {
        ours: [row[header.index(layout.theirs(ours))].strip() for row in cells]
        for ours in KNOWN_COLUMNS
        if layout.theirs(ours) in header
    }
    refuse_missing(layout, header)
    part = part_named(columns, header, "column")
    if "client" not in columns and {"time", "start"} & set(columns):
        raise Unreadable("there is no column 'client', which says whose rows these are", "line 1")

    def place(row: int) -> str:
        return f"line {numbers[row]}"

    names = columns.pop("client", None)
    if names is None:
        return {part: Rows(str(path), numbered(part, len(cells)), np.arange(len(cells)), columns, place)}
    nameless = [row for row, name in enumerate(names) if not name]
    problems.extend(Problem(str(path), place(row), "client is missing") for row in nameless)
    ids = {name: which for which, name in enumerate(dict.fromkeys(names))}
    owner = np.array([ids[name] for name in names], dtype=np.int64)
    return {part: Rows(str(path), list(ids), owner, columns, place)}


def as_csv(traces: Traces) -> bytes:
    """The only part there is."""
    (name, part), *_ = traces.parts.items()
    table = _as_table(name, part)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table)
    writer.writerows(zip(*table.values(), strict=True))
    return text.getvalue().encode()


def _as_table(name: str, part: Part) -> dict[str, list[Any]]:
    """Columns of equal length; a client without intervals has one of no length."""
    arrays = {key: list(value) if key == "client" else value for key, value in part_arrays(part).items()}
    ptr = arrays.pop("ptr", None)
    if ptr is None:
        return {key: plain(value) for key, value in arrays.items()}
    counts = np.diff(ptr)
    rows = np.repeat(np.arange(len(counts)), np.maximum(counts, 1))
    filled = np.repeat(counts > 0, np.maximum(counts, 1))
    table = {}
    for key, value in arrays.items():
        if key in ROW_COLUMNS[name]:
            column = np.zeros(len(rows))
            column[filled] = value
            table[key] = plain(column)
        else:
            table[key] = [value[row] for row in rows] if key == "client" else plain(value[rows])
    return table
