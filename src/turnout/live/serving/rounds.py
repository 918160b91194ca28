"""Gives turns in rounds: a cohort is selected together, and all its turns end when the round is closed."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping

import numpy as np

from turnout.errors import NoOpenRoundError, ReportError, StoreError
from turnout.kernel.arrays import IntArray, as_number
from turnout.kernel.rounds import RoundRecord, RoundReport, Selection
from turnout.live.clock import now
from turnout.live.features import FleetStatus, Status, Statuses, statuses_by_id
from turnout.live.journal.replay import FleetState
from turnout.live.operation.upkeep import SNAPSHOT_EVERY, write_snapshot
from turnout.live.serving.server import TurnServer, needs_slots, unknown_seconds
from turnout.live.turns.offering import known_rows
from turnout.live.turns.records import KINDS, RecordedOffer, Turn
from turnout.live.turns.rounds.choosing import build_open_round
from turnout.live.turns.rounds.records import CLOSE, ClosedRound, OpenRound, build_closed_round, pack_closed
from turnout.live.turns.rounds.state import RoundFleet
from turnout.live.turns.state import Fleet
from turnout.log import get_log

log = get_log("turnout.live")


class RoundServer(TurnServer):
    """Opens and closes the rounds of a fleet."""

    def choose(self, statuses: Statuses, cold: Collection[str]) -> list[str]:
        """Opens a round, or returns the cohort of the open round again."""
        opened = self._session.memory.opened
        if opened is None:
            opened = self._open(statuses_by_id(statuses), cold)
        else:
            self._session.journal.file.check_writer()
        return [self._session.fleet.ids[row] for row in opened.rows.tolist()]

    def _open(self, statuses: Mapping[str, Status] | FleetStatus, cold: Collection[str]) -> OpenRound:
        session = self._session
        rows = known_rows(session.fleet, statuses)
        joined = () if isinstance(statuses, FleetStatus) or rows is not None else tuple(session.new_ids(statuses))
        # Without new clients, statuses that are refused do not even make the state be loaded again.
        decided = None if joined else self._decide(session.fleet, statuses, joined, rows, cold)
        with session.changing() as memory:
            memory.fleet.join(joined)
            opened, offer = decided or self._decide(memory.fleet, statuses, joined, rows, cold)
            with session.journal.writing() as changes:
                written = opened if session.settings.persist_statuses else opened.without_contexts()
                changes.put_open_round(written, [memory.fleet.ids[row] for row in opened.rows.tolist()])
                changes.put_offer(offer, opened.opened)
            memory.opened = opened
        log.event(
            logging.INFO,
            "choose",
            fleet=session.location.name,
            round=opened.round,
            available=int(np.count_nonzero(opened.available)),
            chosen=len(opened.rows),
            deadline=opened.deadline,
        )
        return opened

    def _decide(
        self,
        fleet: Fleet,
        statuses: Mapping[str, Status] | FleetStatus,
        joined: tuple[str, ...],
        rows: IntArray | None,
        cold: Collection[str],
    ) -> tuple[OpenRound, RecordedOffer]:
        return build_open_round(fleet, self._session.features, self._session.settings, statuses, joined, rows, cold)

    def turn_of(self, client: str | int, round: int | None) -> tuple[str, int | None]:
        """Returns the same; a turn in a round has no number of its own."""
        if isinstance(client, int | np.integer):
            raise needs_slots("a report with the id of a turn")
        return client, round

    def elapsed(self, client: str, round: int | None) -> tuple[int, float]:
        """Returns the number of the open round, and the seconds since its selection."""
        opened = self._need_open()
        if round not in (None, opened.round):
            raise ReportError(f"round {opened.round} is open: pass the seconds that {client!r} took in round {round}")
        if math.isnan(opened.elapsed):
            raise unknown_seconds(client)
        return opened.round, opened.elapsed

    def newest_turns(self) -> list[Turn]:
        """Returns the turns of the open round, or of the last closed round."""
        return self._session.journal.turns_of(self._session.memory.newest_round)

    def close_round(self, after: float | None) -> RoundRecord:
        """Closes the open round."""
        session, opened = self._session, self._need_open()
        if after is not None:
            as_number("after", after, ReportError, above=0)
        with session.changing() as memory:
            fleet = memory.fleet
            assert isinstance(fleet, RoundFleet)
            with session.journal.writing() as changes:
                late = session.journal.pending_late_turns(fleet.round - session.settings.late_turns)
                closed, turns = build_closed_round(opened, session.journal.turns_of(opened.round), late, after)
                report = fleet.build_report(closed)  # refused before anything is written, if it must be
                changes.add_clients(len(fleet.ids) - len(opened.joined), opened.joined)
                is_persisted = session.settings.persist_statuses
                written = closed if is_persisted else closed.without_contexts()
                packed = pack_closed(written, opened=opened.opened, closed=now(), target_size=opened.target_size)
                event = self._write(changes, opened.round, (CLOSE, *packed), turns, late)
                changes.drop_open_round(opened.round)
                if not is_persisted:  # what is learned now cannot be computed from the event
                    _settle(memory, fleet, closed, report)
                    write_snapshot(changes, session.settings, memory, event)
            if is_persisted:
                _settle(memory, fleet, closed, report)
        counts = {kind: int((closed.kinds == index).sum()) for index, kind in enumerate(KINDS)}
        log.event(logging.INFO, "close", fleet=session.location.name, round=closed.round, **counts)
        session.warnings.after_round(session.fleet, session.settings)
        if memory.unsaved >= SNAPSHOT_EVERY:
            try:
                session.snapshot()
            except StoreError as error:  # the round is closed and recorded without it
                log.warning("no snapshot was written: %s", error)
        record = RoundRecord(Selection(opened.round, opened.rows, dict(opened.reasons)), report)
        if session.tracker is not None:
            from turnout.tracking import RoundMeter

            session.tracker.log(RoundMeter(None).measure(record, session.fleet.certificate()), record.round)
        return record

    def abandon_round(self) -> None:
        """Cancels the open round."""
        opened = self._need_open()
        with self._session.journal.writing() as changes:
            reported = [turn.id for turn in self._session.journal.turns_of(opened.round) if turn.kind]
            if reported:
                raise ReportError(
                    f"round {opened.round} cannot be abandoned: {reported[0]!r} has reported. Close it instead"
                )
            self._session.drop_memory()  # the clients that joined in this round must leave
            changes.abandon(opened.round)

    def _need_open(self) -> OpenRound:
        opened = self._session.memory.opened
        if opened is None:
            raise NoOpenRoundError("no round is open: choose first")
        return opened


def _settle(memory: FleetState, fleet: RoundFleet, closed: ClosedRound, report: RoundReport) -> None:
    """Applies a closed round to the state in memory."""
    fleet.close(closed, report)
    memory.opened = None
    memory.unsaved += 1
