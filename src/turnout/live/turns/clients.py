"""What is known about each client: counters, how often it returned, and whether its actual time is still awaited."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import numpy as np

from turnout.errors import StateError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray, load_array, save_array, saved_value
from turnout.kernel.rounds import LateArrivals
from turnout.live.turns.records import LATE, REDUNDANT, LateTimes

#: The longest back-off, in rounds.
MAX_BACKOFF = 64
#: The smallest weight of a new value in an exponential moving average.
EMA_WEIGHT = 0.2
#: The largest relative error that is counted, so that one outlier does not dominate the mean.
MAX_ERROR = 9.0
#: The value of `last_trained` for a client that has never trained.
NEVER = -1
#: The number of a client's times after which prediction errors are counted: the first predictions know nothing.
JUDGED_AFTER = 2
#: A client is suspect once it has returned this many times, ...
SUSPECT_AFTER = 10
#: ... if the error of predictions from its context exceeds this, ...
SUSPECT_ERROR = 0.3
#: ... and is more than this many times the error of predictions from its typical time.
SUSPECT_RATIO = 2.0


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


def column(dtype: type = np.int64, *, initial: int = 0) -> Any:
    """Returns a field of `ClientColumns`, with this type of entries and this entry for a new client."""
    return field(default_factory=lambda: np.empty(0, dtype), metadata={"initial": initial})


@dataclass(slots=True, eq=False)
class ClientColumns:
    """Arrays with one entry per client, by row; each field of a subclass is one, made with `column`."""

    @classmethod
    def restored(cls, state: Mapping[str, Any], clients: int) -> Self:
        """Returns the arrays of so many clients from the entries of a snapshot; other entries are ignored."""
        columns = cls()
        for entry in fields(cls):
            like = np.empty(clients, dtype=getattr(columns, entry.name).dtype)
            setattr(columns, entry.name, load_array(state, f"clients.{entry.name}", like))
        return columns

    def stored(self) -> dict[str, Any]:
        """Returns the arrays, by the keys under which a snapshot stores them."""
        return {f"clients.{entry.name}": save_array(getattr(self, entry.name)) for entry in fields(self)}

    def add(self, count: int) -> None:
        """Appends `count` new clients."""
        for entry in fields(self):
            array = getattr(self, entry.name)
            new = np.full(count, entry.metadata["initial"], dtype=array.dtype)
            setattr(self, entry.name, np.concatenate([array, new]))


@dataclass(slots=True, eq=False)
class ClientCounters(ClientColumns):
    """Counters of each client, by row.

    Attributes:
        joined: The number of rounds that were closed before the client joined.
        offered: The closed rounds in which the client was available.
        last_trained: The last round from which the client returned; NEVER before the first.
        learned: The times that the policy has learned from the client, late ones included.
        misses: The consecutive rounds in which the client was late or failed.
        backoff_until: The last round of the client's back-off; 0 if there is none.
        backed_off: The rounds of all its back-offs, those that are still to come included.
        retired: 1 for a client that has left for good, otherwise 0.
        broken_since: The round since which the client has been beyond the tolerance of its promise; 0 if it is not. A
            retired client keeps the round, because what it is behind no longer changes.
    """

    joined: IntArray = column()
    offered: IntArray = column()
    last_trained: IntArray = column(initial=NEVER)
    learned: IntArray = column()
    misses: IntArray = column()
    backoff_until: IntArray = column()
    backed_off: IntArray = column()
    retired: IntArray = column()
    broken_since: IntArray = column()

    def forget(self, row: int) -> None:
        """Resets everything that a client's reports have changed, except the last round in which it trained."""
        for counter in (self.offered, self.learned, self.misses, self.backoff_until, self.backed_off):
            counter[row] = 0

    def judge(self, broken: BoolArray, round: int) -> None:
        """Records which clients are beyond the tolerance after `round` was closed."""
        self.broken_since *= broken
        if broken.any():
            self.broken_since[broken & (self.broken_since == 0)] = round

    def back_off(self, rows: IntArray | int, round: int, last: int) -> None:
        """Backs clients off after `round`, up to and including round `last`; 0 ends their back-off."""
        self.backed_off[rows] += max(last, round) - np.maximum(self.backoff_until[rows], round)
        self.backoff_until[rows] = last

    def rounds_backed_off(self, round: int) -> IntArray:
        """Returns the rounds up to `round` in which each client was in back-off."""
        rounds: IntArray = self.backed_off - np.maximum(self.backoff_until - round, 0)
        return rounds

    def backing_off(self, round: int) -> BoolArray:
        """Returns which clients are in back-off after `round` was closed, retired clients included."""
        return self.backoff_until > round

    def stepping_aside(self, round: int, backoff_after: int) -> BoolArray:
        """Returns which clients are backed off after `round` only because the cohort is small.

        They are for 1, 2, 4, … rounds from their first miss on, less those for which `backoff_after` misses exclude
        them from any cohort.
        """
        aside = np.zeros(len(self.misses), dtype=np.bool_)
        for row in np.flatnonzero(self.backing_off(round) & (self.retired == 0)).tolist():
            misses = int(self.misses[row])
            first = int(self.backoff_until[row]) - backoff_rounds(misses, 1)
            aside[row] = round >= first + backoff_rounds(misses, backoff_after)
        return aside


@dataclass(slots=True, eq=False)
class ClientHistory(ClientColumns):
    """The reliability of each client, and moving averages of its times and of the errors of predicting them, by row.

    Attributes:
        arrived: The rounds from which the client returned, as part of the cohort or as redundant.
        lost: The rounds in which the client was late or failed.
        context_errors: The mean relative error of predicting the client's time from its context.
        typical_errors: The mean relative error of predicting its time by `typical_seconds`.
        typical_seconds: The mean of the client's times.
    """

    arrived: IntArray = column()
    lost: IntArray = column()
    context_errors: FloatArray = column(float)
    typical_errors: FloatArray = column(float)
    typical_seconds: FloatArray = column(float)

    def forget(self, row: int) -> None:
        """Resets the history of a client."""
        for entry in fields(self):
            getattr(self, entry.name)[row] = 0

    def record(self, rows: IntArray, kinds: IntArray, seconds: FloatArray, predicted: FloatArray | None) -> None:
        """Records one round.

        Args:
            rows: The clients of the cohort.
            kinds: The outcome of each, as indices into KINDS.
            seconds: The time of each; only the times of returning clients are used.
            predicted: The predicted times, NaN where there is none; None if no model predicts times.
        """
        has_returned = kinds <= REDUNDANT
        returned = rows[has_returned]
        if predicted is not None:
            self._learn(returned, seconds[has_returned], predicted[has_returned])
        self.arrived[returned] += 1
        self.lost[rows[kinds >= LATE]] += 1

    def _learn(self, rows: IntArray, seconds: FloatArray, predicted: FloatArray) -> None:
        """Updates the averages of the clients that returned."""
        counts = self.arrived[rows]
        judged = (counts >= JUDGED_AFTER) & np.isfinite(predicted)
        judged_before = np.maximum(counts - JUDGED_AFTER, 0)
        for errors, expected in ((self.context_errors, predicted), (self.typical_errors, self.typical_seconds[rows])):
            updated = ema_update(errors[rows], relative_error(seconds, expected), judged_before)
            errors[rows] = np.where(judged, updated, errors[rows])
        self.typical_seconds[rows] = ema_update(self.typical_seconds[rows], seconds, counts)

    @property
    def reliability(self) -> FloatArray:
        """The probability of each client to return by Laplace's rule: (arrived + 1) / (arrived + lost + 2)."""
        probability: FloatArray = (self.arrived + 1) / (self.arrived + self.lost + 2)
        return probability

    def misreporting(self) -> BoolArray:
        """Returns which suspects have much worse predictions than most clients: something is wrong with them alone."""
        judged = self.context_errors[self.arrived >= SUSPECT_AFTER]
        usual = float(np.median(judged)) if len(judged) else 0.0
        outlying: BoolArray = self.suspects() & (self.context_errors > SUSPECT_RATIO * usual)
        return outlying

    def suspects(self) -> BoolArray:
        """Returns which clients have times that their contexts predict worse than their typical times do."""
        misled = self.context_errors > np.maximum(SUSPECT_ERROR, SUSPECT_RATIO * self.typical_errors)
        suspects: BoolArray = misled & (self.arrived >= SUSPECT_AFTER)
        return suspects


@dataclass(frozen=True, slots=True)
class PendingArrival:
    """What was learned about a late client, until its true time is known.

    Attributes:
        context: The context of the client in the round in which it was late.
        deadline: The time that was learned in place of the true time, in seconds.
        learned: The number of times that had been learned from the client, this one included.
    """

    context: tuple[float, ...]
    deadline: float
    learned: int


class PendingArrivals:
    """Late clients, by the number and the row of their turns."""

    def __init__(self) -> None:
        self._arrivals: dict[tuple[int, int], PendingArrival] = {}

    def __len__(self) -> int:
        return len(self._arrivals)

    def add(self, number: int, row: int, context: FloatArray, deadline: float, learned: int) -> None:
        """Adds a client that is late; the arguments after the turn are those of `PendingArrival`."""
        self._arrivals[number, row] = PendingArrival(tuple(context.tolist()), deadline, learned)

    def report(self, late: LateTimes, learned: IntArray) -> LateArrivals | None:
        """Returns what the policy learns from the actual times of late clients; None if their contexts are unknown.

        Args:
            late: The turns, and the times that were reported.
            learned: The number of times that were learned from each client by now, by row.
        """
        for number, row in late.turns:
            if (number, row) not in self._arrivals:
                raise StateError(
                    f"the late time of client {row} in turn {number} was learned before, or it was not late: restore a "
                    "backup"
                )
        arrivals = [self._arrivals[key] for key in late.turns]
        kept = [index for index, arrival in enumerate(arrivals) if not np.isnan(arrival.context).any()]
        if not kept:
            return None
        arrivals, rows = [arrivals[index] for index in kept], late.rows[kept]
        deadlines = np.array([arrival.deadline for arrival in arrivals])
        return LateArrivals(
            rounds=late.rounds[kept],
            clients=rows,
            contexts=np.array([arrival.context for arrival in arrivals]),
            deadlines=deadlines,
            # A report may have been in transit when the turn ended: it had not arrived by then.
            exchange_times=np.maximum(late.seconds[kept], deadlines),
            learned_since=learned[rows] - np.array([arrival.learned for arrival in arrivals], dtype=np.int64),
        )

    def settle(self, late: LateTimes) -> None:
        """Ends the wait for clients whose actual times were learned."""
        for key in late.turns:
            del self._arrivals[key]

    def drop_until(self, number: int) -> None:
        """Removes clients whose turns are not after this one: their actual times are no longer awaited."""
        if any(own <= number for own, _ in self._arrivals):
            self._arrivals = {key: arrival for key, arrival in self._arrivals.items() if key[0] > number}

    def forget(self, row: int) -> None:
        """Removes a client."""
        self._arrivals = {key: arrival for key, arrival in self._arrivals.items() if key[1] != row}

    def forget_contexts(self, features: int) -> None:
        """Makes all contexts unknown, with so many features: the actual times are then not learned."""
        unknown = (math.nan,) * features
        self._arrivals = {key: replace(arrival, context=unknown) for key, arrival in self._arrivals.items()}

    def state(self) -> dict[str, Any]:
        """Returns the clients as arrays, for a snapshot."""
        keys = sorted(self._arrivals)
        arrivals = [self._arrivals[key] for key in keys]
        contexts = np.array([arrival.context for arrival in arrivals], dtype=np.float64)
        return {
            "awaited.rounds": np.array([number for number, _ in keys], dtype=np.int64),
            "awaited.rows": np.array([row for _, row in keys], dtype=np.int64),
            "awaited.contexts": contexts.reshape(len(keys), -1 if keys else 0),
            "awaited.deadlines": np.array([arrival.deadline for arrival in arrivals], dtype=np.float64),
            "awaited.learned": np.array([arrival.learned for arrival in arrivals], dtype=np.int64),
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> PendingArrivals:
        """Returns the clients from the entries of a snapshot; other entries are ignored."""
        pending = cls()
        columns = ("rounds", "rows", "contexts", "deadlines", "learned")
        for number, row, context, deadline, learned in zip(
            *(saved_value(state, f"awaited.{name}").tolist() for name in columns), strict=True
        ):
            pending._arrivals[number, row] = PendingArrival(tuple(context), deadline, learned)
        return pending
