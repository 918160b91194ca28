"""Arrays that grow by appending, and a compact record of the clients that were available in each round."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from turnout.kernel.arrays import BoolArray, IntArray, read_only

#: Memory limit of the availability masks; the oldest rounds are dropped first.
MAX_BYTES = 96 * 2**20


class GrowingArray:
    """A one-dimensional array whose capacity doubles when it is full."""

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._buffer: npt.NDArray[Any] = np.empty(1024, dtype=dtype)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def values(self) -> npt.NDArray[Any]:
        """A read-only view of the values appended so far."""
        view: npt.NDArray[Any] = read_only(self._buffer[: self._count])
        return view

    def append(self, values: npt.ArrayLike) -> None:
        """Appends a scalar or a sequence."""
        new = np.asarray(values, dtype=self._buffer.dtype)
        needed = self._count + new.size
        if needed > len(self._buffer):
            buffer = np.empty(max(needed, 2 * len(self._buffer)), dtype=self._buffer.dtype)
            buffer[: self._count] = self._buffer[: self._count]
            self._buffer = buffer
        self._buffer[self._count : needed] = new
        self._count = needed

    def replace(self, start: int, values: npt.ArrayLike) -> None:
        """Replaces values that were appended before, from index `start` on."""
        new = np.asarray(values, dtype=self._buffer.dtype)
        if not 0 <= start <= self._count - new.size:
            raise IndexError(f"start must be at least 0 and at most {self._count - new.size}, got {start}")
        self._buffer[start : start + new.size] = new


class AvailabilityMasks:
    """Bit masks of the available clients by round, limited to `max_bytes`; the oldest rounds are dropped first."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes, self._bytes = max_bytes, 0
        self._bits: dict[int, npt.NDArray[np.uint8]] = {}

    @property
    def first(self) -> int | None:
        """The first round with a mask; None if there is no mask."""
        return next(iter(self._bits), None)

    def add(self, round: int, available: BoolArray) -> None:
        """Adds the mask of the next round."""
        bits = np.packbits(available)
        self._bits[round] = bits
        self._bytes += bits.nbytes
        while self._bytes > self._max_bytes and len(self._bits) > 1:
            self._bytes -= self._bits.pop(next(iter(self._bits))).nbytes

    def get(self, rows: IntArray, rounds: IntArray) -> BoolArray | None:
        """Returns whether each client was available, shape (rounds, clients); None if a mask is missing."""
        available = np.zeros((len(rounds), len(rows)), dtype=np.bool_)
        for index, number in enumerate(rounds.tolist()):
            bits = self._bits.get(number)
            if bits is None:
                return None
            byte = rows >> 3
            joined = byte < len(bits)
            available[index, joined] = (bits[byte[joined]] >> (7 - (rows[joined] & 7)) & 1).astype(np.bool_)
        return available
