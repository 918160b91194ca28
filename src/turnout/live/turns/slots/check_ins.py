"""Check-ins of devices that come to the server: who can be given a turn now, and who was asked to come back later.

Nothing of this is written to the file. After a restart the devices check in again, as they were asked.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

import numpy as np

from turnout.kernel.arrays import BoolArray, FloatArray, IntArray
from turnout.live import clock
from turnout.live.turns.slots.records import EndedTurns, Flight

#: The number of decisions from which the pace of the server and the winning score are computed, and of turns from which
#: their mean time is: at least this many, and at least as many as there are slots.
RECENT = 50
#: The weight of the newest interval in the mean interval between the check-ins of a client.
NEWEST_WEIGHT = 0.3
#: During a visit, a client checks in this many times while a turn lasts, or while its check-in is kept.
POLLS = 4


class CheckIns:
    """The check-ins that are kept, and what is known about the pace of the server.

    A client that checks in begins a visit. For `ttl` seconds it can be given a turn, and checks in every now and then,
    because another call may have given it one. With the first check-in after that, it is asked to wait for longer, and
    the next one begins another visit.

    Args:
        ttl: The seconds for which a check-in is kept.
        slots: The number of slots.
    """

    def __init__(self, ttl: float, slots: int) -> None:
        self.ttl, self._slots = ttl, slots
        self._statuses: dict[str, tuple[Any, float]] = {}  # with the end of the visit, the earliest end first
        # By row, in seconds of the monotonic clock: the end and the beginning of the visit, the next and the last
        # check-in.
        self._end: FloatArray = np.empty(0)
        self._begun: FloatArray = np.empty(0)
        self._due: FloatArray = np.empty(0)
        self._last: FloatArray = np.empty(0)
        self._interval: FloatArray = np.empty(0)  # the mean seconds between check-ins; 0 if unknown
        # The clients that wait, and when each of them is due, the earliest first; among them are times of the past.
        self._expected: set[int] = set()
        self._due_times: list[tuple[float, int]] = []
        recent = max(RECENT, slots)
        self._decided: deque[float] = deque(maxlen=recent + 1)
        self._scores: deque[float] = deque(maxlen=recent)
        self._seconds: deque[float] = deque(maxlen=recent)

    def add(self, client: str, row: int, status: Any) -> None:
        """Keeps the check-in of a client, which has this row in the fleet or gets it now."""
        now = clock.monotonic_seconds()
        missing = row + 1 - len(self._end)
        if missing > 0:
            self._end, self._begun, self._due, self._last = (
                np.concatenate([array, np.full(missing, -np.inf)])
                for array in (self._end, self._begun, self._due, self._last)
            )
            self._interval = np.concatenate([self._interval, np.zeros(missing)])
        gap, old = now - float(self._last[row]), float(self._interval[row])
        if math.isfinite(gap):
            self._interval[row] = old + NEWEST_WEIGHT * (gap - old) if old else gap
        if self._end[row] == -np.inf:
            self._end[row], self._begun[row] = now + self.ttl, now
        self._last[row] = now
        self._expect(row, now)
        self._statuses[client] = (status, float(self._end[row]))

    def remove(self, client: str, row: int) -> None:
        """Drops the check-in of a client that was given a turn or has left; its next check-in begins a visit."""
        self._statuses.pop(client, None)
        if row < len(self._end):
            self._end[row] = self._due[row] = self._last[row] = -np.inf
            self._expected.discard(row)

    def clear(self) -> None:
        """Drops all check-ins."""
        self._statuses.clear()

    def statuses(self, caller: str | None = None) -> dict[str, Any]:
        """Returns the status of each client that can be given a turn now; `caller` is the one that is checking in."""
        now = clock.monotonic_seconds()
        while self._statuses:
            client = next(iter(self._statuses))
            if self._statuses[client][1] > now or client == caller:
                break
            del self._statuses[client]
        return {client: status for client, (status, end) in self._statuses.items() if end > now or client == caller}

    def waited(self, rows: IntArray) -> FloatArray:
        """Returns how many seconds ago the visits of these clients began, which must have checked in."""
        seconds: FloatArray = clock.monotonic_seconds() - self._begun[rows]
        return seconds

    def awaited(self, clients: int) -> BoolArray:
        """Returns which clients have checked in and are not due again: they wait, as they were asked.

        Args:
            clients: The number of clients of the fleet.
        """
        awaited = np.zeros(clients, dtype=np.bool_)
        due = self._due[:clients]
        awaited[: len(due)] = due >= clock.monotonic_seconds()
        return awaited

    def count_awaited(self) -> int:
        """Returns how many clients wait, as they were asked, without a look at all clients of the fleet."""
        now = clock.monotonic_seconds()
        while self._due_times and self._due_times[0][0] < now:
            due, row = heapq.heappop(self._due_times)
            if self._due[row] == due:
                self._expected.discard(row)
        return len(self._expected)

    def _expect(self, row: int, due: float) -> None:
        self._due[row] = due
        self._expected.add(row)
        heapq.heappush(self._due_times, (due, row))
        if len(self._due_times) > 2 * len(self._expected) + RECENT:  # most belong to check-ins that others followed
            self._due_times = [(float(self._due[row]), row) for row in self._expected]
            heapq.heapify(self._due_times)

    def interval(self, row: int) -> float:
        """Returns the mean seconds between the check-ins of a client; 0 if they are unknown."""
        return float(self._interval[row])

    def postpone(
        self, client: str, row: int, seconds: float, mean_turn: float | None, held: float | None = None
    ) -> float:
        """Returns after how many seconds a client should check in again, and remembers it.

        Args:
            client: The client.
            row: Its row.
            seconds: For how long it should wait after this visit.
            mean_turn: The mean seconds of a turn; None if unknown.
            held: The seconds after which turns can be given; None if that is at any time.
        """
        now = clock.monotonic_seconds()
        left = float(self._end[row]) - now
        if left <= 0:
            return self.dismiss(client, row, max(seconds, held or 0.0))
        poll = min(self.ttl, mean_turn or self.ttl) / POLLS if held is None else held
        self._expect(row, now + min(poll, left))
        return min(poll, left)

    def dismiss(self, client: str, row: int, seconds: float) -> float:
        """Ends the visit of a client, which waits for so many seconds, and returns them; its check-in is dropped."""
        self._statuses.pop(client, None)
        self._end[row] = -np.inf
        self._expect(row, clock.monotonic_seconds() + seconds)
        return seconds

    # The pace of the server

    def count(self, flights: Sequence[Flight], ended: EndedTurns) -> None:
        """Counts what a call of `fill` decided, and the turns that had ended."""
        now = clock.monotonic_seconds()
        for flight in flights:
            self._decided.append(now)
            if "objective" in flight.reasons and not flight.reasons.get("urgent"):
                self._scores.append(flight.reasons["objective"])
        self._seconds.extend(ended.seconds.tolist())

    @property
    def mean_turn(self) -> float | None:
        """The mean seconds of recent turns; None if none has ended since the fleet was opened."""
        return fmean(self._seconds) if self._seconds else None

    @property
    def decisions_per_second(self) -> float | None:
        """The pace of recent decisions; None if there were too few."""
        if len(self._decided) <= self._slots:
            return None  # all slots were filled at once
        span = clock.monotonic_seconds() - self._decided[0]
        return (len(self._decided) - 1) / span if span > 0 else None

    @property
    def winning_score(self) -> float | None:
        """The median score of recent winners; None if there is none."""
        return median(self._scores) if self._scores else None
