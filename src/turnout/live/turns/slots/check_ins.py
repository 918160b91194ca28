"""Check-ins of devices that come to the server: who can be given a turn now, and when the others should come back.

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

from turnout.counting import pluralize
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray
from turnout.kernel.pace.prices import ClientPrices
from turnout.kernel.slots.waiting import ClientPace, ServerPace, paced_wait
from turnout.live import clock
from turnout.live.turns.slots.filling import Hold, client_prices
from turnout.live.turns.slots.records import EndedTurns, RunningTurnRecord
from turnout.live.turns.slots.state import SlotFleet
from turnout.live.turns.slots.turns import Wait

#: The number of decisions from which the pace of the server and the winning score are computed, and of turns from which
#: their mean time is: at least this many, and at least as many as there are slots.
RECENT = 50
#: The weight of the newest interval in the mean interval between the check-ins of a client.
NEWEST_WEIGHT = 0.3
#: During a visit, a client checks in this many times while a turn lasts, or while its check-in is kept.
POLLS = 4
#: The longest wait in seconds: a client comes back within an hour, because the fleet may be amended meanwhile.
MAX_WAIT = 3600.0


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
        # check-in; and the mean seconds between check-ins, 0 if unknown. `add` replaces them by longer arrays.
        self._end = self._begun = self._due = self._last = self._interval = np.empty(0)
        # The clients that wait, and when each of them is due, the earliest first; among them are times of the past.
        self._expected: set[int] = set()
        self._due_times: list[tuple[float, int]] = []
        recent = max(RECENT, slots)
        self._decided: deque[float] = deque(maxlen=recent + 1)
        self._scores: deque[float] = deque(maxlen=recent)
        self._seconds: deque[float] = deque(maxlen=recent)
        # What is computed once for each decision, with the decision and the number of clients for which it was.
        self._prices: tuple[tuple[int, int], ClientPrices | None] = ((-1, -1), None)
        self._learned: tuple[tuple[int, int], float | None] = ((-1, -1), None)

    def add(self, client: str, row: int, status: Any) -> None:
        """Keeps the check-in of a client, which has this row in the fleet or gets it now."""
        now = clock.monotonic_seconds()
        if row >= len(self._end):
            new = max(row + 1, 2 * len(self._end)) - len(self._end)  # so that not every check-in copies them
            self._end, self._begun, self._due, self._last = (
                np.concatenate([array, np.full(new, -np.inf)])
                for array in (self._end, self._begun, self._due, self._last)
            )
            self._interval = np.concatenate([self._interval, np.zeros(new)])
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

    def postpone(
        self,
        client: str,
        row: int,
        seconds: float,
        mean_turn: float | None,
        held: float | None = None,
        *,
        listens: bool = False,
    ) -> float:
        """Returns after how many seconds a client should check in again, and remembers it.

        Args:
            client: The client.
            row: Its row.
            seconds: For how long it should wait after this visit.
            mean_turn: The mean seconds of a turn; None if unknown.
            held: The seconds after which turns can be given; None if that is at any time.
            listens: Whether it is told when it is given a turn, so that it need not ask.
        """
        now = clock.monotonic_seconds()
        left = float(self._end[row]) - now
        if left <= 0:
            return self.dismiss(client, row, max(seconds, held or 0.0))
        poll = left if listens else min(self.ttl, mean_turn or self.ttl) / POLLS
        poll = poll if held is None else held
        self._expect(row, now + min(poll, left))
        return min(poll, left)

    def dismiss(self, client: str, row: int, seconds: float) -> float:
        """Ends the visit of a client, which waits for so many seconds, and returns them; its check-in is dropped."""
        self._statuses.pop(client, None)
        self._end[row] = -np.inf
        self._expect(row, clock.monotonic_seconds() + seconds)
        return seconds

    # The pace of the server

    def count(self, running_turns: Sequence[RunningTurnRecord], ended: EndedTurns) -> None:
        """Counts what a call of `fill` decided, and the turns that had ended."""
        now = clock.monotonic_seconds()
        for running_turn in running_turns:
            self._decided.append(now)
            if "objective" in running_turn.reasons and not running_turn.reasons.get("urgent"):
                self._scores.append(running_turn.reasons["objective"])
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

    # Answers

    def answer(self, fleet: SlotFleet, client: str, hold: Hold | None, *, listens: bool = False) -> Wait:
        """Returns when a client should check in again, and why it is given no turn; remembers that it waits.

        Args:
            fleet: The state of the fleet.
            client: The client.
            hold: Why nobody was given a turn, if a rule of the fleet held all turns back.
            listens: Whether the client is told when it is given a turn.
        """
        row, pace = fleet.rows[client], self.pace(fleet)
        if fleet.counters.retired[row]:
            self.remove(client, row)
            return Wait(MAX_WAIT, "the client has retired")
        rest = 0.0 if fleet.min_turn_interval is None else float(_rest_left(fleet)[row])
        left = int(fleet.counters.backoff_until[row]) - fleet.round
        if left > 0:
            self.remove(client, row)
            misses = int(fleet.counters.misses[row])
            seconds = self.ttl if pace is None else left / pace.decisions_per_second
            missed = "turn of the client failed or was late" if misses == 1 else f"{misses} turns failed or were late"
            why = f"the last {missed}: it is backed off for {pluralize(left, 'more turn')}"
            also = f"; {_why_rest(fleet, rest)}" if rest else ""
            return Wait(min(max(seconds, rest), MAX_WAIT), f"{why}{also}")
        if rest:  # its next check-in starts a new visit; only then does the wait depend on what it is owed
            dismissed = self.dismiss(client, row, min(rest, MAX_WAIT))
            return Wait(dismissed, _why_rest(fleet, rest))
        prices = self._client_prices(fleet)
        behind = None if prices is None else prices.behind(row)
        seconds = self.ttl if pace is None else self._wait_seconds(fleet, row, pace, behind)
        mean_turn = None if pace is None else pace.mean_turn
        held = None if hold is None else hold.seconds
        postponed = self.postpone(client, row, min(seconds, MAX_WAIT), mean_turn, held, listens=listens)
        return Wait(postponed, _why(fleet, behind) if hold is None else hold.why)

    def pace(self, fleet: SlotFleet) -> ServerPace | None:
        """Returns how fast the server gives turns; None before the time of any turn is known."""
        mean_turn = self.mean_turn
        if mean_turn is None:  # since the fleet was opened
            mean_turn = self._learned_mean(fleet)
        if not mean_turn:
            return None
        pace = self.decisions_per_second or fleet.slots / mean_turn
        if fleet.min_turn_interval is None:
            waiting = self.count_awaited()
        else:
            waiting = int(np.count_nonzero(self.awaited(len(fleet.ids)) & (_rest_left(fleet) == 0)))
        asking = waiting + len(fleet.running)
        return ServerPace(pace, mean_turn, fleet.slots, max(asking, 1))

    def _learned_mean(self, fleet: SlotFleet) -> float | None:
        """Returns the mean time of the clients by all turns of the past; it is computed once for each decision."""
        key = (fleet.round, len(fleet.ids))
        if self._learned[0] != key:
            known = fleet.history.arrived > 0
            mean = float(fleet.history.typical_seconds[known].mean()) if known.any() else None
            self._learned = (key, mean)
        return self._learned[1]

    def _wait_seconds(self, fleet: SlotFleet, row: int, pace: ServerPace, behind: float | None) -> float:
        prices, score = self._client_prices(fleet), self.winning_score
        guarantee = fleet.policy.guarantee
        if prices is None or behind is None or score is None or guarantee is None:
            return pace.plain_wait
        client = ClientPace(
            rate=prices.rate(row),
            tolerance=float(guarantee.tolerance),
            behind=behind,
            usual=prices.usual(row),
            interval=float(self._interval[row]),
            head_start=prices.head_start,
            fading=prices.fading,
        )
        return paced_wait(pace, client, score)

    def _client_prices(self, fleet: SlotFleet) -> ClientPrices | None:
        """Returns what the prices of clients consist of after the last decision; None if the policy has no prices."""
        key = (fleet.round, len(fleet.ids))
        if self._prices[0] != key:
            self._prices = (key, client_prices(fleet))
        return self._prices[1]


def _why(fleet: SlotFleet, behind: float | None) -> str:
    """Returns in words why a client that is available, and is behind so many turns, is given no turn."""
    taken = "the only slot is in use" if fleet.slots == 1 else f"all {fleet.slots} slots are in use"
    why = "other clients come first" if fleet.free_slots else taken
    if behind is None:
        return why
    return f"{why}; the client is {abs(behind):.2f} turns {'behind' if behind > 0 else 'ahead of'} its promise"


def _rest_left(fleet: SlotFleet) -> FloatArray:
    return fleet.rest_left(clock.wall_seconds(clock.now()))


def _why_rest(fleet: SlotFleet, left: float) -> str:
    return f"the client is given at most one turn in {fleet.min_turn_interval:g} s, and rests for {left:.3g} s more"
