"""Chance as a pure function of (seed, purpose, round)."""

from __future__ import annotations

import math

import numpy as np

from turnout.kernel.arrays import FloatArray

#: Below this all Dirichlet weights but one are zero for any purpose, and their logarithms run out of range.
SMALLEST_CONCENTRATION = 1e-6


def round_rng(seed: int, purpose: str, round: int) -> np.random.Generator:
    """A fresh generator that depends on these three and on nothing else.

    Two purposes never share draws, a resumed run draws what it would have drawn, and no global
    random state is read or changed.

    >>> bool(round_rng(7, "noise", 3).random() == round_rng(7, "noise", 3).random())
    True
    >>> bool(round_rng(7, "noise", 3).random() == round_rng(7, "availability", 3).random())
    False
    """
    word = int.from_bytes(purpose.encode(), "little")
    return np.random.default_rng(np.random.SeedSequence(entropy=seed, spawn_key=(word, round)))


def dirichlet_logs(rng: np.random.Generator, count: int, concentration: float) -> FloatArray:
    """Logarithms of unnormalised Dirichlet(concentration · 1) weights; all 0 for an infinite concentration.

    log Gamma(a) = log Gamma(a + 1) + log(U)/a in distribution: small weights do not underflow to zero.
    """
    if math.isinf(concentration):
        return np.zeros(count)
    logs: FloatArray = np.log(rng.standard_gamma(concentration + 1, count))
    logs -= rng.standard_exponential(count) / concentration
    return logs


def softmax(logs: FloatArray) -> FloatArray:
    """Weights that add up to 1, from their logarithms."""
    weights = np.exp(logs - logs.max())
    shares: FloatArray = weights / weights.sum()
    return shares
