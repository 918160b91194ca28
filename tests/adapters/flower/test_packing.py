"""Plain values are converted to JSON and arrays and back, exactly and without pickle."""

from __future__ import annotations

import json
import threading
from collections import deque, namedtuple
from enum import IntEnum
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ConfigRecord, MetricRecord

from turnout.adapters.flower.resume.packing import Packer, unstorable_part

STORABLE: dict[str, Any] = {
    "a dict with numbers as keys": {1: "a", -7: {2.5: [1, 2]}, False: None},
    "bytes": b"\x00\xff model",
    "no bytes": b"",
    "metrics": MetricRecord({"loss": 0.5, "by class": [1.0, 2.0]}),
    "a config": ConfigRecord({"rate": 0.1, "name": "x", "raw": b"\x01", "all": ["a"], "on": True}),
    "numpy scalars": [np.bool_(True), np.float32(0.1), np.str_("ω"), np.datetime64("2026-01-01")],
    "the state of a random generator": np.random.default_rng(5).bit_generator.state,
    "deeply nested": [{"a": ({"b": [(1, 2)]},)}],
}


def round_trip(value: Any) -> Any:
    packer = Packer()
    text = json.dumps(packer.pack(value))
    assert all(not array.dtype.hasobject for array in packer.arrays)
    return Packer(packer.arrays).unpack(json.loads(text))


@pytest.mark.parametrize("name", STORABLE)
def test_a_value_is_restored_with_its_type(name: str) -> None:
    value = STORABLE[name]
    restored = round_trip(value)
    assert type(restored) is type(value)
    assert restored == value
    if isinstance(value, dict | list):
        assert list(map(type, restored)) == list(map(type, value))


def test_an_array_of_flower_is_restored() -> None:
    assert round_trip(Array(np.arange(3.0))).numpy().tolist() == [0.0, 1.0, 2.0]


class Level(IntEnum):
    HIGH = 1


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "part"),
    [
        (threading.Lock(), "is a _thread.lock"),
        ({"a": [1, {2: threading.Lock()}]}, "['a'][1][2] is a _thread.lock"),
        ([1, object()], "[1] is a object"),
        ({object(): 1}, "is a dict"),
        ({1, 2}, "is a set"),
        (deque([1]), "is a collections.deque"),
        (np.array([object()]), "is a numpy.ndarray"),
        (Level.HIGH, "Level"),
        (Point(1, 2), "Point"),
    ],
)
def test_the_part_that_cannot_be_stored_is_named(value: Any, part: str) -> None:
    problem = unstorable_part(value)
    assert problem is not None
    assert part in problem


def test_a_value_that_contains_itself_cannot_be_stored() -> None:
    value: list[Any] = [1]
    value.append(value)
    assert str(unstorable_part(value)).endswith("contains itself, or is nested too deeply")
    same = [1]
    assert unstorable_part([same, same]) is None  # twice is not inside
