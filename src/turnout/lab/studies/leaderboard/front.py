"""The Pareto front of time and shortfall, both of which should be small."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from turnout.kernel.arrays import BoolArray, FloatArray
from turnout.lab.studies.framework.claims import all_above

Position = Literal["front", "near", "behind"]


def on_front(times: npt.ArrayLike, shortfalls: npt.ArrayLike) -> BoolArray:
    """Returns which points are not dominated: no other point is at least as good in both and better in one.

    >>> on_front([1.0, 2.0, 3.0], [9.0, 1.0, 1.5])
    array([ True,  True, False])
    """
    time, shortfall = np.asarray(times, dtype=np.float64), np.asarray(shortfalls, dtype=np.float64)
    as_good = (time[:, None] <= time) & (shortfall[:, None] <= shortfall)
    better = (time[:, None] < time) | (shortfall[:, None] < shortfall)
    dominated: BoolArray = np.any(as_good & better, axis=0)
    return ~dominated


def classify(times: Mapping[str, FloatArray], shortfalls: Mapping[str, FloatArray]) -> dict[str, Position]:
    """Classifies contenders by their values per seed: on the front of the means, near it, or behind it.

    A contender off the front is near it if no other contender dominates it with 95 % confidence, in paired comparisons
    by seed.
    """
    labels = list(times)
    if not labels:
        return {}
    undominated = on_front([times[label].mean() for label in labels], [shortfalls[label].mean() for label in labels])
    positions: dict[str, Position] = {}
    for label, best in zip(labels, undominated.tolist(), strict=True):
        others = [other for other in labels if other != label]
        dominated = any(
            _surely_dominates([times[label] - times[other], shortfalls[label] - shortfalls[other]]) for other in others
        )
        positions[label] = "front" if best else "behind" if dominated else "near"
    return positions


def _surely_dominates(gains: Sequence[FloatArray]) -> bool:
    """Returns whether, with 95 % confidence, no gain is negative and at least one is positive."""
    return all_above(gains, 0.0) == "holds" and any(all_above([gain], 0.0, strictly=True) == "holds" for gain in gains)
