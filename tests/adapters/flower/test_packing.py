"""Values are converted to JSON and arrays and back, exactly and without pickle."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ConfigRecord, MetricRecord, RecordDict

from adapters.flower.in_process import model, weights
from turnout.adapters.flower.resume.packing import BIT_GENERATORS, Packer, copy_generator, unstorable_part

STORABLE: dict[str, Any] = {
    "a dict with numbers as keys": {1: "a", -7: {2.5: [1, 2]}, False: None},
    "a dict with tuples as keys": {("c1", 3): 0.5, (): {frozenset({1}): b"x"}},
    "a set": {1, 2, "c1", (3, 4)},
    "a frozenset": frozenset({"a", "b"}),
    "a bounded deque": deque([1, [2], {3: 4}], maxlen=5),
    "a deque": deque(["a"]),
    "bytes": b"\x00\xff model",
    "no bytes": b"",
    "a bytearray": bytearray(b"abc"),
    "a complex number": 1.5 - 2j,
    "a range": range(3, 30, 4),
    "an OrderedDict": OrderedDict([("z", 1), ("a", {1: 2})]),
    "a Counter": Counter({"c1": 3, 7: 1}),
    "a defaultdict of lists": defaultdict(list, {"c1": [0.5, 0.25], 3: []}),
    "a defaultdict without a factory": defaultdict(None, {1: 2}),
    "a path": Path("/srv/models") / "best.npz",
    "metrics": MetricRecord({"loss": 0.5, "by class": [1.0, 2.0]}),
    "a config": ConfigRecord({"rate": 0.1, "name": "x", "raw": b"\x01", "all": ["a"], "on": True}),
    "numpy scalars": [np.bool_(True), np.float32(0.1), np.str_("ω"), np.datetime64("2026-01-01")],
    "deeply nested": [{"a": ({"b": deque([{1, 2}])},)}],
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
    if isinstance(value, dict):
        assert list(map(type, restored)) == list(map(type, value))
        assert list(restored) == list(value)


def test_the_details_of_containers_are_restored() -> None:
    assert round_trip(deque([1], maxlen=3)).maxlen == 3
    assert round_trip(defaultdict(list))["new"] == []
    assert list(map(type, round_trip(STORABLE["numpy scalars"]))) == list(map(type, STORABLE["numpy scalars"]))


def test_records_are_restored() -> None:
    restored = round_trip(RecordDict({"arrays": model(1.0, 2.0), "metrics": MetricRecord({"loss": 0.5})}))
    assert weights(restored.array_records["arrays"]) == [1.0, 2.0]
    assert restored.metric_records["metrics"] == MetricRecord({"loss": 0.5})
    assert round_trip(Array(np.arange(3.0))).numpy().tolist() == [0.0, 1.0, 2.0]


def test_a_torch_tensor_is_restored() -> None:
    torch = pytest.importorskip("torch")
    restored = round_trip([torch.arange(3), torch.tensor(0.5)])
    assert all(type(tensor) is torch.Tensor for tensor in restored)
    assert restored[0].tolist() == [0, 1, 2]
    assert restored[1].item() == 0.5
    assert unstorable_part(torch.zeros(2, requires_grad=True)) == "is a torch.Tensor"


def generators() -> list[Any]:
    made: list[Any] = [random.Random(5), np.random.RandomState(5)]
    return made + [np.random.Generator(getattr(np.random, name)(5)) for name in BIT_GENERATORS]


def draw(generator: Any) -> list[float]:
    draw_one = generator.gauss if isinstance(generator, random.Random) else generator.normal
    return [float(draw_one(0.0, 1.0)) for _ in range(7)]


@pytest.mark.parametrize("index", range(2 + len(BIT_GENERATORS)))
def test_a_random_generator_continues_where_it_was(index: int) -> None:
    generator = generators()[index]
    draw(generator)  # an odd number: some generators keep a second normal number
    restored = round_trip({"rng": generator})["rng"]
    assert type(restored) is type(generator)
    assert draw(restored) == draw(generator)


def test_only_generators_of_one_kind_are_copied_in_place() -> None:
    first, second = np.random.default_rng(1), np.random.default_rng(2)
    assert copy_generator(first, second)
    assert draw(first) == draw(second)
    assert not copy_generator(random.Random(1), second)
    assert not copy_generator(np.random.Generator(np.random.MT19937(1)), second)
    assert not copy_generator(5, second)


class Level(IntEnum):
    HIGH = 1


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "part"),
    [
        (threading.Lock(), "is a _thread.lock"),
        ({"a": [1, {2: threading.Lock()}]}, "['a'][1][2] is a _thread.lock"),
        ([1, object()], "[1] is a object"),
        ({object(): 1}, "is a object"),
        (np.array([object()]), "is a numpy.ndarray"),
        (defaultdict(lambda: 5), "is a function"),
        (Level.HIGH, "Level"),
        (Point(1, 2), "Point"),
        (random.SystemRandom(), "is a random.SystemRandom"),
        ((number for number in (1, 2)), "is a generator"),
    ],
)
def test_the_part_that_cannot_be_stored_is_named(value: Any, part: str) -> None:
    found = unstorable_part(value)
    assert found is not None
    assert part in found


def test_a_value_that_contains_itself_cannot_be_stored() -> None:
    value: list[Any] = [1]
    value.append({"again": value})
    assert unstorable_part(value) == "[1]['again'] contains itself, or is nested too deeply"
    same = [1]
    assert unstorable_part([same, same]) is None  # twice is not inside


def test_a_deeply_nested_value_is_refused_and_not_a_crash() -> None:
    value: list[Any] = []
    for _ in range(5000):
        value = [value]
    part = unstorable_part(value)
    assert part is not None
    assert part.endswith("nested too deeply")


def test_an_unknown_generator_in_a_file_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no random generator 'os'"):
        Packer().unpack({"generator": ["os", None]})
