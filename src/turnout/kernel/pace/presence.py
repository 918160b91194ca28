"""How often each client was available, and the longest absence to expect from that."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from turnout.kernel.arrays import BoolArray, FloatArray, IntArray, load_array, save_array

#: An absence is as long as expected unless a longer one has less than this probability.
IMPROBABLE = 0.001


class Presence:
    """Counts the rounds for which each client was available.

    The number of all rounds is passed in by the caller, who counts them already.
    """

    def __init__(self, clients: int) -> None:
        self._present: IntArray = np.zeros(clients, dtype=np.int64)
        # The rounds before clients were forgotten, which do not count any more; None if nobody was.
        self._discounted: IntArray | None = None

    def count(self, available: BoolArray | None) -> None:
        """Adds a round; None means that all clients were available."""
        self._present += 1 if available is None else available

    def longest_absence(self, rounds: int | IntArray) -> FloatArray:
        """Returns the longest absence to expect of each client, in rounds.

        It is ln 0.001 / ln(1 − p), where p = (rounds available + 1) / (rounds + 2) is the estimated probability that
        the client is available. The present round counts, and the client is available for it.

        Args:
            rounds: The number of rounds before this one: one number, or one per client.
        """
        if self._discounted is not None:
            return absence(self._present, rounds - self._discounted)
        if isinstance(rounds, int) and rounds < len(self._present):
            return absence(np.arange(rounds + 1), rounds)[self._present]  # a logarithm for each count
        return absence(self._present, rounds)

    def of(self, row: int, rounds: int) -> tuple[int, int]:
        """Returns for how many rounds a client was available, and of how many."""
        discounted = 0 if self._discounted is None else int(self._discounted[row])
        return int(self._present[row]), rounds - discounted

    def add(self, count: int) -> None:
        """Appends clients that were not there yet."""
        self._present = np.concatenate([self._present, np.zeros(count, dtype=np.int64)])
        if self._discounted is not None:
            self._discounted = np.concatenate([self._discounted, np.zeros(count, dtype=np.int64)])

    def forget(self, rows: IntArray, rounds: int | IntArray) -> None:
        """Restarts the counts of these clients; `rounds` is the number of rounds so far."""
        if self._discounted is None:
            self._discounted = np.zeros(len(self._present), dtype=np.int64)
        self._present[rows] = 0
        self._discounted[rows] = rounds[rows] if isinstance(rounds, np.ndarray) else rounds

    def state(self) -> dict[str, Any]:
        """Returns the counts, as plain arrays."""
        discounted = {} if self._discounted is None else {"discounted": save_array(self._discounted)}
        return {"present": save_array(self._present), **discounted}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` returned; if that fails, nothing changes."""
        discounted = load_array(state, "discounted", self._present) if "discounted" in state else None
        self._present, self._discounted = load_array(state, "present", self._present), discounted


def absence(present: IntArray, rounds: int | IntArray) -> FloatArray:
    """Returns the longest absence to expect of clients that were available for `present` of `rounds` rounds.

    Both are without this round, for which the clients are available.
    """
    return expected_absence((present + 2) / (rounds + 3))


def expected_absence(probability: FloatArray) -> FloatArray:
    """Returns the longest absence to expect of clients that are available with these probabilities, in rounds.

    It is ln 0.001 / ln(1 − probability): 0 for a client that is always available, infinite for one that never is.

    >>> expected_absence(np.array([1.0, 0.5, 0.2])).round(1).tolist()
    [0.0, 10.0, 31.0]
    """
    with np.errstate(divide="ignore"):
        longest: FloatArray = math.log(IMPROBABLE) / np.log1p(-probability)
    return longest
