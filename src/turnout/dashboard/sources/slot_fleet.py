"""A live fleet without rounds, read from its file into a ledger."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import numpy as np

from turnout.dashboard.sources.fleet import FleetSource
from turnout.dashboard.sources.ledger import Ledger
from turnout.dashboard.sources.slot_ledger import EndedSlot, GivenSlot, SlotLedger
from turnout.kernel.arrays import IntArray
from turnout.live import FleetEvent, FleetReader, Turn
from turnout.live._internals import FAILED, FilledSlots, Flight, OpenRound, SlotFleet


class SlotFleetSource(FleetSource):
    """The source of a live fleet without rounds: the number of a round is that of a decision."""

    _no_deadline = "No deadline is set: a client that never reports keeps its slot."

    def open_round(self) -> tuple[OpenRound, list[Turn]] | None:
        """Returns None: there are no rounds."""
        return None

    def in_flight(self) -> list[tuple[Flight, Turn]]:
        """Returns the turns under way, with the outcomes reported so far."""
        return self._reader.in_flight()

    def _make_ledger(self) -> Ledger:
        follower, fleet = self._follower, self._fleet
        return SlotLedger(
            fleet.slots,
            debts_from=fleet.round,
            first_after=follower.summary.round,
            training=fleet.training() if follower.starts_after == follower.summary.event else (),
        )

    @property
    def _fleet(self) -> SlotFleet:
        fleet = self._follower.fleet
        assert isinstance(fleet, SlotFleet)
        return fleet

    def _apply(self, event: FleetEvent) -> None:
        if event.filled is None:
            super()._apply(event)
            return
        assert isinstance(self.ledger, SlotLedger)
        ended, given = _ended(event.filled), self._given(event, event.filled)
        if not self._follower.is_ahead(event.number):
            self.ledger.fill(ended, given, None)
            return
        self._adopt_policy()
        self.ledger.fill(
            ended,
            given,
            lambda: self._follower.apply(event),
            self._capped,
            lambda: self._fleet.counters.broken_since,
        )

    def _given(self, event: FleetEvent, filled: FilledSlots) -> list[GivenSlot]:
        at = datetime.fromisoformat(filled.at).timestamp()
        present = None if event.stored[2] is None else filled.present
        reasons: Mapping[str, Any] = {}
        if len(filled.rows):
            offer = self._reader.offer(filled.first)  # the reasons of later decisions of the same fill are not recorded
            reasons = {} if offer is None else offer.reasons
        return [
            GivenSlot(filled.first + index, row, filled.contexts[index], at, present, {} if index else reasons, at)
            for index, row in enumerate(filled.rows.tolist())
        ]

    def _capped(self, decision: int) -> IntArray:
        return self._fleet.in_flight.capped(decision, self._fleet.queues)


def open_fleet_source(reader: FleetReader) -> FleetSource:
    """Returns the source of a fleet, with or without rounds; the reader is closed with it, and if this fails."""
    try:
        return FleetSource(reader) if reader.settings.has_rounds else SlotFleetSource(reader)
    except BaseException:
        reader.close()
        raise


def _ended(filled: FilledSlots) -> list[EndedSlot]:
    ended, at = filled.ended, datetime.fromisoformat(filled.at).timestamp()
    columns = (ended.decisions, ended.rows, ended.kinds, ended.seconds, ended.losses)
    return [
        # The exchange time of a failed client is unknown; the journal records how long the server waited for it.
        EndedSlot(decision, row, kind, seconds, np.nan if kind == FAILED else seconds, loss, known_at=at)
        for decision, row, kind, seconds, loss in zip(*(column.tolist() for column in columns), strict=True)
    ]
