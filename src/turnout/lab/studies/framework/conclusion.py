"""A conclusion in words, computed from a comparison: which policy to use, and why not a faster one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from turnout.kernel.arrays import FloatArray
from turnout.kernel.certificate import PromiseStatus
from turnout.lab.analysis.statistics import format_interval, mean_confidence_interval


@dataclass(frozen=True, slots=True, eq=False)
class JudgedPolicy:
    """What a comparison found about a policy.

    Args:
        label: Its name.
        mean_rounds: The mean round time of each seed in seconds; all contenders have the same seeds.
        shortfall: How many turns the client that was furthest behind was behind, in any round of any seed.
        status: The status of the promise at that moment.
        true_times: Whether the policy is given the true times, which nobody knows of real clients.
    """

    label: str
    mean_rounds: FloatArray
    shortfall: float
    status: PromiseStatus
    true_times: bool = False

    @property
    def seconds(self) -> str:
        """The mean round with its confidence interval."""
        mean, band = mean_confidence_interval(self.mean_rounds)
        return format_interval(mean, band, 2, unit=" s", limits=(0.0, np.inf))

    @property
    def mean(self) -> float:
        """The mean round over all seeds, in seconds."""
        return float(self.mean_rounds.mean())


def conclude(contenders: Sequence[JudgedPolicy], *, tolerance: float, reference: str) -> list[str]:
    """Returns sentences: the policy to use, its reasons, and what speaks against each policy with shorter rounds.

    A policy can be recommended if it did not break the promise and is not given the true times.

    Args:
        contenders: The policies of the comparison.
        tolerance: How many turns a client may be behind.
        reference: The policy that time is compared with.
    """
    eligible = [contender for contender in contenders if contender.status != "broken" and not contender.true_times]
    if not eligible:
        playable = [contender for contender in contenders if not contender.true_times] or list(contenders)
        nearest = min(playable, key=lambda contender: contender.shortfall)
        return [
            f"No policy of this comparison kept every client within {tolerance:g} turns of its promise.",
            f"The nearest was {nearest.label}: a client was {nearest.shortfall:.2f} turns behind.",
        ]
    best, *rest = sorted(eligible, key=lambda contender: contender.mean)
    sentences = [_recommend(best, len(eligible), tolerance), *_compare(best, contenders, reference)]
    if rest and not _is_shorter(best, rest[0]):
        sentences.append(
            f"{rest[0].label} ({rest[0].seconds}) cannot be distinguished from it by these seeds: run more of them."
        )
    quicker = [contender for contender in contenders if contender.mean < best.mean]
    return [*sentences, *map(_objection, sorted(quicker, key=lambda contender: contender.mean))]


def _recommend(best: JudgedPolicy, eligible: int, tolerance: float) -> str:
    among = "the only policy" if eligible == 1 else f"the one with the shortest rounds of the {eligible} policies"
    return (
        f"Use {best.label}: it is {among} that left no client more than {tolerance:g} turns behind. Its mean round "
        f"takes {best.seconds}, and no client was ever more than {best.shortfall:.2f} turns behind."
    )


def _compare(best: JudgedPolicy, contenders: Sequence[JudgedPolicy], reference: str) -> list[str]:
    other = next((contender for contender in contenders if contender.label == reference), None)
    if other is None or other is best:
        return []
    saved = 1 - best.mean / other.mean
    if _is_shorter(best, other):
        return [f"It needs {saved:.0%} less time than {reference} ({other.seconds})."]
    return [f"Its rounds are not significantly shorter than those of {reference} ({other.seconds})."]


def _objection(contender: JudgedPolicy) -> str:
    reasons = []
    if contender.true_times:
        reasons.append("is given the true times, which nobody knows of real clients")
    if contender.status == "broken":
        reasons.append(f"left a client {contender.shortfall:.1f} turns behind")
    return f"{contender.label} has shorter rounds ({contender.seconds}), but {' and '.join(reasons)}."


def _is_shorter(one: JudgedPolicy, other: JudgedPolicy) -> bool:
    """Returns whether the 95 % confidence interval of the paired differences is below 0; never with a single seed."""
    mean, band = mean_confidence_interval(one.mean_rounds - other.mean_rounds)
    return bool(mean + band < 0)
