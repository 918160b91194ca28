"""Drawing lots among rows: one after the other without putting back, and at random among equals."""

from __future__ import annotations

import numpy as np

from turnout.kernel.arrays import FloatArray, IntArray, smallest
from turnout.kernel.randomness import round_rng


def exponential_keys(seed: int, purpose: str, round: int, clients: int) -> FloatArray:
    """One exponential waiting time a client: its luck in this round, whoever else is there."""
    return round_rng(seed, purpose, round).standard_exponential(clients)


def drawn(log_weights: FloatArray, waits: FloatArray, count: int) -> IntArray:
    """Ascending positions of `count` draws, each in proportion to its weight among those left.

    Who runs exp(log_weight) times as fast as its clock comes in first so often as such a draw takes it, so no
    probabilities have to add up to 1. Those without any weight come last, at random.

    >>> drawn(np.log([5.0, 1.0, 3.0]), np.array([1.0, 1.0, 0.2]), 2)
    array([0, 2])
    """
    with np.errstate(divide="ignore"):
        arrivals = np.log(waits) - log_weights
    in_race = np.flatnonzero(log_weights > -np.inf)
    if count <= len(in_race):
        return smallest(arrivals, count)
    idle = np.flatnonzero(log_weights == -np.inf)
    more = idle[smallest(waits[idle], count - len(in_race))]
    return np.sort(np.concatenate([in_race, more]))


def weighted_sample_linear(weights: FloatArray, waits: FloatArray, count: int) -> IntArray:
    """The same, for weights that are not negative."""
    with np.errstate(divide="ignore"):
        return drawn(np.log(weights), waits, count)


def lowest(values: FloatArray, luck: FloatArray, count: int) -> IntArray:
    """Ascending positions of the `count` smallest values; of equals those with the smallest luck.

    >>> lowest(np.array([1.0, 7.0, 1.0, 1.0]), np.array([0.9, 0.0, 0.1, 0.2]), 2)
    array([2, 3])
    """
    if count >= len(values):
        return np.arange(len(values))
    if count == 0:
        return np.empty(0, dtype=np.int64)
    bound = np.partition(values, count - 1)[count - 1]
    surely = np.flatnonzero(values < bound)
    equals = np.flatnonzero(values == bound)
    more = equals[smallest(luck[equals], count - len(surely))]
    return np.sort(np.concatenate([surely, more]))
