"""Random numbers as a pure function of (seed, purpose, round)."""

from __future__ import annotations

import math

import numpy as np

from turnout.kernel.arrays import FloatArray

#: Below this concentration all Dirichlet weights but one are zero in practice, and their logarithms overflow.
MIN_CONCENTRATION = 1e-6


def round_rng(seed: int, purpose: str, round: int) -> np.random.Generator:
    """Returns a new generator whose draws depend only on the seed, the purpose and the round.

    Two purposes never share draws, a resumed run draws the same numbers as an uninterrupted one, and no global
    random state is read or changed.

    >>> bool(round_rng(7, "noise", 3).random() == round_rng(7, "noise", 3).random())
    True
    >>> bool(round_rng(7, "noise", 3).random() == round_rng(7, "availability", 3).random())
    False
    """
    purpose_key = int.from_bytes(purpose.encode(), "little")
    return np.random.default_rng(np.random.SeedSequence(entropy=seed, spawn_key=(purpose_key, round)))


def dirichlet_logs(rng: np.random.Generator, count: int, concentration: float) -> FloatArray:
    """Draws the logarithms of unnormalised Dirichlet(concentration · 1) weights.

    All are 0 for an infinite concentration. Since log Gamma(a) = log Gamma(a + 1) + log(U)/a in distribution, small
    weights do not underflow to zero.
    """
    if math.isinf(concentration):
        return np.zeros(count)
    logs: FloatArray = np.log(rng.standard_gamma(concentration + 1, count))
    logs -= rng.standard_exponential(count) / concentration
    return logs


def softmax(logs: FloatArray) -> FloatArray:
    """Normalises weights, given as logarithms, to a sum of 1."""
    weights = np.exp(logs - logs.max())
    shares: FloatArray = weights / weights.sum()
    return shares
