"""Detection of clients whose times have changed, such as a machine that got a new tenant."""

from __future__ import annotations

import numpy as np

from turnout.kernel.arrays import BoolArray, FloatArray, IntArray
from turnout.policies.base import Memory

DRIFT = 0.5  # typical errors that are subtracted from every step of the test
SMOOTHING = 0.1  # weight of the newest error in the typical error
WARM_UP = 5  # times of a client before the test starts


class ChangeDetector(Memory):
    """Page's CUSUM test on each client's prediction errors, upwards and downwards.

    Errors are divided by the client's typical error. A client has changed when one of its two sums exceeds
    `threshold`.
    """

    sums: FloatArray  # rows: sum of positive steps, sum of negative steps, typical error, number of times

    def __init__(self, clients: int, threshold: float) -> None:
        super().__init__(clients)
        self.threshold = threshold
        self._remember(sums=np.zeros(4))

    def changed(self, rows: IntArray, expected: FloatArray, times: FloatArray) -> BoolArray:
        """Adds one time of each of these clients, and returns which of them have changed."""
        above, below, typical, known = self.sums[:, rows]
        error = times - expected
        scale = np.where(typical > 0, typical, np.abs(error))
        steps = np.divide(error, scale, out=np.zeros_like(error), where=scale > 0)
        tested = known >= WARM_UP
        above = np.where(tested, np.maximum(above + steps - DRIFT, 0.0), 0.0)
        below = np.where(tested, np.maximum(below - steps - DRIFT, 0.0), 0.0)
        share = np.maximum(SMOOTHING, 1 / (known + 1))
        typical = typical + share * (np.abs(error) - typical)
        changed: BoolArray = np.maximum(above, below) > self.threshold
        self.sums[:, rows] = np.where(changed, 0.0, np.stack([above, below, typical, known + 1]))
        return changed
