"""Traces as JSON lines, one client a line; and FedScale's records, as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from turnout.simulator.traces.data import PARTS, Traces
from turnout.simulator.traces.formats.columns import (
    ROW_COLUMNS,
    Columns,
    Part,
    Unreadable,
    expected_columns,
    part_arrays,
    plain,
    text_of,
)
from turnout.simulator.traces.formats.tables import KNOWN_COLUMNS, Layout, Problem, Rows, part_of

#: What FedScale tells of a device.
_CAPACITY = ("computation", "communication")


def jsonl_parts(path: Path, layout: Layout, problems: list[Problem]) -> dict[str, Rows]:
    """Each line names a client and one or more parts."""
    gathered: dict[str, _Gathered] = {}
    lines = 0
    for number, line in enumerate(text_of(path).split("\n"), start=1):
        if not line.strip():
            continue
        lines += 1
        try:
            client, sections = _json_client(line, layout)
            for part, section in sections.items():
                gathered.setdefault(part, _Gathered(part)).add(client, section, f"line {number}")
        except Unreadable as wrong:
            problems.append(Problem(str(path), f"line {number}", str(wrong)))
    if not lines:
        raise Unreadable("it is empty")
    return _gathered_rows(gathered, path)


def _json_client(line: str, layout: Layout) -> tuple[str, dict[str, Any]]:
    try:
        told = json.loads(line)
    except (ValueError, RecursionError) as malformed:
        raise Unreadable(f"is not JSON: {malformed}") from malformed
    if not isinstance(told, dict):
        raise Unreadable('must be an object, such as {"client": "a", "devices": {"score": 7}}')
    client = told.pop(layout.theirs("client"), None)
    if not isinstance(client, str | int) or isinstance(client, bool) or not str(client).strip():
        raise Unreadable("client is missing: each line needs the client's name")
    sections = {part: told[part] for part in PARTS if part in told} or {"": told}
    found: dict[str, Any] = {}
    for name, section in sections.items():
        if not isinstance(section, dict):
            raise Unreadable(f"{name} must be an object of columns, not {section!r}")
        columns = {ours: section[layout.theirs(ours)] for ours in KNOWN_COLUMNS if layout.theirs(ours) in section}
        part = part_of(list(columns))
        if part is None or name not in ("", part):
            raise Unreadable(expected_columns(list(section), "key"))
        found[part] = columns
    return str(client).strip(), found


class _Gathered:
    """Rows of one part, client by client; a column that one client lacks must be lacking in all."""

    def __init__(self, part: str) -> None:
        self._part = part
        self._at: dict[str, str] = {}
        self._counts: list[int] = []
        self._columns: dict[str, list[Any]] = {}

    def add(self, client: str, section: Mapping[str, Any], place: str) -> None:
        """Lists have one value a row, anything else holds for all rows."""
        if client in self._at:
            raise Unreadable(f"client {client!r} stands there already ({self._at[client]}): give each client once")
        lengths = {len(value) for value in section.values() if isinstance(value, list)}
        if len(lengths) > 1:
            raise Unreadable(
                f"the lists of {self._part} must be equally long, not {', '.join(map(str, sorted(lengths)))}"
            )
        rows = lengths.pop() if lengths else 1
        if rows == 0 and self._part == "availability":
            section = {key: [0] if isinstance(value, list) else value for key, value in section.items()}
            rows = 1
        if rows == 0:
            raise Unreadable(f"{self._part} has no rows: leave it out")
        if self._at and set(section) != set(self._columns):
            odd = sorted(set(section) ^ set(self._columns))
            raise Unreadable(
                f"{self._part} has {', '.join(section)}, but {next(iter(self._at.values()))} has "
                f"{', '.join(self._columns)}: give {odd[0]!r} in all lines or in none"
            )
        for key, value in section.items():
            self._columns.setdefault(key, []).extend(value if isinstance(value, list) else [value] * rows)
        self._at[client] = place
        self._counts.append(rows)

    def rows(self, file: str) -> Rows:
        """All of them."""
        ids, places = list(self._at), list(self._at.values())
        owner = np.repeat(np.arange(len(ids)), np.array(self._counts, dtype=np.int64))
        columns: Columns = {key: [_scalar(value) for value in values] for key, values in self._columns.items()}
        return Rows(file, ids, owner, columns, lambda row: places[owner[row]])


def _gathered_rows(gathered: Mapping[str, _Gathered], path: Path) -> dict[str, Rows]:
    found = {part: rows.rows(str(path)) for part, rows in gathered.items()}
    return {part: rows for part, rows in found.items() if rows.ids}


def as_jsonl(traces: Traces) -> bytes:
    """One line a client; where the parts are of different clients, one line a client and part."""
    together = len({part.ids for part in traces.parts.values()}) == 1
    lines: dict[tuple[str, str], dict[str, Any]] = {}
    for name, part in traces.parts.items():
        for client, section in _sections(name, part):
            lines.setdefault((client, "" if together else name), {"client": client})[name] = section
    text = "".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines.values())
    return text.encode()


def _sections(name: str, part: Part) -> Iterator[tuple[str, dict[str, Any]]]:
    arrays = part_arrays(part)
    clients, ptr = arrays.pop("client"), arrays.pop("ptr", None)
    table = {key: plain(values) for key, values in arrays.items()}
    for row, client in enumerate(clients):
        mine = slice(row, row + 1) if ptr is None else slice(ptr[row], ptr[row + 1])
        by_row = ROW_COLUMNS[name] if ptr is not None else ()
        yield client, {key: values[mine] if key in by_row else values[row] for key, values in table.items()}


def fedscale_parts(path: Path, layout: Layout, problems: list[Problem]) -> dict[str, Rows]:  # noqa: ARG001
    """The availability and the capacity of each client, together or one of them."""
    try:
        told = json.loads(text_of(path))
    except (ValueError, RecursionError) as malformed:
        raise Unreadable(f"is not JSON: {malformed}") from malformed
    records: dict[str, dict[str, Any]] = {}
    both = ("client_behave_trace", "client_device_capacity")
    tables = [told[key] for key in both if key in told] if isinstance(told, dict) else []
    for table in tables or [told]:
        if not isinstance(table, dict) or not all(isinstance(one, dict) for one in table.values()):
            raise Unreadable("expected are FedScale's records by client: see docs/traces.md")
        for client, record in table.items():
            records.setdefault(client, {}).update(record)
    gathered = {part: _Gathered(part) for part in PARTS}
    for client, record in records.items():
        try:
            for part, section in _fedscale_client(record).items():
                gathered[part].add(client, section, f"record {client!r}")
        except Unreadable as wrong:
            problems.append(Problem(str(path), f"record {client!r}", str(wrong)))
    if not records:
        raise Unreadable("it is empty")
    return _gathered_rows(gathered, path)


def _fedscale_client(record: Mapping[str, Any]) -> dict[str, Any]:
    sections: dict[str, Any] = {}
    if "active" in record:
        active, inactive, end = (record.get(word) for word in ("active", "inactive", "finish_time"))
        if not isinstance(active, list) or not isinstance(inactive, list) or end is None:
            raise Unreadable("expected are lists active and inactive, and a finish_time")
        inactive = [*inactive, end] if len(active) == len(inactive) + 1 else inactive
        if len(active) != len(inactive):
            raise Unreadable(f"{len(active)} times of active, but {len(inactive)} of inactive")
        sections["availability"] = {"start": active, "stop": inactive, "end": end}
    if all(word in record for word in _CAPACITY):
        milliseconds = record["computation"]
        if isinstance(milliseconds, bool) or not isinstance(milliseconds, int | float):
            raise Unreadable(f"computation must be milliseconds a sample, not {milliseconds!r}")
        sections["devices"] = {"seconds_per_sample": milliseconds / 1000}
        sections["links"] = {"down_kbps": record["communication"]}
    if not sections:
        raise Unreadable("expected are active, inactive and finish_time, or computation and communication")
    return sections


def _scalar(value: Any) -> Any:
    """What is neither a number nor a word is told as it stands, and refused as no number."""
    return value if isinstance(value, str | int | float) and not isinstance(value, bool) else repr(value)
