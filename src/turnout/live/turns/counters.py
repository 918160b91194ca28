"""Counters of each client of a live fleet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from turnout.kernel.arrays import BoolArray, IntArray, saved_value

#: The value of `last_trained` for a client that has never trained.
NEVER = -1
#: The key under which a snapshot stores a counter, where it differs from the name of the counter.
_STORED_KEYS = {"last_trained": "trained_in", "backoff_until": "rest_until"}


def _empty() -> IntArray:
    return np.empty(0, dtype=np.int64)


@dataclass(slots=True, eq=False)
class ClientCounters:
    """Counters of each client, by row.

    Attributes:
        joined: The number of rounds that were closed before the client joined.
        offered: The closed rounds in which the client was available.
        last_trained: The last round from which the client returned; NEVER before the first.
        learned: The times that the policy has learned from the client, late ones included.
        misses: The consecutive rounds in which the client was late or failed.
        backoff_until: The last round of the client's back-off; 0 if there is none.
        retired: 1 for a client that has left for good, otherwise 0.
        broken_since: The round since which the client has been beyond the tolerance of its promise; 0 if it is not. A
            retired client keeps the round, because what it is behind no longer changes.
    """

    joined: IntArray = field(default_factory=_empty)
    offered: IntArray = field(default_factory=_empty)
    last_trained: IntArray = field(default_factory=_empty)
    learned: IntArray = field(default_factory=_empty)
    misses: IntArray = field(default_factory=_empty)
    backoff_until: IntArray = field(default_factory=_empty)
    retired: IntArray = field(default_factory=_empty)
    broken_since: IntArray = field(default_factory=_empty)

    @classmethod
    def restored(cls, stored: Mapping[str, Any]) -> ClientCounters:
        """Returns the counters from the entries of a snapshot; other entries are ignored."""
        names = [counter.name for counter in fields(cls)]
        return cls(**{name: np.array(saved_value(stored, _stored_key(name)), dtype=np.int64) for name in names})

    def stored(self) -> dict[str, IntArray]:
        """Returns copies of the counters, by the keys under which a snapshot stores them."""
        return {_stored_key(counter.name): getattr(self, counter.name).copy() for counter in fields(self)}

    def add(self, count: int, round: int) -> None:
        """Appends `count` new clients, which joined after `round` was closed."""
        initial = {"joined": round, "last_trained": NEVER}
        for counter in fields(self):
            new = np.full(count, initial.get(counter.name, 0), dtype=np.int64)
            setattr(self, counter.name, np.concatenate([getattr(self, counter.name), new]))

    def forget(self, row: int) -> None:
        """Resets everything that a client's reports have changed, except the last round in which it trained."""
        for counter in (self.offered, self.learned, self.misses, self.backoff_until):
            counter[row] = 0

    def judge(self, broken: BoolArray, round: int) -> None:
        """Records which clients are beyond the tolerance after `round` was closed."""
        self.broken_since *= broken
        if broken.any():
            self.broken_since[broken & (self.broken_since == 0)] = round

    def backing_off(self, round: int) -> BoolArray:
        """Returns which clients are in back-off after `round` was closed, retired clients included."""
        return self.backoff_until > round


def _stored_key(name: str) -> str:
    return _STORED_KEYS.get(name, name)
