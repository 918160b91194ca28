"""Weighted sampling without replacement."""

from __future__ import annotations

import numpy as np

from turnout.kernel.arrays import FloatArray, IntArray, smallest
from turnout.kernel.randomness import round_rng


def exponential_keys(seed: int, purpose: str, round: int, clients: int) -> FloatArray:
    """Returns one standard exponential key per client; it does not depend on which clients are available."""
    return round_rng(seed, purpose, round).standard_exponential(clients)


def weighted_sample(log_weights: FloatArray, keys: FloatArray, count: int) -> IntArray:
    """Returns ascending positions of a weighted sample without replacement.

    Uses exponential keys (Efraimidis-Spirakis), so the weights need not be normalised. Entries of weight 0 are
    selected last, at random.

    >>> weighted_sample(np.log([5.0, 1.0, 3.0]), np.array([1.0, 1.0, 0.2]), 2)
    array([0, 2])
    """
    with np.errstate(divide="ignore"):
        log_arrivals = np.log(keys) - log_weights
    weighted = np.flatnonzero(log_weights > -np.inf)
    if count <= len(weighted):
        return smallest(log_arrivals, count)
    weightless = np.flatnonzero(log_weights == -np.inf)
    more = weightless[smallest(keys[weightless], count - len(weighted))]
    return np.sort(np.concatenate([weighted, more]))


def weighted_sample_linear(weights: FloatArray, keys: FloatArray, count: int) -> IntArray:
    """The same as `weighted_sample`, for non-negative weights instead of their logarithms."""
    with np.errstate(divide="ignore"):
        return weighted_sample(np.log(weights), keys, count)
