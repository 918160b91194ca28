"""npz trace files: the same columns as arrays, without pickle; `ptr` states which rows belong to which client."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from turnout.lab.worlds.traces.data import PARTS, Traces, row_owners
from turnout.lab.worlds.traces.formats.columns import (
    ROW_COLUMNS,
    Columns,
    TraceFormatError,
    expected_columns,
    find_columns,
    generated_ids,
    part_arrays,
)
from turnout.lab.worlds.traces.formats.tables import KNOWN_COLUMNS, Problem, Rows, TraceLayout, part_for
from turnout.storage.encoding.limits import read_npz as load_npz

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
