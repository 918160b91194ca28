"""Fills the slots of a fleet without rounds, and writes what that changes, in one transaction."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from turnout.errors import OfferError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray
from turnout.live import clock
from turnout.live.features import Features, FleetStatus
from turnout.live.journal.changes import Changes
from turnout.live.journal.journal import Journal
from turnout.live.journal.replay import FleetState
from turnout.live.operation.metrics import writer_figures
from turnout.live.operation.upkeep import SNAPSHOT_EVERY, drop_some, write_snapshot
from turnout.live.settings import SchedulerSettings
from turnout.live.turns.records import Turn
from turnout.live.turns.rounds.choosing import build_offer
from turnout.live.turns.slots.feasibility import require_feasible
from turnout.live.turns.slots.filling import Filled, SlotOffer, ended_turns, fill_slots
from turnout.live.turns.slots.holding import Hold, open_window, too_few_clients
from turnout.live.turns.slots.records import FILL, EndedTurns, pack_fill
from turnout.live.turns.slots.standing import too_stale
from turnout.live.turns.slots.state import SlotFleet


@dataclass(frozen=True, slots=True)
class Offered:
    """Who may be given a turn.

    Attributes:
        statuses: The statuses of the available clients.
        joined: The ids among them that are new.
        kept: The statuses of clients that have checked in.
        awaited: Which clients wait because they were asked to, by row.
        waited: Returns for how many seconds the clients with these rows have been waiting. Only for check-ins, which
            are gathered in a window.
    """

    statuses: Mapping[str, Any] | FleetStatus
    joined: Sequence[str]
    kept: Mapping[str, Any]
    awaited: BoolArray
    waited: Callable[[IntArray], FloatArray] | None = None


class SlotServer:
    """Fills the slots of a fleet.

    Args:
        journal: The journal of the fleet.
        settings: Its settings.
        features: Its features.
    """

    def __init__(self, journal: Journal, settings: SchedulerSettings, features: Features) -> None:
        self._journal, self._settings, self._features = journal, settings, features
        self._earliest: tuple[FleetState, int, int, float] | None = None

    def has_nothing_to_do(self, memory: FleetState) -> bool:
        """Returns whether all slots are in use, and no turn has ended."""
        assert isinstance(memory.fleet, SlotFleet)
        if memory.fleet.free_slots or clock.monotonic_seconds() >= self._earliest_deadline(memory):
            return False
        return not self._journal.has_outcomes()

    def _earliest_deadline(self, memory: FleetState) -> float:
        """Returns when the first turn under way is late, by the monotonic clock; infinity if none can be."""
        state, round_, flights, earliest = self._earliest or (None, 0, 0, 0.0)
        if state is not memory or (round_, flights) != (memory.fleet.round, len(memory.flights)):
            left = [
                flight.deadline - flight.elapsed for flight in memory.flights.values() if flight.deadline is not None
            ]
            is_unknown = any(math.isnan(seconds) for seconds in left)  # such turns count as late
            earliest = -math.inf if is_unknown else clock.monotonic_seconds() + min(left, default=math.inf)
            self._earliest = (memory, memory.fleet.round, len(memory.flights), earliest)
        return earliest

    def fill(self, memory: FleetState, offered: Offered, refused: int, *, defers: bool = False) -> Filled:
        """Ends turns, gives one turn for every free slot, and writes both.

        Args:
            memory: The state, which is changed. If anything fails, it must be loaded again.
            offered: Who may be given a turn.
            refused: The number of reports that this process has refused, for monitoring.
            defers: Whether the caller writes the snapshot that is due after it, in the same transaction; `memory` says
                whether one is (`is_snapshot_due`).
        """
        fleet, settings = memory.fleet, self._settings
        assert isinstance(fleet, SlotFleet)
        first_row = len(fleet.ids)
        fleet.join(offered.joined)
        if not fleet.ids:
            raise OfferError("the fleet has no clients: fill with the status of at least one, or register some")
        if not fleet.round and not settings.allow_infeasible:
            require_feasible(fleet)
        with self._journal.writing() as changes:
            ended, late = self._ended(memory)
            waiting = self._journal.pending_late_turns(fleet.round - settings.late_window * fleet.slots)
            filled = fill_slots(fleet, settings, lambda: self._offer(fleet, offered), ended, late, waiting)
            event = filled.event
            if len(event.rows) or len(event.ended) or waiting or offered.joined:
                changes.add_clients(first_row, offered.joined)
                number = self._write(changes, memory, filled, waiting, refused)
                if self.is_snapshot_due(memory) and not defers:
                    write_snapshot(changes, settings, memory, number)
        return filled

    def _ended(self, memory: FleetState) -> tuple[EndedTurns, list[Turn]]:
        return ended_turns(memory.flights, self._journal.turns_under_way())

    def _offer(self, fleet: SlotFleet, offered: Offered) -> SlotOffer:
        """Returns the offer; nobody is available in it while a rule holds all turns back.

        Back-off is counted in decisions. So if only clients that are backed off are there, and nobody trains, they may
        be given a turn: otherwise there would be no further decision. Clients whose updates would be too old count as
        present, but are given a turn only if they are far behind, or if nobody else is there.
        """
        resting = fleet.rest_left(fleet.called) > 0
        offer = self._merged(fleet, offered, fleet.unavailable | resting)
        is_backed_off = not offer.available.any() and not len(fleet.in_flight)
        if is_backed_off:
            offer = self._merged(fleet, offered, (fleet.counters.retired > 0) | resting)
        hold = self._hold(fleet, offer, offered)
        if hold is not None:
            nobody = np.zeros_like(offer.available)
            return SlotOffer(nobody, offer.contexts, offer.awaited | offer.available, hold)
        if is_backed_off:
            return offer
        stale = offer.available & too_stale(fleet, self._settings)
        others = offer.available & ~stale
        if not stale.any() or not (others & fleet.in_flight.idle).any():
            return offer
        return offer._replace(available=others, awaited=offer.awaited | stale)

    def _hold(self, fleet: SlotFleet, offer: SlotOffer, offered: Offered) -> Hold | None:
        """Returns why nobody is given a turn now; None if no rule holds turns back, or if no slot is free."""
        if not fleet.free_slots:
            return None
        hold = too_few_clients(self._settings, offer.available | offer.awaited | ~fleet.in_flight.idle)
        if hold is not None or offered.waited is None or self._settings.window_seconds is None:
            return hold
        rows = np.flatnonzero(offer.available & fleet.in_flight.idle)
        return open_window(self._settings, offered.waited(rows))

    def _merged(self, fleet: SlotFleet, offered: Offered, excluded: BoolArray) -> SlotOffer:
        """Returns the offer of the statuses that were passed, and those of clients that have checked in."""

        def build(statuses: Mapping[str, Any] | FleetStatus) -> tuple[BoolArray, Any]:
            return build_offer(fleet, self._features, self._settings, statuses, excluded=excluded)

        awaited = np.zeros(len(fleet.ids), dtype=np.bool_)
        awaited[: len(offered.awaited)] = offered.awaited
        awaited &= ~excluded
        if not isinstance(offered.statuses, FleetStatus):
            return SlotOffer(*build({**offered.kept, **offered.statuses}), awaited)
        available, contexts = build(offered.statuses)
        if offered.kept:
            also, own = build(offered.kept)
            contexts[also & ~available] = own[also & ~available]
            available = available | also
        return SlotOffer(available, contexts, awaited)

    def is_snapshot_due(self, memory: FleetState) -> bool:
        """Returns whether a snapshot must be written: without statuses in the file, after every change."""
        return memory.unsaved >= (SNAPSHOT_EVERY if self._settings.persist_statuses else 1)

    def _write(
        self, changes: Changes, memory: FleetState, filled: Filled, late_times: Sequence[Turn], refused: int
    ) -> int:
        """Writes what a call changed; returns the number of the event.

        Args:
            changes: An open transaction.
            memory: The state after it, whose turns under way are changed here.
            filled: What the call changed.
            late_times: The turns of late clients whose actual times were learned.
            refused: The number of reports that this process has refused.
        """
        event, fleet, settings = filled.event, memory.fleet, self._settings
        written, flights = event, filled.flights
        if not settings.persist_statuses:
            written, flights = event.without_contexts(), [flight.without_context() for flight in flights]
        number = changes.add_event(FILL, *pack_fill(written))
        changes.drop_flights(event.ended.decisions.tolist())
        changes.put_turns([*filled.late, *(replace(turn, folded=fleet.round) for turn in late_times)])
        changes.put_flights(flights, [fleet.ids[flight.row] for flight in flights])
        changes.put_closed_round(fleet.round)
        if filled.offer is not None:
            changes.put_offer(filled.offer, event.at)
        drop_some(changes, settings, fleet.round)
        changes.put_writer_figures(writer_figures(self._journal.figures(), refused)._asdict())
        for decision in event.ended.decisions.tolist():
            del memory.flights[decision]
        memory.flights |= {flight.decision: flight for flight in filled.flights}
        memory.unsaved += 1
        return number
