"""A claim, what was measured for it, and a verdict that is computed, never chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import numpy as np

from turnout.kernel.arrays import FloatArray
from turnout.simulator.metrics import mean_and_band

Verdict = Literal["holds", "does not hold", "not decided"]


@dataclass(frozen=True, slots=True)
class Claim:
    """`numbers` are what the verdict was computed from, each with its name."""

    name: str
    statement: str
    verdict: Verdict
    numbers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Group:
    """One number a seed, of one contender; the same seeds in every group of a claim."""

    label: str
    values: FloatArray

    @property
    def told(self) -> str:
        """Mean and half-width of its 95 % confidence interval."""
        mean, band = mean_and_band(self.values)
        return f"{float(mean):.4g} ± {float(band):.2g}"


def ascending(name: str, statement: str, groups: Sequence[Group]) -> Claim:
    """Each group's mean is above that of the one before it, seed by seed.

    It holds if every step up is clear, its 95 % confidence interval above zero; it does not if any step is clearly
    down; otherwise it is not decided.
    """
    steps = [later.values - earlier.values for earlier, later in pairwise(groups)]
    return Claim(name, statement, all_above(steps, 0.0), {group.label: group.told for group in groups})


def above(name: str, statement: str, groups: Sequence[Group], least: float) -> Claim:
    """Every group's mean is above `least`."""
    verdict = all_above([group.values for group in groups], least)
    return Claim(name, statement, verdict, {**{group.label: group.told for group in groups}, "at least": f"{least:g}"})


def below(name: str, statement: str, groups: Sequence[Group], most: float) -> Claim:
    """Every group's mean is below `most`."""
    verdict = all_above([-group.values for group in groups], -most)
    return Claim(name, statement, verdict, {**{group.label: group.told for group in groups}, "at most": f"{most:g}"})


def all_above(samples: Sequence[FloatArray], least: float) -> Verdict:
    """Are all these means above `least`, as far as their confidence intervals tell?"""
    lows, highs = [], []
    for sample in samples:
        mean, band = mean_and_band(np.asarray(sample))
        lows.append(float(mean - band))
        highs.append(float(mean + band))
    if all(low > least or (low == high == least) for low, high in zip(lows, highs, strict=True)):
        return "holds"
    if any(high < least for high in highs):
        return "does not hold"
    return "not decided"
