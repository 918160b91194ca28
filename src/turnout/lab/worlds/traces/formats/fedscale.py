"""FedScale's records of availability and of devices, as JSON."""

from __future__ import annotations

import math
import reprlib
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from turnout.lab.worlds.traces.data import PARTS
from turnout.lab.worlds.traces.formats.columns import Columns, TraceFormatError, open_text
from turnout.lab.worlds.traces.formats.tables import MAX_NUMBER, Layout, Problem, Rows
from turnout.storage.encoding.limits import parse_json

#: The largest file of FedScale's records, decompressed: it is parsed at once, and takes ten times as much memory.
MAX_JSON_BYTES = 1 << 27
#: The keys of FedScale's device records.
_CAPACITY_KEYS = ("computation", "communication")


def read_fedscale(path: Path, layout: Layout, problems: list[Problem]) -> dict[str, Rows]:  # noqa: ARG001
    """Reads the availability, the capacity, or both, of each client."""
    sections: dict[str, dict[str, Mapping[str, list[Any]]]] = {part: {} for part in PARTS}
    for client, record in _read_records(path).items():
        try:
            for part, section in _parts_of(record).items():
                sections[part][client] = section
        except TraceFormatError as error:
            problems.append(Problem(str(path), f"record {client!r}", str(error)))
    return {part: _as_rows(str(path), clients) for part, clients in sections.items() if clients}


def _read_records(path: Path) -> dict[str, dict[str, Any]]:
    """Returns the records of availability and capacity of each client."""
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
    if not records:
        raise TraceFormatError("the file is empty")
    return records


def _parts_of(record: Mapping[str, Any]) -> dict[str, Mapping[str, list[Any]]]:
    """Returns the columns of each part of a client; an interval of length zero keeps a client that is never there."""
    sections: dict[str, Mapping[str, list[Any]]] = {}
    if "active" in record:
        active, inactive, end = (record.get(key) for key in ("active", "inactive", "finish_time"))
        if not isinstance(active, list) or not isinstance(inactive, list) or end is None:
            raise TraceFormatError("the lists active and inactive and a finish_time are required")
        inactive = [*inactive, end] if len(active) == len(inactive) + 1 else inactive
        if len(active) != len(inactive):
            raise TraceFormatError(f"active has {len(active)} times, but inactive has {len(inactive)}")
        starts, stops = active or [0], inactive or [0]
        sections["availability"] = {"start": starts, "stop": stops, "end": [end] * len(starts)}
    if all(key in record for key in _CAPACITY_KEYS):
        milliseconds = record["computation"]
        if isinstance(milliseconds, bool) or not isinstance(milliseconds, int | float):
            raise TraceFormatError(f"computation must be the milliseconds per sample, not {reprlib.repr(milliseconds)}")
        seconds = milliseconds / 1000 if abs(milliseconds) < MAX_NUMBER else math.inf  # validation rejects infinity
        sections["devices"] = {"seconds_per_sample": [seconds]}
        sections["links"] = {"down_kbps": [record["communication"]]}
    if not sections:
        raise TraceFormatError("active, inactive and finish_time, or computation and communication, are required")
    return sections


def _as_rows(file: str, clients: Mapping[str, Mapping[str, list[Any]]]) -> Rows:
    ids, sections = list(clients), list(clients.values())
    columns: Columns = {
        name: [_scalar(value) for section in sections for value in section[name]] for name in sections[0]
    }
    owner = np.repeat(np.arange(len(ids)), [len(next(iter(section.values()))) for section in sections])
    return Rows(file, ids, owner, columns, lambda row: f"record {ids[owner[row]]!r}")


def _scalar(value: Any) -> Any:
    """Returns numbers and strings unchanged and the representation of other values, which validation then rejects."""
    return value if isinstance(value, str | int | float) and not isinstance(value, bool) else reprlib.repr(value)
