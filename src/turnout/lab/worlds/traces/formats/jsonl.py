"""JSON lines with one client per line, and FedScale's records as JSON."""

from __future__ import annotations

import json
import math
import reprlib
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from turnout.lab.worlds.traces.data import PARTS, Traces
from turnout.lab.worlds.traces.formats.columns import (
    ROW_COLUMNS,
    Columns,
    Part,
    TraceFormatError,
    as_plain_values,
    expected_columns,
    open_text,
    part_arrays,
    read_lines,
)
from turnout.lab.worlds.traces.formats.tables import KNOWN_COLUMNS, MAX_NUMBER, Layout, Problem, Rows, part_for
from turnout.storage.encoding.limits import parse_json

#: The largest file of FedScale's records, decompressed: it is parsed at once, and takes ten times as much memory.
MAX_JSON_BYTES = 1 << 27
#: The keys of FedScale's device records.
_CAPACITY_KEYS = ("computation", "communication")


def read_jsonl(path: Path, layout: Layout, problems: list[Problem]) -> dict[str, Rows]:
    """Reads a file in which each line names a client and one or more parts."""
    builders: dict[str, _PartBuilder] = {}
    lines = 0
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        lines += 1
        try:
            client, sections = _parse_line(line, layout)
            for part, section in sections.items():
                builders.setdefault(part, _PartBuilder(part)).add(client, section, f"line {number}")
        except TraceFormatError as error:
            problems.append(Problem(str(path), f"line {number}", str(error)))
    if not lines:
        raise TraceFormatError("the file is empty")
    return _build_rows(builders, path)


def _parse_line(line: str, layout: Layout) -> tuple[str, dict[str, Any]]:
    try:
        data = parse_json(line)
    except ValueError as error:
        raise TraceFormatError(f"the text is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise TraceFormatError('the line must be an object, such as {"client": "a", "devices": {"score": 7}}')
    client = data.pop(layout.file_column("client"), None)
    if not isinstance(client, str | int) or isinstance(client, bool) or not str(client).strip():
        raise TraceFormatError("client is missing: each line needs the id of its client")
    sections = {part: data[part] for part in PARTS if part in data} or {"": data}
    parts: dict[str, Any] = {}
    for name, section in sections.items():
        if not isinstance(section, dict):
            raise TraceFormatError(f"{name} must be an object of columns, not {reprlib.repr(section)}")
        columns = {
            column: section[layout.file_column(column)]
            for column in KNOWN_COLUMNS
            if layout.file_column(column) in section
        }
        part = part_for(list(columns))
        if part is None or name not in ("", part):
            raise TraceFormatError(expected_columns(list(section), "key"))
        parts[part] = columns
    return str(client).strip(), parts


class _PartBuilder:
    """Collects the rows of one part client by client; all clients must have the same columns."""

    def __init__(self, part: str) -> None:
        self._part = part
        self._locations: dict[str, str] = {}
        self._counts: list[int] = []
        self._columns: dict[str, list[Any]] = {}

    def add(self, client: str, section: Mapping[str, Any], location: str) -> None:
        """Adds the rows of a client; a list has one value per row, any other value holds for all rows."""
        if client in self._locations:
            raise TraceFormatError(
                f"client {client!r} is already defined ({self._locations[client]}): define each client once"
            )
        lengths = {len(value) for value in section.values() if isinstance(value, list)}
        if len(lengths) > 1:
            raise TraceFormatError(
                f"the lists of {self._part} must be equally long, not {', '.join(map(str, sorted(lengths)))}"
            )
        rows = lengths.pop() if lengths else 1
        if rows == 0 and self._part == "availability":
            section = {key: [0] if isinstance(value, list) else value for key, value in section.items()}
            rows = 1
        if rows == 0:
            raise TraceFormatError(f"{self._part} has no rows: omit it")
        if self._locations and set(section) != set(self._columns):
            different = sorted(set(section) ^ set(self._columns))
            raise TraceFormatError(
                f"{self._part} has {', '.join(section)}, but {next(iter(self._locations.values()))} has "
                f"{', '.join(self._columns)}: give {different[0]!r} in all lines or in none"
            )
        for key, value in section.items():
            self._columns.setdefault(key, []).extend(value if isinstance(value, list) else [value] * rows)
        self._locations[client] = location
        self._counts.append(rows)

    def rows(self, file: str) -> Rows:
        """Returns all rows collected so far."""
        ids, locations = list(self._locations), list(self._locations.values())
        owner = np.repeat(np.arange(len(ids)), np.array(self._counts, dtype=np.int64))
        columns: Columns = {key: [_scalar(value) for value in values] for key, values in self._columns.items()}
        return Rows(file, ids, owner, columns, lambda row: locations[owner[row]])


def _build_rows(builders: Mapping[str, _PartBuilder], path: Path) -> dict[str, Rows]:
    parts = {part: rows.rows(str(path)) for part, rows in builders.items()}
    return {part: rows for part, rows in parts.items() if rows.ids}


def write_jsonl(traces: Traces) -> bytes:
    """Returns one line per client, or one line per client and part if the parts have different clients."""
    same_clients = len({part.ids for part in traces.parts.values()}) == 1
    lines: dict[tuple[str, str], dict[str, Any]] = {}
    for name, part in traces.parts.items():
        for client, section in _sections(name, part):
            lines.setdefault((client, "" if same_clients else name), {"client": client})[name] = section
    text = "".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines.values())
    return text.encode()


def _sections(name: str, part: Part) -> Iterator[tuple[str, dict[str, Any]]]:
    arrays = part_arrays(part)
    clients, ptr = arrays.pop("client"), arrays.pop("ptr", None)
    columns = {key: as_plain_values(values) for key, values in arrays.items()}
    for row, client in enumerate(clients):
        own_rows = slice(row, row + 1) if ptr is None else slice(ptr[row], ptr[row + 1])
        row_columns = ROW_COLUMNS[name] if ptr is not None else ()
        yield client, {key: values[own_rows] if key in row_columns else values[row] for key, values in columns.items()}


def read_fedscale(path: Path, layout: Layout, problems: list[Problem]) -> dict[str, Rows]:  # noqa: ARG001
    """Reads the availability, the capacity, or both, of each client."""
    try:
        with open_text(path, MAX_JSON_BYTES) as text:
            data = parse_json(text.read())
    except UnicodeDecodeError as error:
        raise TraceFormatError("the file is not UTF-8 text") from error
    except zlib.error as error:
        raise TraceFormatError(f"the file is damaged: {error}") from error
    except ValueError as error:
        raise TraceFormatError(f"the text is not JSON: {error}") from error
    records: dict[str, dict[str, Any]] = {}
    keys = ("client_behave_trace", "client_device_capacity")
    mappings = [data[key] for key in keys if key in data] if isinstance(data, dict) else []
    for mapping in mappings or [data]:
        if not isinstance(mapping, dict) or not all(isinstance(record, dict) for record in mapping.values()):
            raise TraceFormatError("the file must map each client to its FedScale record: see docs/traces.md")
        for client, record in mapping.items():
            records.setdefault(client, {}).update(record)
    builders = {part: _PartBuilder(part) for part in PARTS}
    for client, record in records.items():
        try:
            for part, section in _fedscale_client(record).items():
                builders[part].add(client, section, f"record {client!r}")
        except TraceFormatError as error:
            problems.append(Problem(str(path), f"record {client!r}", str(error)))
    if not records:
        raise TraceFormatError("the file is empty")
    return _build_rows(builders, path)


def _fedscale_client(record: Mapping[str, Any]) -> dict[str, Any]:
    sections: dict[str, Any] = {}
    if "active" in record:
        active, inactive, end = (record.get(key) for key in ("active", "inactive", "finish_time"))
        if not isinstance(active, list) or not isinstance(inactive, list) or end is None:
            raise TraceFormatError("the lists active and inactive and a finish_time are required")
        inactive = [*inactive, end] if len(active) == len(inactive) + 1 else inactive
        if len(active) != len(inactive):
            raise TraceFormatError(f"active has {len(active)} times, but inactive has {len(inactive)}")
        sections["availability"] = {"start": active, "stop": inactive, "end": end}
    if all(key in record for key in _CAPACITY_KEYS):
        milliseconds = record["computation"]
        if isinstance(milliseconds, bool) or not isinstance(milliseconds, int | float):
            raise TraceFormatError(f"computation must be the milliseconds per sample, not {reprlib.repr(milliseconds)}")
        seconds = milliseconds / 1000 if abs(milliseconds) < MAX_NUMBER else math.inf  # validation rejects infinity
        sections["devices"] = {"seconds_per_sample": seconds}
        sections["links"] = {"down_kbps": record["communication"]}
    if not sections:
        raise TraceFormatError("active, inactive and finish_time, or computation and communication, are required")
    return sections


def _scalar(value: Any) -> Any:
    """Returns numbers and strings unchanged and the representation of other values, which validation then rejects."""
    return value if isinstance(value, str | int | float) and not isinstance(value, bool) else reprlib.repr(value)
