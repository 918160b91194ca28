"""Converts plain values to JSON and arrays, and back, without pickle."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord

PLAIN = (type(None), bool, int, float, str)
KEYS = (bool, int, float, str)
#: What can be stored, for messages.
STORABLE = "numbers, strings, bytes, NumPy arrays, ArrayRecords, and lists, tuples and dicts of these"


class Packer:
    """Converts values to JSON, in which each array is replaced by its index in `arrays`."""

    def __init__(self, arrays: list[npt.NDArray[Any]] | None = None) -> None:
        self.arrays = [] if arrays is None else arrays

    def pack(self, value: Any) -> Any:
        """Returns the value as JSON; raises TypeError if it contains something that cannot be stored."""
        kind = type(value)
        if kind in PLAIN:
            return value
        if (kind is np.ndarray or isinstance(value, np.generic)) and not value.dtype.hasobject:
            return {"array" if kind is np.ndarray else "number": self._append(np.asarray(value))}
        if kind is bytes:
            return {"bytes": self._append(np.frombuffer(value, np.uint8))}
        if kind is ArrayRecord:
            return {"record": [[name, *self._pack_array(array)] for name, array in value.items()]}
        if kind in (list, tuple):
            return {kind.__name__: [self.pack(item) for item in value]}
        if kind is dict and all(type(key) in KEYS for key in value):
            return {"dict": [[key, self.pack(item)] for key, item in value.items()]}
        raise TypeError(f"{kind.__module__}.{kind.__qualname__}")

    def unpack(self, packed: Any) -> Any:
        """Returns the value that `pack` converted."""
        if not isinstance(packed, dict):
            return packed
        ((kind, content),) = packed.items()
        match kind:
            case "array":
                return self.arrays[content]
            case "number":
                return self.arrays[content][()]
            case "bytes":
                return self.arrays[content].tobytes()
            case "record":
                return ArrayRecord({name: self._unpack_array(*array) for name, *array in content})
            case "dict":
                return {key: self.unpack(item) for key, item in content}
        items = [self.unpack(item) for item in content]
        return tuple(items) if kind == "tuple" else items

    def _pack_array(self, array: Array) -> tuple[str, list[int], str, int]:
        return array.dtype, list(array.shape), array.stype, self._append(np.frombuffer(array.data, np.uint8))

    def _unpack_array(self, dtype: str, shape: list[int], stype: str, index: int) -> Array:
        return Array(dtype=dtype, shape=tuple(shape), stype=stype, data=self.arrays[index].tobytes())

    def _append(self, array: npt.NDArray[Any]) -> int:
        self.arrays.append(array)
        return len(self.arrays) - 1


def unstorable_type(value: Any) -> str | None:
    """Returns the type of what cannot be stored in a value; None if all of it can."""
    try:
        Packer().pack(value)
    except TypeError as error:
        return str(error)
    except RecursionError:
        return "value that contains itself, or is nested too deeply"
    return None


def setting_digest(value: Any) -> str:
    """Returns a digest of a number, a text, or lists, tuples and dicts of these; "" for all else, such as arrays."""
    packer, value = Packer(), value.item() if isinstance(value, np.generic) else value
    try:
        packed = packer.pack(value)
    except (TypeError, RecursionError):
        return ""
    return "" if packer.arrays else sha256(repr(packed).encode()).hexdigest()
