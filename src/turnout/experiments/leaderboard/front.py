"""Who is not beaten: the Pareto front of time, to be short, and share, to be large."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from turnout.experiments.framework.claims import all_above
from turnout.kernel.arrays import BoolArray, FloatArray

Place = Literal["front", "near", "behind"]


def on_front(times: npt.ArrayLike, shares: npt.ArrayLike) -> BoolArray:
    """Whom nobody beats: nobody is as good in both and better in one.

    >>> on_front([1.0, 2.0, 3.0], [0.0, 0.5, 0.4])
    array([ True,  True, False])
    """
    time, share = np.asarray(times, dtype=np.float64), np.asarray(shares, dtype=np.float64)
    as_good = (time[:, None] <= time) & (share[:, None] >= share)
    better = (time[:, None] < time) | (share[:, None] > share)
    beaten: BoolArray = np.any(as_good & better, axis=0)
    return ~beaten


def places(times: Mapping[str, FloatArray], shares: Mapping[str, FloatArray]) -> dict[str, Place]:
    """Where each contender stands, from one number a seed: on the front of the means, near it, or behind.

    Near: off the front, but nobody beats it for certain, seed by seed at 95 % confidence in both.
    """
    labels = list(times)
    if not labels:
        return {}
    unbeaten = on_front([times[one].mean() for one in labels], [shares[one].mean() for one in labels])
    found: dict[str, Place] = {}
    for label, best in zip(labels, unbeaten.tolist(), strict=True):
        others = [one for one in labels if one != label]
        beaten = any(_surely([times[label] - times[one], shares[one] - shares[label]]) for one in others)
        found[label] = "front" if best else "behind" if beaten else "near"
    return found


def _surely(gains: Sequence[FloatArray]) -> bool:
    """Is none a loss and at least one a gain, as far as the seeds tell?"""
    return all_above(gains, 0.0) == "holds" and any(all_above([gain], 0.0, strictly=True) == "holds" for gain in gains)
