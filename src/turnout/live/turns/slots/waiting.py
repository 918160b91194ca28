"""Tells a client that checks in and is given no turn when to come back, and why."""

from __future__ import annotations

import numpy as np

from turnout.counting import counted
from turnout.kernel.arrays import FloatArray
from turnout.kernel.slots.waiting import ClientPace, ServerPace, paced_wait
from turnout.live import clock
from turnout.live.turns.slots.check_ins import CheckIns
from turnout.live.turns.slots.holding import Hold
from turnout.live.turns.slots.standing import price_terms
from turnout.live.turns.slots.state import SlotFleet
from turnout.live.turns.slots.turns import Wait

#: The longest wait in seconds: a client comes back within an hour, because the fleet may be amended meanwhile.
LONGEST_WAIT = 3600.0


class Waiting:
    """Computes how long clients should wait.

    Args:
        check_ins: The check-ins of the clients, and the pace of the server.
    """

    def __init__(self, check_ins: CheckIns) -> None:
        self._check_ins = check_ins
        self._terms: tuple[tuple[int, int], tuple[np.ndarray, np.ndarray] | None] = ((-1, -1), None)
        self._learned: tuple[tuple[int, int], float | None] = ((-1, -1), None)

    def answer(self, fleet: SlotFleet, client: str, hold: Hold | None) -> Wait:
        """Returns when a client should check in again, and why it is given no turn; remembers that it waits.

        Args:
            fleet: The state of the fleet.
            client: The client.
            hold: Why nobody was given a turn, if a rule of the fleet held all turns back.
        """
        row, pace = fleet.rows[client], self.pace(fleet)
        if fleet.counters.retired[row]:
            self._check_ins.remove(client, row)
            return Wait(LONGEST_WAIT, "the client has retired")
        rest = 0.0 if fleet.rest_seconds is None else float(self._rest_left(fleet)[row])
        left = int(fleet.counters.backoff_until[row]) - fleet.round
        if left > 0:
            self._check_ins.remove(client, row)
            misses = int(fleet.counters.misses[row])
            seconds = self._check_ins.ttl if pace is None else left / pace.decisions_per_second
            missed = "turn of the client failed or was late" if misses == 1 else f"{misses} turns failed or were late"
            why = f"the last {missed}: it is backed off for {counted(left, 'more turn')}"
            also = f"; {self._why_rest(fleet, rest)}" if rest else ""
            return Wait(min(max(seconds, rest), LONGEST_WAIT), f"{why}{also}")
        if rest:  # with the next check-in it begins a visit: only after one it is asked to wait by what it is owed
            dismissed = self._check_ins.dismiss(client, row, min(rest, LONGEST_WAIT))
            return Wait(dismissed, self._why_rest(fleet, rest))
        seconds = self._check_ins.ttl if pace is None else self._seconds(fleet, row, pace)
        mean_turn = None if pace is None else pace.mean_turn
        held = None if hold is None else hold.seconds
        postponed = self._check_ins.postpone(client, row, min(seconds, LONGEST_WAIT), mean_turn, held)
        return Wait(postponed, self._why(fleet, row) if hold is None else hold.why)

    def pace(self, fleet: SlotFleet) -> ServerPace | None:
        """Returns how fast the server gives turns; None before the time of any turn is known."""
        mean_turn = self._check_ins.mean_turn
        if mean_turn is None:  # since the fleet was opened
            mean_turn = self._learned_mean(fleet)
        if not mean_turn:
            return None
        pace = self._check_ins.decisions_per_second or fleet.slots / mean_turn
        if fleet.rest_seconds is None:
            waiting = self._check_ins.count_awaited()
        else:
            waiting = int(np.count_nonzero(self._check_ins.awaited(len(fleet.ids)) & (self._rest_left(fleet) == 0)))
        asking = waiting + len(fleet.in_flight)
        return ServerPace(pace, mean_turn, fleet.slots, max(asking, 1))

    def _learned_mean(self, fleet: SlotFleet) -> float | None:
        """Returns the mean time of the clients by all turns of the past; it is computed once for each decision."""
        key = (fleet.round, len(fleet.ids))
        if self._learned[0] != key:
            known = fleet.history.arrived > 0
            mean = float(fleet.history.typical_seconds[known].mean()) if known.any() else None
            self._learned = (key, mean)
        return self._learned[1]

    def _seconds(self, fleet: SlotFleet, row: int, pace: ServerPace) -> float:
        terms, score = self._price_terms(fleet), self._check_ins.winning_score
        guarantee, queues = fleet.policy.guarantee, fleet.queues
        if terms is None or score is None or guarantee is None or queues is None:
            return pace.plain_wait
        usual, behind = terms
        client = ClientPace(
            rate=float(queues.guaranteed_rates[row]),
            tolerance=float(guarantee.tolerance),
            behind=float(behind[row]),
            usual=float(usual[row]),
            interval=self._check_ins.interval(row),
        )
        return paced_wait(pace, client, score)

    def _rest_left(self, fleet: SlotFleet) -> FloatArray:
        return fleet.rest_left(clock.wall_seconds(clock.now()))

    def _why_rest(self, fleet: SlotFleet, left: float) -> str:
        return f"the client is given at most one turn in {fleet.rest_seconds:g} s, and rests for {left:.3g} s more"

    def _why(self, fleet: SlotFleet, row: int) -> str:
        """Returns in words why a client that is available is given no turn."""
        taken = "the only slot is in use" if fleet.slots == 1 else f"all {fleet.slots} slots are in use"
        why = "other clients come first" if fleet.free_slots else taken
        terms = self._price_terms(fleet)
        if terms is None:
            return why
        behind = float(terms[1][row])
        return f"{why}; the client is {abs(behind):.2f} turns {'behind' if behind > 0 else 'ahead of'} its promise"

    def _price_terms(self, fleet: SlotFleet) -> tuple[np.ndarray, np.ndarray] | None:
        """Returns the usual time of each client, and how far it is behind; None if the policy has no prices.

        They are computed once for each decision: between two decisions only times are learned.
        """
        key = (fleet.round, len(fleet.ids))
        if self._terms[0] != key:
            terms = price_terms(fleet)
            self._terms = (key, None if terms is None else (terms.usual, terms.behind))
        return self._terms[1]
