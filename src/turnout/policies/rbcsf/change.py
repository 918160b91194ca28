"""Notices that a client has become another: a new battery, a new tenant on the same machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from turnout.errors import SettingError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray, as_number, load_array

DRIFT = 0.5  # of its usual error, for free at every time
MEMORY = 0.1  # how much of the usual error one time makes up
KNOWN = 5  # times before anything is said


class ChangeDetector:
    """Two running sums a client of how far its times lie above and below what was expected (Page's test).

    An error counts in the client's usual errors, less half of one; a sum does not fall below 0. Where one exceeds
    `threshold`, say 8, the client has changed.
    """

    def __init__(self, clients: int, threshold: float) -> None:
        self.threshold = as_number("change_threshold", threshold, SettingError, above=0)
        self._sums: FloatArray = np.zeros((4, clients))  # above, below, the usual error, how many times

    def changed(self, rows: IntArray, expected: FloatArray, times: FloatArray) -> BoolArray:
        """Take in one time of each of these clients: which of them are not what they were."""
        above, below, usual, known = self._sums[:, rows]
        error = times - expected
        scale = np.where(usual > 0, usual, np.abs(error))
        steps = np.divide(error, scale, out=np.zeros_like(error), where=scale > 0)
        counts = known >= KNOWN
        above = np.where(counts, np.maximum(above + steps - DRIFT, 0.0), 0.0)
        below = np.where(counts, np.maximum(below - steps - DRIFT, 0.0), 0.0)
        share = np.maximum(MEMORY, 1 / (known + 1))
        usual = usual + share * (np.abs(error) - usual)
        gone: BoolArray = np.maximum(above, below) > self.threshold
        self._sums[:, rows] = np.where(gone, 0.0, np.stack([above, below, usual, known + 1]))
        return gone

    def add(self, count: int) -> None:
        """Of new clients nothing is known."""
        self._sums = np.concatenate([self._sums, np.zeros((4, count))], axis=1)

    def state(self) -> dict[str, Any]:
        """The sums."""
        return {"sums": self._sums.copy()}

    def checked(self, state: Mapping[str, Any]) -> FloatArray:
        """Those of a saved state."""
        sums: FloatArray = load_array(state, "sums", self._sums)
        return sums

    def restore(self, sums: FloatArray) -> None:
        """Take back what `checked` gave."""
        self._sums = sums
