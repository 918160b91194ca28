"""Counters of each client of a live fleet, and arrays by client in general."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

import numpy as np

from turnout.kernel.arrays import BoolArray, IntArray, load_array, save_array
from turnout.live.turns.reliability import backoff_rounds

#: The value of `last_trained` for a client that has never trained.
NEVER = -1


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
