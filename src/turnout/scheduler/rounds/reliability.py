"""Who comes back: estimates from counts, how many to invite, who rests, whose word has changed."""

from __future__ import annotations

import numpy as np

from turnout.kernel.arrays import BoolArray, FloatArray, IntArray

LONGEST_REST = 64  # rounds
#: How fast what is known of a client's ways moves towards each new time.
RECENT = 0.2
#: Flagged, after so many times: a context leads so much further from the truth than habit, and at least so far.
WORSE, AT_LEAST, AFTER = 2.0, 0.3, 10
FURTHEST = 9.0


def reliability(arrived: IntArray, lost: IntArray) -> FloatArray:
    """The chance to come back: (arrived + 1) / (arrived + lost + 2), Laplace's rule."""
    chance: FloatArray = (arrived + 1) / (arrived + lost + 2)
    return chance


def probability_at_least(wanted: int, chances: FloatArray) -> float:
    """The probability that at least so many of these come back, each with its own chance.

    How many come back is Poisson-binomial: its distribution grows client by client.

    >>> round(probability_at_least(2, np.array([0.9, 0.9, 0.9])), 3)
    0.972
    """
    returning = np.zeros(len(chances) + 1)
    returning[0] = 1.0
    for count, chance in enumerate(chances.tolist(), start=1):
        returning[1 : count + 1] = returning[1 : count + 1] * (1 - chance) + returning[:count] * chance
        returning[0] *= 1 - chance
    return float(returning[wanted:].sum())


def rest_after_misses(misses: int, rest_after: int) -> int:
    """Rounds of rest after so many misses in a row: 1, 2, 4, … from `rest_after` on.

    >>> [rest_after_misses(misses, 3) for misses in range(7)]
    [0, 0, 0, 1, 2, 4, 8]
    """
    return 0 if misses < rest_after else min(2 ** (misses - rest_after), LONGEST_REST)


def relative_error(seconds: FloatArray, expected: FloatArray) -> FloatArray:
    """How far times are from what was expected, up or down alike: 0 is exact, 1 is the double or the half.

    >>> relative_error(np.array([2.0, 4.0, 1.0]), np.array([2.0, 2.0, 2.0]))
    array([0., 1., 1.])
    """
    low = np.maximum(np.minimum(seconds, expected), 1e-9)
    far: FloatArray = np.minimum(np.maximum(seconds, expected) / low - 1, FURTHEST)
    return far


def moved(means: FloatArray, values: FloatArray, before: IntArray) -> FloatArray:
    """Means of what is recent, with one more value each; of the first few it is the plain mean."""
    mean: FloatArray = means + np.maximum(RECENT, 1 / (before + 1)) * (values - means)
    return mean


def doubtful(from_context: FloatArray, from_habit: FloatArray, arrived: IntArray) -> BoolArray:
    """Whose reported context explains its times worse than knowing nothing but its usual time would."""
    flags: BoolArray = (arrived >= AFTER) & (from_context > AT_LEAST) & (from_context > WORSE * from_habit)
    return flags
