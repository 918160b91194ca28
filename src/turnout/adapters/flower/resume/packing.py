"""Converts plain values to JSON and arrays, and back, without pickle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord

PLAIN = (type(None), bool, int, float, str)
KEYS = (bool, int, float, str)
#: Containers that are written as lists, and the kinds by which files name them.
LISTS: Mapping[str, Any] = {"list": list, "tuple": tuple}
PAIRS: Mapping[str, Any] = {"dict": dict, "metrics": MetricRecord, "config": ConfigRecord}
MAX_NESTED = 100  # levels
#: What can be stored, for messages.
STORABLE = "numbers, strings, bytes, NumPy arrays, Flower's records, and lists, tuples and dicts of these"


class UnstorableError(TypeError):
    """A value cannot be stored; the message says which part of it, and of what type it is."""


class Packer:
    """Converts values to JSON, in which each array is replaced by its index in `arrays`."""

    def __init__(self, arrays: list[npt.NDArray[Any]] | None = None) -> None:
        self.arrays = [] if arrays is None else arrays

    def pack(self, value: Any, path: tuple[str, ...] = ()) -> Any:
        """Returns the value as JSON; raises UnstorableError if it contains something that cannot be stored."""
        kind = type(value)
        if kind in PLAIN:
            return value
        if (kind is np.ndarray or isinstance(value, np.generic)) and not value.dtype.hasobject:
            return {"array" if kind is np.ndarray else "number": self._append(np.asarray(value))}
        if kind is bytes:
            return {"bytes": self._append(np.frombuffer(value, np.uint8))}
        if kind is Array:
            return {"flower_array": self._pack_array(value)}
        if kind is ArrayRecord:
            return {"record": [[name, self._pack_array(array)] for name, array in value.items()]}
        if len(path) > MAX_NESTED:
            raise UnstorableError(f"{''.join(path)} contains itself, or is nested too deeply")
        for name, container in LISTS.items():
            if kind is container:
                return {name: [self.pack(item, (*path, f"[{index}]")) for index, item in enumerate(value)]}
        for name, container in PAIRS.items():
            if kind is container and all(type(key) in KEYS for key in value):
                return {name: [[key, self.pack(item, (*path, f"[{key!r}]"))] for key, item in value.items()]}
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        raise UnstorableError(f"{''.join(path)} is a {name}".strip())

    def unpack(self, packed: Any) -> Any:
        """Returns the value that `pack` converted."""
        if not isinstance(packed, dict):
            return packed
        ((kind, content),) = packed.items()
        if kind in LISTS:
            return LISTS[kind](self.unpack(item) for item in content)
        if kind in PAIRS:
            return PAIRS[kind]({key: self.unpack(item) for key, item in content})
        return _UNPACKED[kind](self, content)

    def _pack_array(self, array: Array) -> dict[str, Any]:
        index = self._append(np.frombuffer(array.data, np.uint8))
        return {"dtype": array.dtype, "shape": list(array.shape), "stype": array.stype, "data": index}

    def _unpack_array(self, packed: Mapping[str, Any]) -> Array:
        data = self.arrays[packed["data"]].tobytes()
        return Array(dtype=packed["dtype"], shape=tuple(packed["shape"]), stype=packed["stype"], data=data)

    def _append(self, array: npt.NDArray[Any]) -> int:
        self.arrays.append(array)
        return len(self.arrays) - 1


_UNPACKED: Mapping[str, Callable[[Packer, Any], Any]] = {
    "array": lambda packer, index: packer.arrays[index],
    "number": lambda packer, index: packer.arrays[index][()],
    "bytes": lambda packer, index: packer.arrays[index].tobytes(),
    "flower_array": Packer._unpack_array,
    "record": lambda packer, content: ArrayRecord({name: packer._unpack_array(array) for name, array in content}),
}


def unstorable_part(value: Any) -> str | None:
    """Returns which part of a value cannot be stored; None if all of it can."""
    try:
        Packer().pack(value)
    except UnstorableError as error:
        return str(error)
    return None
