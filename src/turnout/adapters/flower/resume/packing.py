"""Converts nested Python values to JSON and arrays, and back, without pickle."""

from __future__ import annotations

import random
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

PLAIN = (type(None), bool, int, float, str)
#: Containers that are written as lists of their items.
SEQUENCES: Mapping[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
}
#: Mappings that are written as lists of pairs.
MAPPINGS: Mapping[str, Callable[[list[Any]], Any]] = {
    "mapping": dict,
    "ordered": OrderedDict,
    "counter": lambda pairs: Counter(dict(pairs)),
    "metrics": lambda pairs: MetricRecord(dict(pairs)),
    "config": lambda pairs: ConfigRecord(dict(pairs)),
    "records": lambda pairs: RecordDict(dict(pairs)),
}
KIND_OF_MAPPING: Mapping[type[Any], str] = {
    OrderedDict: "ordered",
    Counter: "counter",
    MetricRecord: "metrics",
    ConfigRecord: "config",
    RecordDict: "records",
}
#: The functions that make the missing values of a defaultdict.
FACTORIES: Mapping[str, Any] = {kind.__name__: kind for kind in (int, float, str, bool, list, dict, set, tuple)}
BIT_GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
MOST_NESTED = 100  # levels


class UnstorableError(TypeError):
    """A value cannot be stored; the message says which part of it, and of what type it is."""


class Packer:
    """Converts values to JSON, in which each array is replaced by its index in `arrays`."""

    def __init__(self, arrays: list[npt.NDArray[Any]] | None = None) -> None:
        self.arrays = [] if arrays is None else arrays
        self._path: list[str] = []
        self._open: set[int] = set()  # the containers that are being packed

    # Packing

    def pack(self, value: Any) -> Any:
        """Returns the value as JSON; raises UnstorableError if it contains something that cannot be stored."""
        kind = type(value)
        if kind in PLAIN:
            return value
        if isinstance(value, np.generic) and not value.dtype.hasobject:
            return {"number": self._append(np.asarray(value))}
        if kind is np.ndarray and not value.dtype.hasobject:
            return {"array": self._append(value)}
        if kind in (bytes, bytearray):
            return {kind.__name__: self._append(np.frombuffer(value, np.uint8))}
        if kind is complex:
            return {"complex": [value.real, value.imag]}
        if kind is range:
            return {"range": [value.start, value.stop, value.step]}
        if isinstance(value, Path):
            return {"path": str(value)}
        if kind is Array:
            return {"flower_array": self._pack_array(value)}
        if kind is ArrayRecord:
            return {"record": [[name, self._pack_array(array)] for name, array in value.items()]}
        with self._inside(value):
            return self._pack_container(kind, value)

    def _pack_container(self, kind: type[Any], value: Any) -> Any:
        if kind.__name__ in SEQUENCES and kind is SEQUENCES[kind.__name__]:
            return {kind.__name__: self._pack_items(value)}
        if kind is deque:
            return {"deque": [self._pack_items(value), value.maxlen]}
        if kind is dict and all(type(name) is str for name in value):
            return {"table": {name: self._pack_at(repr(name), item) for name, item in value.items()}}
        if kind is dict or kind in KIND_OF_MAPPING:
            return {KIND_OF_MAPPING.get(kind, "mapping"): self._pack_pairs(value)}
        if kind is defaultdict:
            factory = getattr(value.default_factory, "__name__", None)
            if value.default_factory is not None and FACTORIES.get(str(factory)) is not value.default_factory:
                self._refuse(value.default_factory)
            return {"defaultdict": [factory, self._pack_pairs(value)]}
        state = _generator_state(value)
        if state is not None:
            return {"generator": [state[0], self.pack(state[1])]}
        torch = sys.modules.get("torch")
        if torch is not None and kind is torch.Tensor and value.device.type == "cpu" and not value.requires_grad:
            return {"tensor": self._append(value.numpy())}
        return self._refuse(value)

    def _pack_items(self, items: Any) -> list[Any]:
        return [self._pack_at(str(index), item) for index, item in enumerate(items)]

    def _pack_pairs(self, items: Mapping[Any, Any]) -> list[Any]:
        return [[self._pack_at(repr(key), key), self._pack_at(repr(key), item)] for key, item in items.items()]

    def _pack_at(self, place: str, value: Any) -> Any:
        self._path.append(f"[{place}]")
        packed = self.pack(value)
        self._path.pop()
        return packed

    @contextmanager
    def _inside(self, value: Any) -> Iterator[None]:
        if id(value) in self._open or len(self._open) >= MOST_NESTED:
            raise UnstorableError(f"{''.join(self._path)} contains itself, or is nested too deeply".strip())
        self._open.add(id(value))
        yield
        self._open.discard(id(value))

    def _refuse(self, value: Any) -> Any:
        kind = type(value)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        raise UnstorableError(f"{''.join(self._path)} is a {name}".strip())

    def _pack_array(self, array: Array) -> dict[str, Any]:
        index = self._append(np.frombuffer(array.data, np.uint8))
        return {"dtype": array.dtype, "shape": list(array.shape), "stype": array.stype, "data": index}

    def _append(self, array: npt.NDArray[Any]) -> int:
        self.arrays.append(array)
        return len(self.arrays) - 1

    # Unpacking

    def unpack(self, packed: Any) -> Any:
        """Returns the value that `pack` converted."""
        if not isinstance(packed, dict):
            return packed
        ((kind, content),) = packed.items()
        if kind in SEQUENCES:
            return SEQUENCES[kind]([self.unpack(item) for item in content])
        if kind in MAPPINGS:
            return MAPPINGS[kind](self._unpack_pairs(content))
        return _UNPACKED[kind](self, content)

    def _unpack_pairs(self, pairs: list[Any]) -> list[Any]:
        return [(self.unpack(key), self.unpack(item)) for key, item in pairs]

    def _unpack_array(self, packed: Mapping[str, Any]) -> Array:
        data = self.arrays[packed["data"]].tobytes()
        return Array(dtype=packed["dtype"], shape=tuple(packed["shape"]), stype=packed["stype"], data=data)

    def _unpack_defaultdict(self, content: list[Any]) -> defaultdict[Any, Any]:
        factory, pairs = content
        return defaultdict(None if factory is None else FACTORIES[factory], self._unpack_pairs(pairs))

    def _unpack_tensor(self, index: int) -> Any:
        import torch

        return torch.from_numpy(self.arrays[index].copy())


_UNPACKED: Mapping[str, Callable[[Packer, Any], Any]] = {
    "array": lambda packer, index: packer.arrays[index],
    "number": lambda packer, index: packer.arrays[index][()],
    "bytes": lambda packer, index: packer.arrays[index].tobytes(),
    "bytearray": lambda packer, index: bytearray(packer.arrays[index].tobytes()),
    "complex": lambda _, parts: complex(*parts),
    "range": lambda _, parts: range(*parts),
    "path": lambda _, text: Path(text),
    "flower_array": lambda packer, content: packer._unpack_array(content),
    "record": lambda packer, content: ArrayRecord({name: packer._unpack_array(array) for name, array in content}),
    "table": lambda packer, content: {name: packer.unpack(item) for name, item in content.items()},
    "deque": lambda packer, content: deque((packer.unpack(item) for item in content[0]), content[1]),
    "defaultdict": Packer._unpack_defaultdict,
    "generator": lambda packer, content: make_generator(content[0], packer.unpack(content[1])),
    "tensor": Packer._unpack_tensor,
}


def unstorable_part(value: Any) -> str | None:
    """Returns which part of a value cannot be stored; None if all of it can."""
    try:
        Packer().pack(value)
    except UnstorableError as error:
        return str(error)
    return None


# Random generators


def _generator_state(value: Any) -> tuple[str, Any] | None:
    """Returns the kind and the state of a random generator; None for any other value."""
    if type(value) is random.Random:
        return "random", value.getstate()
    if type(value) is np.random.RandomState:
        return "RandomState", value.get_state(legacy=False)
    if type(value) is np.random.Generator and type(value.bit_generator).__name__ in BIT_GENERATORS:
        return type(value.bit_generator).__name__, value.bit_generator.state
    return None


def make_generator(kind: str, state: Any) -> Any:
    """Returns a random generator in this state."""
    made: Any
    if kind == "random":
        made = random.Random()
    elif kind == "RandomState":
        made = np.random.RandomState()
    elif kind in BIT_GENERATORS:
        made = np.random.Generator(getattr(np.random, kind)())
    else:
        raise ValueError(f"there is no random generator {kind!r}")
    set_generator(made, state)
    return made


def copy_generator(source: Any, target: Any) -> bool:
    """Sets `target` to the state of `source` if both are random generators of one kind; returns whether they are."""
    from_, to = _generator_state(source), _generator_state(target)
    if from_ is None or to is None or from_[0] != to[0]:
        return False
    set_generator(target, from_[1])
    return True


def set_generator(generator: Any, state: Any) -> None:
    """Sets a random generator to a state."""
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(state)
    else:
        generator.bit_generator.state = state
