"""What is known about each client: how often it is available, what its turns usually take, which times are credible."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from turnout.kernel.arrays import BoolArray, FloatArray, IntArray, load_array, save_array
from turnout.kernel.exchange_time import ExchangeTimeModel
from turnout.kernel.rounds import TIMED_OUTCOMES, RoundReport

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
    """Returns the longest absence to expect of clients that were available for `present` of `rounds`, in rounds.

    Both are without this round, for which the clients are available. It is ln 0.001 / ln(1 − probability), with the
    probability that a client is available; 0 for a client that always is.

    >>> absence(np.array([98, 8, 0]), np.array([97, 17, 7])).round(1).tolist()
    [0.0, 10.0, 31.0]
    """
    probability = (present + 2) / (rounds + 3)
    with np.errstate(divide="ignore"):
        longest: FloatArray = math.log(IMPROBABLE) / np.log1p(-probability)
    return longest


#: A time is doubted if it is more than this many times as long as all that is known about it. No time of the paper's
#: world is, although its noise is ± the expected time and clients of its slowest class take ten times as long.
DOUBTED = 13.0
#: Times are doubted once so many clients have had one.
MIN_TIMED = 5


def credible_times(times: FloatArray, predicted: FloatArray, last: FloatArray) -> FloatArray:
    """Returns the times to learn of clients that took more than 13 times as long as before, or had no time before.

    Such a time is doubted if it is also more than 13 times as long as predicted, and as the median of the last times of
    all clients: a cold start, or a machine that was suspended. The expected time is learned in its place. The second
    such time in a row is not passed here, because the one before supports it.

    Args:
        times: The times of these clients.
        predicted: Their predicted times, not below 0.
        last: The last time of every client, these included; 0 if there is none.
    """
    doubted = times > DOUBTED * predicted
    timed = last[last > 0] if doubted.any() else last[:0]
    if len(timed) < MIN_TIMED:
        return times
    typical = float(np.median(timed))
    doubted &= times > DOUBTED * typical
    return np.where(doubted, np.where(predicted > 0, predicted, typical), times)


class _Sums:
    """Sums of vectors for each client and for the fleet; the last row of `sums` is the number of vectors."""

    def __init__(self, clients: int, width: int) -> None:
        self.sums = np.zeros((width + 1, clients))
        self._fleet = np.zeros(width + 1)

    def _learn(self, rows: IntArray, vectors: FloatArray) -> None:
        self.sums[:-1, rows] += vectors.T
        self.sums[-1, rows] += 1.0
        self._fleet[:-1] += vectors[np.argsort(rows)].sum(axis=0)  # the sum of floats depends on their order
        self._fleet[-1] += float(len(rows))

    @property
    def is_empty(self) -> bool:
        """Whether there was no turn yet."""
        return not self._fleet[-1]

    def weights(self, rows: IntArray) -> FloatArray:
        """Returns the number of turns of each client plus one, for the fleet's mean."""
        weights: FloatArray = self.sums[-1, rows] + 1.0
        return weights

    def add(self, count: int) -> None:
        """Appends clients without turns."""
        self.sums = np.concatenate([self.sums, np.zeros((len(self.sums), count))], axis=1)

    def forget(self, rows: IntArray) -> None:
        """Removes what these clients contributed, to the fleet's mean too."""
        self._fleet -= self.sums[:, rows].sum(axis=1)
        if self._fleet[-1] == 0:
            self._fleet[:] = 0.0  # instead of rounding errors
        self.sums[:, rows] = 0.0

    def state(self) -> dict[str, Any]:
        """Returns all sums."""
        return {"sums": save_array(self.sums), "fleet": save_array(self._fleet)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` returned; if that fails, nothing changes."""
        self.sums, self._fleet = load_array(state, "sums", self.sums), load_array(state, "fleet", self._fleet)


class UsualContexts(_Sums):
    """The usual context of each client: the mean of the contexts of its turns and one mean context of the fleet.

    Only turns whose times were learned count.
    """

    def learn_from(self, report: RoundReport) -> None:
        """Adds the contexts of the clients whose times were learned."""
        kept = report.informative()
        rows, contexts = report.clients, report.contexts
        self._learn(*((rows, contexts) if kept is None else (rows[kept], contexts[kept])))

    def fleet_mean(self) -> FloatArray:
        """Returns the mean over all turns so far; 0 before the first turn, when all predicted times are 0 anyway."""
        mean: FloatArray = self._fleet[:-1] / max(float(self._fleet[-1]), 1.0)
        return mean

    def terms(self, model: ExchangeTimeModel, mean: FloatArray, rows: IntArray) -> tuple[FloatArray, FloatArray]:
        """Returns the predicted time in the usual context, not below 0, times a weight; and that weight.

        The operations have the same order as in the compiled kernel.
        """
        usual: FloatArray = np.zeros(len(rows))
        for feature, average in enumerate(mean.tolist()):
            part = model.coefficients[feature, rows] * (self.sums[feature, rows] + average)
            usual = usual + part if feature else part
        return np.where(usual > 0, usual, 0.0), self.weights(rows)


class UsualTimes(_Sums):
    """The usual time of each client: the mean of its times and one mean time of the fleet."""

    def __init__(self, clients: int) -> None:
        super().__init__(clients, 1)

    def learn_from(self, report: RoundReport) -> None:
        """Adds the times of the clients that returned or were late; replaces deadlines by true times."""
        late = report.late_arrivals
        if late is not None:
            delays = late.exchange_times - late.deadlines
            np.add.at(self.sums[0], late.clients, delays)
            self._fleet[0] += float(delays.sum())
        timed = report.with_outcome(*TIMED_OUTCOMES)
        self._learn(report.clients[timed], report.exchange_times[timed][:, None])

    def fleet_mean(self, times: FloatArray, available: BoolArray) -> float:
        """Returns the mean over all turns so far; before the first turn, the mean time of these available clients."""
        if self._fleet[-1]:
            return float(self._fleet[0] / self._fleet[-1])
        return float(np.multiply(times, available).sum() / max(int(np.count_nonzero(available)), 1))

    def terms(self, mean: float, rows: IntArray) -> tuple[FloatArray, FloatArray]:
        """Returns the usual time times a weight; and that weight."""
        return self.sums[0, rows] + mean, self.weights(rows)
