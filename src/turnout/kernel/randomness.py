"""Chance as a pure function of (seed, purpose, round)."""

from __future__ import annotations

import numpy as np


def round_rng(seed: int, purpose: str, round: int) -> np.random.Generator:  # noqa: A002
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
