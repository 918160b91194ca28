"""Compact serialisation of large states, most of whose values are equal: without pickle, in one pass over each array.

In the state of a large fleet, most clients were never selected and have the same values, and counters are small. Each
row of an array is therefore stored as its most usual value, one bit per entry that says which entries differ, and those
entries; integers have as few bytes as they need. Because each entry has at least one bit, a hostile file cannot need
more than 64 times its size in memory.

A state is a magic number, the length of a JSON header, the header, and the bytes of all rows, one after the other.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from turnout.storage.encoding.limits import parse_json, unpack_mask

MAGIC = b"turnout state 1\n"
#: The number of entries that the usual value of a row is estimated from.
SAMPLES = 15
#: The most rows that are stored one by one; other arrays are stored as one row.
MOST_ROWS = 256
#: A row is stored with its usual value if at most this share of its entries differ from it.
MOST_DIFFERENT = 0.5
#: The bytes of the largest entry that a row can be stored without.
LARGEST_ENTRY = 8
_LENGTH_BYTES = 8
_NARROW = tuple(map(np.dtype, ("<i1", "<i2", "<i4")))

Array = npt.NDArray[Any]


def pack_compact(order: list[str], scalars: Mapping[str, Any], arrays: Mapping[str, Array]) -> bytes:
    """Returns a state as bytes; equal states have equal bytes.

    Args:
        order: The names of all values, in order.
        scalars: Numbers, strings and booleans by name.
        arrays: Arrays of numbers, booleans or strings by name.
    """
    parts: list[bytes] = []
    described = {name: _pack_array(array, parts) for name, array in arrays.items()}
    header = json.dumps({"order": order, "scalars": dict(scalars), "arrays": described}).encode()
    return b"".join([MAGIC, len(header).to_bytes(_LENGTH_BYTES, "little"), header, *parts])


def is_compact(data: bytes) -> bool:
    """Returns whether `pack_compact` wrote these bytes."""
    return data.startswith(MAGIC)


def unpack_compact(data: bytes) -> dict[str, Any]:
    """Returns the values that were given to `pack_compact`, with the same types.

    Raises:
        ValueError: The bytes are damaged; other errors that wrong values in the header cause are possible too.
    """
    start = len(MAGIC) + _LENGTH_BYTES
    length = int.from_bytes(data[len(MAGIC) : start], "little")
    header = parse_json(data[start : start + length])
    if not isinstance(header, dict) or not isinstance(header.get("arrays"), dict):
        raise ValueError("the header of a state must be a mapping with arrays")
    reader = _Reader(data, start + length)
    arrays = {name: _unpack_array(described, reader) for name, described in header["arrays"].items()}
    reader.check_end()
    values = {**header["scalars"], **arrays}
    return {name: values[name] for name in header["order"]}


class _Reader:
    """Reads the rows, one after the other."""

    def __init__(self, data: bytes, position: int) -> None:
        self._data, self._position = data, position

    def require(self, size: int) -> None:
        """Raises ValueError if fewer bytes than this are left."""
        if size > len(self._data) - self._position:
            raise ValueError(f"{size} bytes are stated, but {len(self._data) - self._position} are left")

    def read(self, dtype: np.dtype[Any], count: int) -> Array:
        """Returns the next entries, as a view of the data."""
        size = dtype.itemsize * count
        self.require(size)
        array = np.frombuffer(self._data, dtype, count, self._position) if size else np.empty(0, dtype)
        self._position += size
        return array

    def check_end(self) -> None:
        if self._position != len(self._data):
            raise ValueError(f"there are {len(self._data) - self._position} bytes after the last array")


def _pack_array(array: Array, parts: list[bytes]) -> dict[str, Any]:
    """Appends the bytes of an array to `parts`, and returns its description."""
    transposed = array.flags.f_contiguous and not array.flags.c_contiguous
    ordered = array.T if transposed else np.asarray(array, order="C")
    return {
        "type": array.dtype.str,
        "shape": list(ordered.shape),
        "transposed": transposed,
        "rows": [_pack_row(row, parts) for row in _rows_of(ordered)],
    }


def _rows_of(array: Array) -> Array:
    """Returns an array as a matrix: by its rows if there are few of them, otherwise as one row."""
    rows = math.prod(array.shape[:-1])
    return array.reshape(rows, -1) if array.size and rows <= MOST_ROWS else array.reshape(1, array.size)


def _pack_row(row: Array, parts: list[bytes]) -> list[Any]:
    """Appends the bytes of a row, and returns the type of its stored entries and how many differ from the usual one.

    The number is None if all entries are stored.
    """
    stored = row.astype(_narrowest(row)) if row.dtype.kind == "i" else row
    bits = _as_bits(row)
    if bits is not None and len(bits):
        differs = bits != _usual(bits)
        different = int(np.count_nonzero(differs))
        if different <= MOST_DIFFERENT * len(bits):
            first = int(np.argmin(differs))
            usual = stored[first : first + 1]
            parts += [usual.tobytes(), np.packbits(differs).tobytes(), stored[differs].tobytes()]
            return [stored.dtype.str, different]
    parts.append(stored.tobytes())
    return [stored.dtype.str, None]


def _as_bits(row: Array) -> Array | None:
    """Returns the entries as integers, so that NaN equals itself and −0.0 differs from 0.0; None for large entries."""
    if row.dtype.kind == "U" or row.dtype.itemsize > LARGEST_ENTRY:
        return None
    return row.view(f"u{row.dtype.itemsize}")


def _usual(bits: Array) -> Any:
    """Returns the most frequent of some entries."""
    sample = bits[np.linspace(0, len(bits) - 1, SAMPLES).astype(np.int64)]
    values, counts = np.unique(sample, return_counts=True)
    return values[np.argmax(counts)]


def _narrowest(row: Array) -> np.dtype[Any]:
    """Returns the smallest type of integers that holds all entries of a row of integers."""
    if len(row):
        low, high = int(row.min()), int(row.max())
        for dtype in _NARROW:
            limits = np.iinfo(dtype)
            if dtype.itemsize < row.dtype.itemsize and limits.min <= low and high <= limits.max:
                return dtype
    return row.dtype


class _StoredRow(NamedTuple):
    """How a row is stored.

    Attributes:
        dtype: The type of the stored entries.
        different: How many entries differ from the usual one, and are stored; None if all entries are stored.
    """

    dtype: np.dtype[Any]
    different: int | None

    @classmethod
    def parse(cls, dtype: str, different: int | None, target: np.dtype[Any]) -> _StoredRow:
        """Returns a row from the header, if entries of the type `target` can be stored like this."""
        stored = _plain_type(dtype)
        if stored != target and (stored.kind, target.kind) != ("i", "i"):
            raise ValueError(f"entries of type {target} cannot be stored as {stored}")
        if different is not None and (different < 0 or target.itemsize > LARGEST_ENTRY):
            raise ValueError(f"{different} entries of {target.itemsize} bytes cannot be stored without the others")
        return cls(stored, different)

    def size(self, length: int) -> int:
        """Returns the number of bytes of a row of `length` entries."""
        if self.different is None:
            return length * self.dtype.itemsize
        return (1 + self.different) * self.dtype.itemsize + _mask_bytes(length)

    def fill(self, row: Array, reader: _Reader) -> None:
        """Reads the entries of a row."""
        if self.different is None:
            row[:] = reader.read(self.dtype, len(row))
            return
        row[:] = reader.read(self.dtype, 1)[0]
        differs = unpack_mask(reader.read(np.dtype(np.uint8), _mask_bytes(len(row))), len(row))
        if int(np.count_nonzero(differs)) != self.different:
            raise ValueError(f"{self.different} entries of a row must differ from the usual one")
        row[differs] = reader.read(self.dtype, self.different)


def _unpack_array(described: Mapping[str, Any], reader: _Reader) -> Array:
    dtype, shape = _plain_type(described["type"]), tuple(map(int, described["shape"]))
    stored = [_StoredRow.parse(name, different, dtype) for name, different in described["rows"]]
    size = math.prod(shape)
    if min(shape, default=0) < 0 or not stored or size % len(stored):
        raise ValueError(f"an array of shape {shape} cannot have {len(stored)} rows")
    length = size // len(stored)
    reader.require(sum(row.size(length) for row in stored))  # before memory is allocated
    rows = np.empty((len(stored), length), dtype=dtype)
    for row, described_row in zip(rows, stored, strict=True):
        described_row.fill(row, reader)
    array = rows.reshape(shape)
    return array.T if described["transposed"] else array


def _mask_bytes(length: int) -> int:
    return -(-length // 8)


def _plain_type(name: str) -> np.dtype[Any]:
    """Returns the type of this name, if it is one of numbers, booleans or strings."""
    dtype = np.dtype(str(name))
    if dtype.kind not in "biufU" or not dtype.itemsize:
        raise ValueError(f"arrays must hold numbers, booleans or strings, got {dtype}")
    return dtype
