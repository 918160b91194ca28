"""Formulas about single clients: whether enough return, back-off after misses, and errors of predicted times."""

from __future__ import annotations

import numpy as np

from turnout.kernel.arrays import FloatArray, IntArray

#: The longest back-off, in rounds.
MAX_BACKOFF = 64
#: The smallest weight of a new value in an exponential moving average.
EMA_WEIGHT = 0.2
#: The largest relative error that is counted, so that one outlier does not dominate the mean.
MAX_ERROR = 9.0


def probability_at_least(count: int, probabilities: FloatArray) -> float:
    """Returns the probability that at least `count` clients return, each with its own probability.

    The number of returning clients is Poisson-binomial; its distribution is computed client by client.

    >>> round(probability_at_least(2, np.array([0.9, 0.9, 0.9])), 3)
    0.972
    """
    returning = np.zeros(len(probabilities) + 1)
    returning[0] = 1.0
    for clients, probability in enumerate(probabilities.tolist(), start=1):
        returning[1 : clients + 1] = returning[1 : clients + 1] * (1 - probability) + returning[:clients] * probability
        returning[0] *= 1 - probability
    return float(returning[count:].sum())


def backoff_rounds(misses: int, backoff_after: int) -> int:
    """Returns the rounds of back-off after `misses` consecutive misses: 1, 2, 4, … from `backoff_after` misses on.

    >>> [backoff_rounds(misses, 3) for misses in range(7)]
    [0, 0, 0, 1, 2, 4, 8]
    """
    return 0 if misses < backoff_after else min(2 ** (misses - backoff_after), MAX_BACKOFF)


def relative_error(seconds: FloatArray, expected: FloatArray) -> FloatArray:
    """Returns the symmetric relative error of expected times: 0 is exact, 1 is twice or half the expected time.

    >>> relative_error(np.array([2.0, 4.0, 1.0]), np.array([2.0, 2.0, 2.0]))
    array([0., 1., 1.])
    """
    smaller = np.maximum(np.minimum(seconds, expected), 1e-9)
    error: FloatArray = np.minimum(np.maximum(seconds, expected) / smaller - 1, MAX_ERROR)
    return error


def ema_update(means: FloatArray, values: FloatArray, counts: IntArray) -> FloatArray:
    """Returns exponential moving averages after one more value each; `counts` are the values so far.

    While there are few values, the average is their plain mean.
    """
    mean: FloatArray = means + np.maximum(EMA_WEIGHT, 1 / (counts + 1)) * (values - means)
    return mean
