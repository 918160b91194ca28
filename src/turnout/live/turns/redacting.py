"""Removes what a forgotten client reported from stored events."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np

from turnout.storage.encoding.packing import pack, parse_stored, unpack

#: What clients reported in each kind of event: the arrays of values, by the array of the rows to which they belong.
REPORTED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "close": {"rows": ("contexts", "seconds", "losses", "signals"), "late_rows": ("late_seconds",)},
    "fill": {
        "rows": ("contexts",),
        "ended_rows": ("ended_seconds", "losses", "signals"),
        "late_rows": ("late_seconds",),
    },
}


def redact_event(kind: str, data: bytes, row: int, client: str, name: str) -> bytes:
    """Returns the data of an event without anything that a client reported; replays start from a later snapshot.

    Args:
        kind: The kind of the event.
        data: The data of the event.
        row: The row of the client.
        client: The id of the client.
        name: The name that replaces the id.
    """
    if kind == "join":
        ids = parse_stored(data)
        return json.dumps([name if joined == client else joined for joined in ids], ensure_ascii=False).encode()
    if kind not in REPORTED:
        return data
    header, arrays = unpack(data)
    if not any(row in arrays[rows] for rows in REPORTED[kind]):
        return data
    for rows, values in REPORTED[kind].items():
        own = arrays[rows] == row
        for value in values:
            if value in arrays:
                arrays[value] = arrays[value].copy()
                arrays[value][own] = np.nan if value in ("losses", "signals") else 0.0
    return pack(header, arrays)
