"""Traces as npz: the same columns as arrays, without pickle; `ptr` says which rows belong to which client."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from turnout.kernel.arrays import IntArray
from turnout.simulator.traces.data import PARTS, Traces, owners
from turnout.simulator.traces.formats.columns import (
    ROW_COLUMNS,
    Columns,
    Unreadable,
    expected_columns,
    numbered,
    part_arrays,
    part_named,
    refuse_missing,
)
from turnout.simulator.traces.formats.tables import KNOWN_COLUMNS, Layout, Problem, Rows, part_of


def npz_parts(path: Path, layout: Layout, problems: list[Problem]) -> dict[str, Rows]:
    """Arrays named part.column; or plain names of columns, which tell one part."""
    arrays = _arrays(path)
    sections: dict[str, dict[str, npt.NDArray[Any]]] = {}
    for key, array in arrays.items():
        part, dot, column = key.partition(".")
        if dot and part in PARTS and column in KNOWN_COLUMNS:
            sections.setdefault(part, {})[column] = array
    if not sections:
        refuse_missing(layout, list(arrays))
        columns = {ours: arrays[layout.theirs(ours)] for ours in KNOWN_COLUMNS if layout.theirs(ours) in arrays}
        sections = {part_named(columns, list(arrays), "array"): columns}
    return {part: _npz_rows(path, part, columns, problems) for part, columns in sections.items()}


def _npz_rows(path: Path, part: str, columns: dict[str, npt.NDArray[Any]], problems: list[Problem]) -> Rows:
    if part_of(list(columns)) != part:
        raise Unreadable(expected_columns(list(columns), "array"), part)
    for name, array in columns.items():
        if array.ndim != 1 or array.dtype.kind not in ("iu" if name == "ptr" else "iufbU"):
            raise Unreadable(
                f"must be a list of numbers or words, not {array.dtype} of shape {array.shape}", f"array {name}"
            )
    columns = dict(columns)
    names, ptr = columns.pop("client", None), columns.pop("ptr", None)
    by_row = {name: len(columns[name]) for name in ROW_COLUMNS[part] if name in columns}
    rows = next(iter(by_row.values()))
    if ptr is None:
        if {"time", "start"} & set(columns):
            raise Unreadable("there is no array 'ptr', which says whose rows these are: client i owns ptr[i]:ptr[i+1]")
        ptr = np.arange(rows + 1)
    ptr = ptr.astype(np.int64)
    if len(ptr) < 2 or ptr[0] != 0 or ptr[-1] != rows or (np.diff(ptr) < 0).any():
        raise Unreadable(f"must rise from 0 to {rows}, the number of rows", "array ptr")
    clients = len(ptr) - 1
    owner = owners(ptr)
    spread: Columns = {}
    for name, array in columns.items():
        whose = array[owner] if name not in ROW_COLUMNS[part] and len(array) == clients else array
        if len(whose) != rows:
            raise Unreadable(f"has {len(array)} numbers, but there are {rows} rows", f"array {name}")
        spread[name] = whose
    ids = numbered(part, clients) if names is None else [str(name).strip() for name in names.tolist()]
    _different(path, ids, clients, problems)
    if part == "links":
        silent = np.flatnonzero(np.diff(ptr) == 0).tolist()
        problems.extend(Problem(str(path), f"client {ids[one]!r}", "has no rows: leave it out") for one in silent)
    if part == "availability":
        owner, spread = _with_empty_records(ptr, owner, spread, columns)
    return Rows(
        str(path), ids, owner, spread, lambda row: f"row {row}" if row < rows else f"client {ids[owner[row]]!r}"
    )


def _with_empty_records(
    ptr: IntArray, owner: IntArray, spread: Columns, columns: Mapping[str, npt.NDArray[Any]]
) -> tuple[IntArray, Columns]:
    """A client without rows exists all the same: an interval of no length says so."""
    empty = np.flatnonzero(np.diff(ptr) == 0)
    if not len(empty):
        return owner, spread
    more = {
        name: columns[name][empty] if name == "end" and len(columns[name]) == len(ptr) - 1 else np.zeros(len(empty))
        for name in spread
    }
    return np.concatenate([owner, empty]), {name: np.concatenate([spread[name], more[name]]) for name in spread}


def _different(path: Path, ids: Sequence[str], clients: int, problems: list[Problem]) -> None:
    if len(ids) != clients:
        raise Unreadable(f"has {len(ids)} names, but there are {clients} clients", "array client")
    first: dict[str, int] = {}
    for place, name in enumerate(ids):
        if not name:
            problems.append(Problem(str(path), f"client[{place}]", "client is missing"))
        elif name in first:
            why = f"client {name!r} stands there already (client[{first[name]}]): give each client once"
            problems.append(Problem(str(path), f"client[{place}]", why))
        first.setdefault(name, place)


def _arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    # Opened here, as NumPy does not close what it finds damaged.
    with path.open("rb") as file:
        try:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise Unreadable("is a single array, not an npz file")
            with archive:
                return {name: archive[name] for name in archive.files}
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as damaged:
            raise Unreadable(f"is damaged: {damaged}") from damaged
        except ValueError as refused:
            raise Unreadable("is not an npz file of plain arrays; pickles are never read") from refused


def as_npz(traces: Traces) -> bytes:
    """All parts, each array named part.column."""
    arrays: dict[str, Any] = {
        f"{name}.{column}": np.array(value) if column == "client" else value
        for name, part in traces.parts.items()
        for column, value in part_arrays(part).items()
    }
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()
