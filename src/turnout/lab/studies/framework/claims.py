"""Claims: a statement, its measurements, and a verdict that is computed from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import numpy as np

from turnout.kernel.arrays import FloatArray
from turnout.lab.analysis.statistics import mean_confidence_interval

Verdict = Literal["holds", "does not hold", "not decided"]


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement with its verdict.

    `numbers` are the named measurements behind the verdict, `panel` is the part of a figure that the claim is about.
    """

    name: str
    statement: str
    verdict: Verdict
    numbers: dict[str, str] = field(default_factory=dict)
    panel: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """One measurement per seed of one contender; all groups of a claim have the same seeds.

    For times until an event, `never` is the number of runs in which the event did not occur; their values are lower
    bounds.
    """

    label: str
    values: FloatArray
    never: int = 0

    @property
    def summary(self) -> str:
        """The mean and, with several seeds, the half-width of its 95 % confidence interval, as text."""
        mean, band = mean_confidence_interval(self.values)
        interval = "" if np.isnan(band) else f" ± {float(band):.2g}"
        never = f"; {self.never} of {len(self.values)} runs never" if self.never else ""
        return f"{float(mean):.4g}{interval}{never}"


def ascending(name: str, statement: str, groups: Sequence[Group], *, panel: str = "") -> Claim:
    """Claims that the mean of each group is above that of the previous group, in paired comparisons by seed.

    The claim holds if the 95 % confidence interval of every difference is above zero, does not hold if one interval is
    below zero, and is not decided otherwise, nor if two groups are equal on every seed. See `all_greater` for events
    that did not occur.
    """
    verdict = all_greater([(later, earlier) for earlier, later in pairwise(groups)])
    return Claim(name, statement, verdict, {group.label: group.summary for group in groups}, panel)


def highest(name: str, statement: str, best: Group, others: Sequence[Group], *, panel: str = "") -> Claim:
    """Claims that the mean of `best` is above that of every other group, in paired comparisons by seed.

    Args:
        name: A short name of the claim.
        statement: The claim as a sentence.
        best: The group with the highest mean.
        others: The groups that it is compared with.
        panel: The part of the figure that the claim is about.
    """
    return _compare_pairs(name, statement, best, others, [(best, other) for other in others], panel)


def lowest(name: str, statement: str, least: Group, others: Sequence[Group], *, panel: str = "") -> Claim:
    """Claims that the mean of `least` is below that of every other group, in paired comparisons by seed.

    Args:
        name: A short name of the claim.
        statement: The claim as a sentence.
        least: The group with the lowest mean.
        others: The groups that it is compared with.
        panel: The part of the figure that the claim is about.
    """
    return _compare_pairs(name, statement, least, others, [(other, least) for other in others], panel)


def above(name: str, statement: str, groups: Sequence[Group], least: float, *, strictly: bool = False) -> Claim:
    """Claims that the mean of every group is above `least`.

    Args:
        name: A short name of the claim.
        statement: The claim as a sentence.
        groups: The measurements.
        least: The threshold.
        strictly: Whether values equal to the threshold on every seed leave the claim undecided; otherwise they pass.
    """
    verdict = all_above([group.values for group in groups], least, strictly=strictly)
    threshold = {"more than" if strictly else "at least": f"{least:g}"}
    return Claim(name, statement, verdict, {**{group.label: group.summary for group in groups}, **threshold})


def below(name: str, statement: str, groups: Sequence[Group], most: float, *, strictly: bool = False) -> Claim:
    """Claims that the mean of every group is below `most`.

    Args:
        name: A short name of the claim.
        statement: The claim as a sentence.
        groups: The measurements.
        most: The threshold.
        strictly: Whether values equal to the threshold on every seed leave the claim undecided; otherwise they pass.
    """
    verdict = all_above([-group.values for group in groups], -most, strictly=strictly)
    threshold = {"less than" if strictly else "at most": f"{most:g}"}
    numbers = {**{group.label: group.summary for group in groups}, **threshold}
    return Claim(name, statement, verdict, numbers)


def all_above(samples: Sequence[FloatArray], least: float, *, strictly: bool = False) -> Verdict:
    """Decides whether the means of all samples are above `least`, by their 95 % confidence intervals.

    A sample that equals `least` on every seed reaches a threshold but shows no difference: `strictly` leaves it
    undecided. Without any sample nothing is decided.
    """
    if not samples:
        return "not decided"
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


def all_greater(pairs: Sequence[tuple[Group, Group]]) -> Verdict:
    """Decides whether the first group of each pair is above the second, in paired comparisons by seed.

    Values of runs that never reached the event are lower bounds. Such a value in the second group therefore cannot make
    the claim hold, and in the first group it cannot refute the claim.
    """
    verdict = all_above([upper.values - lower.values for upper, lower in pairs], 0.0, strictly=True)
    exact = [upper.values - lower.values for upper, lower in pairs if not upper.never]
    if verdict == "holds" and any(lower.never for _, lower in pairs):
        return "not decided"
    if verdict == "does not hold" and (not exact or all_above(exact, 0.0, strictly=True) != verdict):
        return "not decided"
    return verdict


def _compare_pairs(
    name: str, statement: str, group: Group, others: Sequence[Group], pairs: Sequence[tuple[Group, Group]], panel: str
) -> Claim:
    """Builds the claim that the first group of each pair is above the second.

    Args:
        name: A short name of the claim.
        statement: The claim as a sentence.
        group: The group that is in every pair.
        others: The other group of each pair.
        pairs: The pairs (larger, smaller).
        panel: The part of the figure that the claim is about.
    """
    numbers = {group.label: group.summary}
    for other, (upper, lower) in zip(others, pairs, strict=True):
        difference = Group(other.label, upper.values - lower.values)
        numbers[other.label] = f"{other.summary} (difference {difference.summary})"
    return Claim(name, statement, all_greater(pairs), numbers, panel)
