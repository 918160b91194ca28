"""Claims: a statement, its measurements, and a verdict that is computed from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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


def ascending(name: str, statement: str, groups: Sequence[Group]) -> Claim:
    """Claims that the mean of each group is above that of the previous group, in paired comparisons by seed.

    The claim holds if the 95 % confidence interval of every difference is above zero, does not hold if one interval is
    below zero, and is not decided otherwise, nor if two groups are equal on every seed. See `all_greater` for events
    that did not occur.
    """
    verdict = all_greater([(later, earlier) for earlier, later in pairwise(groups)])
    return Claim(name, statement, verdict, {group.label: group.summary for group in groups})


def highest(
    name: str, statement: str, groups: Mapping[str, Group], best: str, others: Sequence[str] | None = None
) -> Claim:
    """Claims that the mean of a group is above that of every other, in paired comparisons by seed.

    Args:
        name: A short name of the claim.
        statement: The claim as a sentence.
        groups: The measurements, by label.
        best: The group with the highest mean.
        others: The groups that it is compared with, by default all others.
    """
    return _compare(name, statement, groups, best, others, 1)


def lowest(
    name: str, statement: str, groups: Mapping[str, Group], least: str, others: Sequence[str] | None = None
) -> Claim:
    """Claims that the mean of a group is below that of every other, in paired comparisons by seed; see `highest`."""
    return _compare(name, statement, groups, least, others, -1)


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
    numbers = {group.label: group.summary for group in groups}
    return Claim(name, statement, verdict, {**numbers, "more than" if strictly else "at least": f"{least:g}"})


def below(name: str, statement: str, groups: Sequence[Group], most: float, *, strictly: bool = False) -> Claim:
    """Claims that the mean of every group is below `most`; see `above`."""
    verdict = all_above([-group.values for group in groups], -most, strictly=strictly)
    numbers = {group.label: group.summary for group in groups}
    return Claim(name, statement, verdict, {**numbers, "less than" if strictly else "at most": f"{most:g}"})


def about(panel: str, claims: Iterable[Claim]) -> list[Claim]:
    """Returns claims about one panel of a figure: their statements begin with its name."""
    return [replace(claim, statement=f"{panel}: {claim.statement}", panel=panel) for claim in claims]


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


def _compare(
    name: str, statement: str, groups: Mapping[str, Group], label: str, others: Sequence[str] | None, sign: int
) -> Claim:
    """Builds the claim that a group is above the others (`sign` 1) or below them (-1)."""
    own, pairs = groups[label], []
    numbers = {own.label: own.summary}
    for other in (groups[one] for one in (groups if others is None else others) if one != label):
        upper, lower = (own, other)[::sign]
        pairs.append((upper, lower))
        difference = Group(other.label, upper.values - lower.values)
        numbers[other.label] = f"{other.summary} (difference {difference.summary})"
    return Claim(name, statement, all_greater(pairs), numbers)
