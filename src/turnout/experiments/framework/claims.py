"""A claim, what was measured for it, and a verdict that is computed, never chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import numpy as np

from turnout.analysis.statistics import mean_confidence_interval
from turnout.kernel.arrays import FloatArray

Verdict = Literal["holds", "does not hold", "not decided"]


@dataclass(frozen=True, slots=True)
class Claim:
    """`numbers`: what the verdict was computed from, each with its name. `panel`: the part of a figure it is about."""

    name: str
    statement: str
    verdict: Verdict
    numbers: dict[str, str] = field(default_factory=dict)
    panel: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """One number a seed, of one contender; the same seeds in every group of a claim.

    Where the numbers are times to something, `never` is in how many runs it did not happen; for these there stands the
    least that it would have taken.
    """

    label: str
    values: FloatArray
    never: int = 0

    @property
    def told(self) -> str:
        """Mean and half-width of its 95 % confidence interval."""
        mean, band = mean_confidence_interval(self.values)
        never = f"; {self.never} of {len(self.values)} runs never" if self.never else ""
        return f"{float(mean):.4g} ± {float(band):.2g}{never}"


def ascending(name: str, statement: str, groups: Sequence[Group], *, panel: str = "") -> Claim:
    """Each group's mean is above that of the one before it, seed by seed.

    It holds if every step up is clear, its 95 % confidence interval above zero; it does not if any step is clearly
    down; otherwise, and where two are equal on every seed, it is not decided.
    """
    steps = [later.values - earlier.values for earlier, later in pairwise(groups)]
    verdict = all_above(steps, 0.0, strictly=True)
    return Claim(name, statement, verdict, {group.label: group.told for group in groups}, panel)


def highest(name: str, statement: str, best: Group, others: Sequence[Group], *, panel: str = "") -> Claim:
    """The mean of one is above that of each other, seed by seed."""
    return _apart(name, statement, best, others, [(best, one) for one in others], panel)


def lowest(name: str, statement: str, least: Group, others: Sequence[Group], *, panel: str = "") -> Claim:
    """The mean of one is below that of each other, seed by seed."""
    return _apart(name, statement, least, others, [(one, least) for one in others], panel)


def above(name: str, statement: str, groups: Sequence[Group], least: float, *, strictly: bool = False) -> Claim:
    """Every group's mean is above `least`, or, unless `strictly`, is just that on every seed."""
    verdict = all_above([group.values for group in groups], least, strictly=strictly)
    told = {"more than" if strictly else "at least": f"{least:g}"}
    return Claim(name, statement, verdict, {**{group.label: group.told for group in groups}, **told})


def below(name: str, statement: str, groups: Sequence[Group], most: float) -> Claim:
    """Every group's mean is below `most`, or is just that on every seed."""
    verdict = all_above([-group.values for group in groups], -most)
    return Claim(name, statement, verdict, {**{group.label: group.told for group in groups}, "at most": f"{most:g}"})


def all_above(samples: Sequence[FloatArray], least: float, *, strictly: bool = False) -> Verdict:
    """Are all these means above `least`, as far as their confidence intervals tell?

    A sample that is `least` on every seed passes a threshold, but shows no difference: `strictly` leaves it undecided.
    """
    lows, highs = [], []
    for sample in samples:
        mean, band = mean_confidence_interval(np.asarray(sample))
        lows.append(float(mean - band))
        highs.append(float(mean + band))
    if all(low > least or (low == high == least and not strictly) for low, high in zip(lows, highs, strict=True)):
        return "holds"
    if any(high < least for high in highs):
        return "does not hold"
    return "not decided"


def all_over(pairs: Sequence[tuple[Group, Group]]) -> Verdict:
    """Is the first of each pair above the second, seed by seed?

    Where runs never came there, their true times are longer than what stands for them: a second one of that kind
    cannot make the claim hold, a first one cannot refute it.
    """
    verdict = all_above([upper.values - lower.values for upper, lower in pairs], 0.0, strictly=True)
    sure = [upper.values - lower.values for upper, lower in pairs if not upper.never]
    if verdict == "holds" and any(lower.never for _, lower in pairs):
        return "not decided"
    if verdict == "does not hold" and (not sure or all_above(sure, 0.0, strictly=True) != verdict):
        return "not decided"
    return verdict


def _apart(
    name: str, statement: str, one: Group, others: Sequence[Group], pairs: Sequence[tuple[Group, Group]], panel: str
) -> Claim:
    numbers = {one.label: one.told}
    for other, (upper, lower) in zip(others, pairs, strict=True):
        gap = Group(other.label, upper.values - lower.values)
        numbers[other.label] = f"{other.told} (apart {gap.told})"
    return Claim(name, statement, all_over(pairs), numbers, panel)
