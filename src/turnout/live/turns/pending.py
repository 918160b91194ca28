"""Late clients whose actual times are still awaited."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from turnout.errors import StateError
from turnout.kernel.arrays import FloatArray, IntArray, saved_value
from turnout.kernel.rounds import LateArrivals
from turnout.live.turns.records import LateTimes


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
