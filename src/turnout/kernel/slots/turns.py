"""Turns without rounds: a free slot is given to one client, while others are training; which rates can be kept.

The clock is the decision. A client earns its guaranteed rate with every decision, as it does with every round, also
while it is training; but during one turn it earns at most one turn. Without this limit, a client whose turn lasts very
long would earn more than it can be given afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from turnout.errors import ReportError, SettingError, StateError
from turnout.kernel.arrays import (
    BoolArray,
    FloatArray,
    IntArray,
    Value,
    as_count,
    as_mask,
    as_rows,
    as_times,
    load_array,
    refuse_where,
    save_array,
)
from turnout.kernel.fairness import UNLIMITED, FairnessQueues

#: The metrics of a turn without rounds: when it began and when it ended, in seconds.
STARTED, FINISHED = "started", "finished"


@dataclass(frozen=True, slots=True, eq=False)
class TurnStart(Value):
    """A decision: one client was given a turn, whose result is not known yet.

    Attributes:
        decision: The number of the decision, from 1.
        client: The row of the client.
        present: One boolean per client: whether it was available, or was training already.
        capped: The rows of the clients that have earned a whole turn since their present turn began. They earn nothing
            with this decision.
    """

    decision: int
    client: int
    present: BoolArray
    capped: IntArray

    def __post_init__(self) -> None:
        present = as_mask("present", self.present, ReportError)
        capped = as_rows("capped", self.capped, ReportError, clients=len(present))
        client = as_count("client", self.client, ReportError, least=0)
        if client >= len(present) or not present[client]:
            raise ReportError(f"client {client} was given a turn, but was not available")
        if client in capped:
            raise ReportError(f"client {client} was given a turn, but is in capped: it was training already")
        self._set(
            decision=as_count("decision", self.decision, ReportError), client=client, present=present, capped=capped
        )

    @classmethod
    def trusted(cls, decision: int, client: int, present: BoolArray, capped: IntArray) -> TurnStart:
        """Creates a value without validation, from arrays that were created for it."""
        return cls._trusted(decision=decision, client=client, present=present, capped=capped)

    @property
    def rows(self) -> IntArray:
        """The row of the client, as an array."""
        return np.array([self.client], dtype=np.int64)

    def earning(self) -> BoolArray:
        """Returns which clients earn if clients earn while they are available."""
        if not len(self.capped):
            return self.present
        earning = self.present.copy()
        earning[self.capped] = False
        return earning


class RunningTurns:
    """Which clients are training, and since which decision.

    Args:
        clients: The number of clients.
    """

    def __init__(self, clients: int) -> None:
        self._started: IntArray = np.zeros(clients, dtype=np.int64)  # the decision of the present turn; 0 if idle
        self._training: dict[int, int] = {}  # the same for the clients that train, by row
        self._idle: BoolArray = np.ones(clients, dtype=np.bool_)

    def __len__(self) -> int:
        return len(self._training)

    @property
    def idle(self) -> BoolArray:
        """The clients that are not training."""
        return self._idle.copy()

    @property
    def rows(self) -> IntArray:
        """The clients that are training, in the order in which they were given their turns."""
        return np.array(list(self._training), dtype=np.int64)

    def decision_of(self, row: int) -> int:
        """Returns the number of the decision that gave a client its present turn; 0 if it is idle."""
        return self._training.get(row, 0)

    def capped(self, decision: int, debts: FairnessQueues | None) -> IntArray:
        """Returns the clients that earn nothing with this decision, because they have earned a turn since theirs began.

        Args:
            decision: The number of the decision.
            debts: The queues with the rates of the clients; None if nothing is guaranteed.
        """
        limits = UNLIMITED if debts is None else debts.decisions_per_turn()
        if not isinstance(limits, int):
            rows = self.rows
            return rows[decision - self._started[rows] > limits[rows]]
        over = []
        for row, started in self._training.items():  # the oldest turns come first
            if decision - started <= limits:
                break
            over.append(row)
        return np.array(over, dtype=np.int64)

    def start(self, turn: TurnStart) -> None:
        """Counts a decision.

        Raises:
            ReportError: If the client is training already.
        """
        if self._started[turn.client]:
            raise ReportError(f"client {turn.client} is training since decision {self._started[turn.client]}")
        self._started[turn.client] = self._training[turn.client] = turn.decision
        self._idle[turn.client] = False

    def finish(self, row: int) -> int:
        """Ends the turn of a client, and returns the number of the decision that gave it.

        Raises:
            ReportError: If the client is not training.
        """
        started = self._training.pop(row, None)
        if started is None:
            raise ReportError(f"client {row} is not training")
        self._started[row] = 0
        self._idle[row] = True
        return started

    def add(self, count: int) -> None:
        """Appends clients that are idle."""
        self._started = np.concatenate([self._started, np.zeros(count, dtype=np.int64)])
        self._idle = np.concatenate([self._idle, np.ones(count, dtype=np.bool_)])

    def state(self) -> dict[str, Any]:
        """Returns the running turns, as plain arrays."""
        return {"started": save_array(self._started)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` returned."""
        started = load_array(state, "started", self._started)
        refuse_where(started < 0, "started", started, "must not be negative", StateError)
        self._started, self._idle = started, started == 0
        rows = np.flatnonzero(started)
        in_order = rows[np.argsort(started[rows], kind="stable")]
        self._training = {row: int(started[row]) for row in in_order.tolist()}


#: The relative precision of the largest rate at full speed.
PRECISION = 1e-9


@dataclass(frozen=True, slots=True)
class SlotLimits:
    """What can be guaranteed to clients with these times.

    Attributes:
        largest_rate: The largest rate that any server could give every client. A server that gives it may have to give
            spare slots to slow clients on purpose.
        full_speed_rate: The largest rate if spare slots go to the fastest clients, as they do in a server that wants
            many updates per second.
        sufficient_slots: The largest number of slots with which every client can have an equal share; at least 1.
    """

    largest_rate: float
    full_speed_rate: float
    sufficient_slots: int


def slot_limits(times: npt.ArrayLike, slots: int) -> SlotLimits:
    """Returns which rates can be guaranteed to clients whose turns take these times.

    A client is in one slot at most. With K slots, x_i turns of client i per second take the share x_i · t_i of one
    slot. Nobody is in two slots, x_i · t_i ≤ 1, and the slots are full, Σ x_i · t_i = K. A rate r is a share of all
    turns: x_i ≥ r · λ with λ = Σ x_i turns per second. So the slowest client limits the rate, the more the faster the
    server is: r · λ · max t ≤ 1.

    Args:
        times: The time of a turn of each client in seconds.
        slots: The number of slots.

    >>> limits = slot_limits([1, 1, 1, 10], 2)
    >>> round(limits.largest_rate, 4), round(limits.full_speed_rate, 4), limits.sufficient_slots
    (0.0909, 0.0909, 1)
    """
    seconds = np.sort(as_times("times", np.asarray(times, dtype=np.float64), SettingError))
    refuse_where(seconds <= 0, "times", seconds, "must be above 0", SettingError)
    if not len(seconds):
        raise SettingError("times must have at least one client")
    count = min(as_count("slots", slots, SettingError), len(seconds))  # further slots stay empty
    slowest, total = float(seconds[-1]), float(seconds.sum())
    equal = 1 / len(seconds)
    sufficient = max(math.floor(total / slowest * (1 + PRECISION)), 1)
    if count <= sufficient:
        return SlotLimits(equal, equal, sufficient)
    return SlotLimits(_largest_rate(seconds, count), _full_speed_rate(seconds, count), sufficient)


def fastest_pace(times: FloatArray, slots: int, rate: float) -> float:
    """Returns the most turns per second with which every client still has its share of the turns.

    Args:
        times: The time of a turn of each client in seconds, ascending.
        slots: The number of slots.
        rate: The share of the turns of each client.
    """
    return _largest(slots / float(times[0]), lambda pace: _slots_needed(times, rate, pace) <= slots)


def _slots_needed(times: FloatArray, rate: float, pace: float) -> float:
    """Returns how many slots are busy at `pace` turns per second; infinite if the clients cannot have so many turns."""
    least = rate * pace
    room = np.maximum(1 / times - least, 0.0)  # the further turns per second that each client can have
    left = pace - least * len(times)
    taken = np.minimum(room, np.maximum(left - np.concatenate([[0.0], np.cumsum(room)[:-1]]), 0.0))  # the fastest first
    if left - taken.sum() > PRECISION * pace:
        return math.inf
    return float(((least + taken) * times).sum())


def _largest_rate(times: FloatArray, slots: int) -> float:
    """Returns the largest rate: the slowest client trains all the time, and spare slots go to the slowest first."""
    busy = times / times[-1]
    spare = slots - float(busy.sum())
    for row in range(len(times) - 1, -1, -1):
        more = min(1.0 - float(busy[row]), spare)
        busy[row] += more
        spare -= more
    return 1 / (float(times[-1]) * float((busy / times).sum()))


def _full_speed_rate(times: FloatArray, slots: int) -> float:
    """Returns the rate at which the slowest client trains all the time although spare slots go to the fastest."""
    slowest = float(times[-1])
    return _largest(1 / len(times), lambda rate: rate * fastest_pace(times, slots, rate) * slowest <= 1 + PRECISION)


def _largest(high: float, fits: Callable[[float], bool]) -> float:
    """Returns the largest number below `high` that fits, by bisection; smaller numbers fit too."""
    low = 0.0
    while high - low > PRECISION * high:
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
