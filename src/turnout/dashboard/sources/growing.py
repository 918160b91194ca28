"""Columns that grow by appending, and a compact record of the clients that were available in each round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from turnout.kernel.arrays import BoolArray, IntArray, read_only

#: Memory limit of the availability masks; the oldest rounds are dropped first.
MAX_BYTES = 96 * 2**20


class GrowingTable:
    """Columns of the same length, whose capacity doubles when they are full.

    Args:
        columns: The type of each column, by name.
    """

    def __init__(self, columns: Mapping[str, npt.DTypeLike]) -> None:
        self._columns: dict[str, npt.NDArray[Any]] = {name: np.empty(1024, dtype) for name, dtype in columns.items()}
        self._capacity, self._count = 1024, 0

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """Returns a read-only view of the values of a column that were appended so far."""
        view: npt.NDArray[Any] = read_only(self._columns[name][: self._count])
        return view

    def append(self, count: int, values: Mapping[str, Any]) -> None:
        """Appends rows; `values` has the array of each column, or a scalar that is the same in all of them."""
        start, self._count = self._count, self._count + count
        if self._count > self._capacity:
            self._capacity = max(self._count, 2 * self._capacity)
            for name, column in self._columns.items():
                self._columns[name] = np.empty(self._capacity, column.dtype)
                self._columns[name][:start] = column[:start]
        for name, column in self._columns.items():
            column[start : self._count] = values[name]

    def replace(self, name: str, start: int, values: Any, count: int = 1) -> None:
        """Replaces `count` values of a column that were appended before, from index `start` on."""
        if not 0 <= start <= self._count - count:
            raise IndexError(f"start must be at least 0 and at most {self._count - count}, got {start}")
        self._columns[name][start : start + count] = values


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

    def get(self, rows: IntArray, rounds: IntArray, *, sparse: bool = False) -> BoolArray | None:
        """Returns whether each client was available, shape (rounds, clients); None if a mask is missing.

        If the masks are `sparse`, nobody is marked in a round without one.
        """
        available = np.zeros((len(rounds), len(rows)), dtype=np.bool_)
        for index, number in enumerate(rounds.tolist()):
            bits = self._bits.get(number)
            if bits is None:
                if sparse:
                    continue
                return None
            byte = rows >> 3
            joined = byte < len(bits)
            available[index, joined] = (bits[byte[joined]] >> (7 - (rows[joined] & 7)) & 1).astype(np.bool_)
        return available
