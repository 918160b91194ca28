"""The encoding of everything that turnout stores: plain values and arrays as bytes, with a checksum, without pickle.

The bytes are a magic number, the checksum (CRC-32) of all that follows it and the length of a JSON text, the text, and
the arrays, one after the other. The text is a list of the plain values and of a description of each array: its name,
its type, its shape, whether it is stored transposed because its columns are contiguous, and its rows.

Usually an array has no rows, and all its entries are stored. In the state of a large fleet, however, most clients were
never selected and have the same values, and counters are small. Such an array is stored by rows: each as its most usual
value, one bit per entry that says which entries differ, and those entries; integers have as few bytes as they need.
Because each entry has at least one bit, a hostile file cannot need more than 64 times its size in memory.

Of two states of the same form, only what differs can be stored: of a large fleet, a few entries of large arrays.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from turnout.errors import StoreError
from turnout.storage.encoding.limits import parse_json, unpack_mask

Array = npt.NDArray[Any]

#: The kinds of arrays: booleans, numbers and strings.
PLAIN_ARRAYS = "biufcU"
MAGIC = b"turnout\x01"
_START = struct.Struct("<8sLL")
_ENCODER = json.JSONEncoder(separators=(",", ":"))
#: The number of entries that the usual value of a row is estimated from.
SAMPLES = 15
#: The most rows that are stored one by one; other arrays are stored as one row.
MAX_ROWS = 256
#: A row is stored with its usual value if at most this share of its entries differ from it.
MAX_DIFFERENT = 0.5
#: The bytes of the largest entry that a row can be stored without.
MAX_ENTRY = 8
_NARROW = tuple(map(np.dtype, ("<i1", "<i2", "<i4")))
#: Begins the key of the indices of the entries of an array that differ, in the order of the rows.
_INDICES = "@"
#: If more than one of so many entries of an array differ, the array is stored as a whole.
FEW = 16


def pack(header: Mapping[str, Any], arrays: Mapping[str, Array], *, compact: bool = False) -> bytes:
    """Returns plain values and arrays as bytes; equal input gives equal bytes.

    Args:
        header: Values that JSON can express.
        arrays: Arrays of numbers, booleans or strings by name.
        compact: Whether arrays are stored by rows, which takes less space if most of their values are equal or small.
    """
    parts: list[Any] = []
    described = []
    for name, array in arrays.items():
        if array.dtype.kind not in PLAIN_ARRAYS:
            raise StoreError(f"the array {name!r} must hold numbers, booleans or strings, got {array.dtype}")
        transposed = array.flags.f_contiguous and not array.flags.c_contiguous
        ordered = array.T if transposed else np.asarray(array, order="C")
        rows = None
        if compact:
            rows = [_pack_row(row, parts) for row in _rows_of(ordered)]
        else:
            parts.append(ordered)
        described.append((name, array.dtype.str, ordered.shape, transposed, rows))
    text = _ENCODER.encode((header, described)).encode()
    checksum = zlib.crc32(text)
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return b"".join((_START.pack(MAGIC, checksum, len(text)), text, *parts))


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, Array]]:
    """Returns the header and the arrays that were given to `pack`; raises StoreError for any other bytes."""
    with corruption_as_store_error():
        magic, checksum, length = _START.unpack_from(data)
        if magic != MAGIC or zlib.crc32(memoryview(data)[_START.size :]) != checksum:
            raise ValueError("they do not match their checksum")
        header, described = parse_json(data[_START.size : _START.size + length])
        reader = _Reader(data, _START.size + length)
        arrays = {str(name): _unpack_array(reader, *description) for name, *description in described}
        reader.check_end()
        if not isinstance(header, dict):
            raise ValueError("the header must be a mapping")
    return header, arrays


def pack_snapshot(snapshot: Mapping[str, Any], *, compact: bool = False) -> bytes:
    """Serialises a flat state whose values are arrays, integers, floats, strings and booleans."""
    plain: dict[str, Any] = {}
    arrays: dict[str, Array] = {}
    for key, value in snapshot.items():
        if not isinstance(key, str):  # JSON would turn a number into a string
            raise StoreError(f"the keys of a snapshot must be strings, not {key!r}")
        if isinstance(value, np.ndarray):
            arrays[key], plain[key] = value, None  # so that the order is kept
        elif isinstance(value, bool | int | float | str):
            plain[key] = value
        else:
            raise StoreError(
                f"snapshot[{key!r}] is of type {type(value).__name__}: give an array of numbers, booleans or strings, "
                "an int, a float, a bool or a str"
            )
    return pack(plain, arrays, compact=compact)


def unpack_snapshot(data: bytes) -> dict[str, Any]:
    """Returns the state that was given to `pack_snapshot`, with the same types."""
    plain, arrays = unpack(data)
    return {**plain, **arrays}


def parse_stored(text: str | bytes) -> Any:
    """Parses JSON that was stored; damaged text raises StoreError."""
    with corruption_as_store_error():
        return parse_json(text)


@contextmanager
def corruption_as_store_error() -> Iterator[None]:
    """Converts every error that corrupt bytes can cause into a StoreError."""
    try:
        yield
    except (
        ArithmeticError,
        EOFError,
        LookupError,
        OSError,
        RuntimeError,
        TypeError,
        ValueError,
        struct.error,
    ) as error:
        raise StoreError(f"the stored bytes are damaged ({error}): restore them from a backup") from error


class _Reader:
    """Reads entries, one after the other."""

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
        """Raises ValueError if bytes are left."""
        if self._position != len(self._data):
            raise ValueError(f"there are {len(self._data) - self._position} bytes after the last array")


def _unpack_array(reader: _Reader, name: str, shape: list[int], transposed: bool, rows: list[Any] | None) -> Array:
    dtype, size = _plain_type(name), math.prod(shape)
    if min(shape, default=0) < 0:
        raise ValueError(f"an array cannot have the shape {shape}")
    array = reader.read(dtype, size).copy() if rows is None else _unpack_rows(reader, dtype, size, rows)
    array = array.reshape(shape)
    return array.T if transposed else array


@lru_cache(maxsize=256)
def _plain_type(name: str) -> np.dtype[Any]:
    """Returns the type of this name, if it is one of numbers, booleans or strings."""
    dtype = np.dtype(str(name))
    if dtype.kind not in PLAIN_ARRAYS or not dtype.itemsize:
        raise ValueError(f"arrays must hold numbers, booleans or strings, got {dtype}")
    return dtype


# Arrays by rows


def _rows_of(array: Array) -> Array:
    """Returns an array as a matrix: by its rows if there are few of them, otherwise as one row."""
    rows = math.prod(array.shape[:-1])
    return array.reshape(rows, -1) if array.size and rows <= MAX_ROWS else array.reshape(1, array.size)


def _pack_row(row: Array, parts: list[Any]) -> tuple[str, int | None]:
    """Appends the bytes of a row, and returns the type of its stored entries and how many differ from the usual one.

    The number is None if all entries are stored.
    """
    stored = row.astype(_narrowest(row)) if row.dtype.kind == "i" else row
    if len(row) and row.dtype.kind != "U" and row.dtype.itemsize <= MAX_ENTRY:
        bits = row.view(f"u{row.dtype.itemsize}")  # so that NaN equals itself and −0.0 differs from 0.0
        differs = bits != _usual(bits)
        different = int(np.count_nonzero(differs))
        if different <= MAX_DIFFERENT * len(bits):
            first = int(np.argmin(differs))
            parts += [stored[first : first + 1], np.packbits(differs), stored[differs]]
            return stored.dtype.str, different
    parts.append(stored)
    return stored.dtype.str, None


def _usual(bits: Array) -> Any:
    """Returns the most frequent of some entries."""
    step = max((len(bits) - 1) // (SAMPLES - 1), 1)
    return Counter(bits[::step].tolist()).most_common(1)[0][0]


def _narrowest(row: Array) -> np.dtype[Any]:
    """Returns the smallest type of integers that holds all entries of a row of integers."""
    if len(row):
        low, high = int(row.min()), int(row.max())
        for dtype in _NARROW:
            limits = np.iinfo(dtype)
            if dtype.itemsize < row.dtype.itemsize and limits.min <= low and high <= limits.max:
                return dtype
    return row.dtype


def _unpack_rows(reader: _Reader, dtype: np.dtype[Any], size: int, rows: list[Any]) -> Array:
    stored = [(_stored_type(name, different, dtype), different) for name, different in rows]
    if not stored or size % len(stored):
        raise ValueError(f"an array of {size} entries cannot have {len(stored)} rows")
    length = size // len(stored)
    mask = -(-length // 8)
    needed = (
        length * entry.itemsize if different is None else (1 + different) * entry.itemsize + mask
        for entry, different in stored
    )
    reader.require(sum(needed))  # before memory is allocated
    array = np.empty((len(stored), length), dtype=dtype)
    for row, (entry, different) in zip(array, stored, strict=True):
        if different is None:
            row[:] = reader.read(entry, length)
            continue
        row[:] = reader.read(entry, 1)[0]
        differs = unpack_mask(reader.read(np.dtype(np.uint8), mask), length)
        if int(np.count_nonzero(differs)) != different:
            raise ValueError(f"{different} entries of a row must differ from the usual one")
        row[differs] = reader.read(entry, different)
    return array


def _stored_type(name: str, different: int | None, target: np.dtype[Any]) -> np.dtype[Any]:
    """Returns the type of the stored entries of a row, if entries of the type `target` can be stored like this."""
    stored = _plain_type(name)
    if stored != target and (stored.kind, target.kind) != ("i", "i"):
        raise ValueError(f"entries of type {target} cannot be stored as {stored}")
    if different is not None and (different < 0 or target.itemsize > MAX_ENTRY):
        raise ValueError(f"{different} entries of {target.itemsize} bytes cannot be stored without the others")
    return stored


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what must be known of the state `after` if `before` is known, as a flat state.

    Entries are compared bit by bit, so that NaN equals itself and −0.0 differs from 0.0.
    """
    differing: dict[str, Any] = {}
    for key, value in after.items():
        old = before.get(key)
        if _is_comparable(old, value):
            differs = _bits(old) != _bits(value)
            if np.count_nonzero(differs) * FEW <= len(differs):
                indices = np.flatnonzero(differs)
                differing[_INDICES + key], value = indices, value.reshape(-1)[indices]
        differing[key] = value
    return differing


def with_differences(before: Mapping[str, Any], differing: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the state `after` that `differences` was given; arrays of `before` may be changed for it."""
    after = {}
    with corruption_as_store_error():
        for key, value in differing.items():
            if not key.startswith(_INDICES):
                indices = differing.get(_INDICES + key)
                if indices is not None:
                    entries, value = value, np.ascontiguousarray(before[key])
                    value.reshape(-1)[indices] = entries
                after[key] = value
    return after


def copied(state: Mapping[str, Any], into: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a copy of a flat state in the memory of another one: that of new arrays would take longer to get."""
    copy = {}
    for key, value in state.items():
        copy[key] = value
        if isinstance(value, np.ndarray):
            array = into.get(key)
            is_usable = isinstance(array, np.ndarray) and (array.dtype, array.shape) == (value.dtype, value.shape)
            copy[key] = array if is_usable else np.empty_like(value)
            np.copyto(copy[key], value)
    return copy


def _is_comparable(old: Any, new: Any) -> bool:
    """Returns whether two values are arrays of the same form, whose entries can be compared bit by bit."""
    return (
        isinstance(old, np.ndarray)
        and isinstance(new, np.ndarray)
        and (old.dtype, old.shape) == (new.dtype, new.shape)
        and new.ndim > 0
        and new.dtype.kind in PLAIN_ARRAYS[:-1]
        and new.dtype.itemsize <= MAX_ENTRY
    )


def _bits(array: Any) -> Any:
    return np.ascontiguousarray(array).reshape(-1).view(f"u{array.dtype.itemsize}")
