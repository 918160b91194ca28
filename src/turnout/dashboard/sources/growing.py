"""Arrays that grow, and who volunteered when, in bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from turnout.kernel.arrays import BoolArray, IntArray, read_only

#: So many bytes of masks are kept; the oldest go first.
MOST_BYTES = 96 * 2**20


class Growing:
    """One number after the other, in one array that doubles when it is full."""

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._room: npt.NDArray[Any] = np.empty(1024, dtype=dtype)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def all(self) -> npt.NDArray[Any]:
        """What is there; not to be written to."""
        there: npt.NDArray[Any] = read_only(self._room[: self._count])
        return there

    def add(self, values: npt.ArrayLike) -> None:
        """One more, or several."""
        fresh = np.atleast_1d(np.asarray(values, dtype=self._room.dtype))
        needed = self._count + len(fresh)
        if needed > len(self._room):
            room = np.empty(max(needed, 2 * len(self._room)), dtype=self._room.dtype)
            room[: self._count] = self._room[: self._count]
            self._room = room
        self._room[self._count : needed] = fresh
        self._count = needed


class Masks:
    """Who volunteered in each round, up to a number of bytes: then the oldest rounds are let go."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._bytes = most_bytes, 0
        self._bits: dict[int, npt.NDArray[np.uint8]] = {}

    @property
    def first(self) -> int | None:
        """The first round that is known, or None."""
        return next(iter(self._bits), None)

    def add(self, round_: int, available: BoolArray) -> None:
        """Rounds follow one another."""
        bits = np.packbits(available)
        self._bits[round_] = bits
        self._bytes += bits.nbytes
        while self._bytes > self._most and len(self._bits) > 1:
            self._bytes -= self._bits.pop(next(iter(self._bits))).nbytes

    def of(self, rows: IntArray, rounds: IntArray) -> BoolArray | None:
        """Who of these volunteered in which of these rounds, a row a round; None if a round is not known."""
        there = np.zeros((len(rounds), len(rows)), dtype=np.bool_)
        for place, round_ in enumerate(rounds.tolist()):
            bits = self._bits.get(round_)
            if bits is None:
                return None
            byte = rows >> 3
            joined = byte < len(bits)
            there[place, joined] = (bits[byte[joined]] >> (7 - (rows[joined] & 7)) & 1).astype(np.bool_)
        return there
