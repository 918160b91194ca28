"""Reads the event files of TensorBoard: records of a length, an Event as protocol buffer, and checksums of both."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from tensorboardX.proto.event_pb2 import Event


def events_in(folder: Path) -> list[Event]:
    """Returns all events of the files in a folder."""
    files = sorted(folder.glob("events.out.tfevents.*"))
    assert files, f"no event file in {folder}"
    return [event for file in files for event in _events(file.read_bytes())]


def scalars_in(folder: Path) -> dict[str, dict[int, float]]:
    """Returns the scalars of a run: values by step, by name."""
    results: dict[str, dict[int, float]] = {}
    for event in events_in(folder):
        for value in event.summary.value:
            if value.WhichOneof("value") == "simple_value":
                results.setdefault(value.tag, {})[event.step] = value.simple_value
    return results


def texts_in(folder: Path) -> dict[str, str]:
    """Returns the texts of a run by name."""
    return {
        value.tag: value.tensor.string_val[0].decode()
        for event in events_in(folder)
        for value in event.summary.value
        if value.WhichOneof("value") == "tensor"
    }


def _events(data: bytes) -> Iterator[Event]:
    start = 0
    while start < len(data):
        (length,) = struct.unpack_from("<Q", data, start)
        body = data[start + 12 : start + 12 + length]
        assert len(body) == length, "the file ends in the middle of a record"
        yield Event.FromString(body)
        start += 12 + length + 4
