"""Gives turns without rounds: one client for every free slot, among those that are there or have checked in."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Sequence
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np

from turnout.errors import OfferError, ReportError, UnknownTurnError
from turnout.kernel.arrays import as_count
from turnout.live import clock
from turnout.live.features import FleetStatus, Status, Statuses, statuses_by_id
from turnout.live.identifiers import check_client_id
from turnout.live.journal.changes import Changes
from turnout.live.journal.replay import FleetState
from turnout.live.operation.upkeep import is_snapshot_due, write_snapshot
from turnout.live.serving.server import TurnServer, unknown_seconds
from turnout.live.serving.session import FleetSession
from turnout.live.turns.feasibility import require_feasible
from turnout.live.turns.offering import known_rows
from turnout.live.turns.records import KINDS, Turn
from turnout.live.turns.slots import filling
from turnout.live.turns.slots.check_ins import CheckIns
from turnout.live.turns.slots.records import FILL, RunningTurnRecord, pack_fill
from turnout.live.turns.slots.state import SlotFleet
from turnout.live.turns.slots.turns import RunningTurn, SlotNews, Wait
from turnout.live.turns.state import Fleet
from turnout.log import get_log

if TYPE_CHECKING:
    from turnout.tracking import GuardedTracker

log = get_log("turnout.live")


class SlotServer(TurnServer):
    """Fills the slots of a fleet, and answers devices that check in."""

    def __init__(self, session: FleetSession) -> None:
        super().__init__(session)
        self._earliest: tuple[FleetState, int, int, float] | None = None
        self._check_ins: CheckIns
        self.drop_check_ins()

    @property
    def check_ins(self) -> CheckIns:
        """The check-ins that are kept; none of them has statuses of former features."""
        self._check_ins.ttl = self._session.settings.status_ttl
        if self._features is not self._session.features:
            self.drop_check_ins()
        return self._check_ins

    def drop_check_ins(self, client: str | None = None, row: int = 0) -> None:
        """Drops the check-in of a client that has left, or all: devices check in again, as they were asked."""
        if client is not None:
            self._check_ins.remove(client, row)
            return
        settings, self._features = self._session.settings, self._session.features
        self._check_ins = CheckIns(settings.status_ttl, settings.concurrency or 1)

    def fill(self, statuses: Statuses, cold: Collection[str], most: int | None = None) -> list[RunningTurn]:
        """Gives one turn for every free slot, or so many at most."""
        by_id = statuses_by_id(statuses)
        rows = known_rows(self._session.fleet, by_id)
        joined = [] if isinstance(by_id, FleetStatus) or rows is not None else self._session.new_ids(by_id)
        if not by_id and not self._session.fleet.ids:
            return []  # a server may fill the slots of a fleet before its first device checks in
        awaited = self.check_ins.awaited(len(self._session.fleet.ids))
        filled = self._fill(
            filling.Candidates(by_id, self.check_ins.statuses(), awaited, rows=rows, cold=cold), joined, most
        )
        return [self._given(running_turn) for running_turn in filled.running_turns]

    def check_in(self, client: str, status: Status, *, listens: bool = False) -> RunningTurn | Wait:
        """Answers a device that asks for work.

        Args:
            client: The client.
            status: Its status.
            listens: Whether the device is told when it is given a turn, so that it need not ask again before something
                else changes: `news_since` says when.
        """
        session, check_ins = self._session, self.check_ins
        check_client_id(client, OfferError)
        joined = session.new_ids([client])
        session.features.check(client, status, session.settings.model_size)
        fleet = self._fleet(session.memory)
        row = len(fleet.ids) if joined else session.row(client)
        if joined or not fleet.counters.retired[row]:
            check_ins.add(client, row, status)
        hold = None
        try:
            if joined or not self._has_nothing_to_do(session.memory):
                awaited = check_ins.awaited(len(fleet.ids))
                candidates = filling.Candidates({}, check_ins.statuses(client), awaited, check_ins.waited)
                hold = self._fill(candidates, joined).hold
        except BaseException:
            check_ins.remove(client, row)  # a new client may not have joined
            raise
        fleet = self._fleet(session.memory)
        decision = fleet.running.decision_of(row)
        if not decision or session.journal.turns_of(decision)[0].kind is not None:  # it has ended, or has none
            return check_ins.answer(fleet, client, hold, listens=listens)
        check_ins.remove(client, row)
        return self._given(session.memory.running_turns[decision])

    def news_since(self, decision: int) -> SlotNews:
        """Returns what devices that listen must know."""
        memory = self._session.memory
        fleet, newest = self._fleet(memory), takewhile(lambda number: number > decision, reversed(memory.running_turns))
        given = [fleet.ids[memory.running_turns[number].row] for number in newest]
        has_ended = clock.monotonic_seconds() >= self._earliest_deadline(memory) or self._session.journal.has_outcomes()
        return SlotNews(fleet.round, given, fleet.free_slots, has_ended)

    def running(self) -> list[RunningTurn]:
        """Returns the turns whose results are not known yet."""
        running_turns, turns = self._session.memory.running_turns, self._session.journal.turns_running()
        return [self._given(running_turns[turn.round]) for turn in turns if turn.kind is None]

    def turn_of(self, client: str | int, round: int | None) -> tuple[str, int | None]:
        """Returns the client and the decision of a turn, or the same for a client."""
        if isinstance(client, str):
            return client, round
        number = as_count("the id of a turn", client, ReportError, least=0)
        turns = self._session.journal.turns_of(number)
        if not turns:
            raise UnknownTurnError(f"there is no turn {number}: report with the id of a turn that fill returned")
        return turns[0].id, turns[0].round

    def elapsed(self, client: str, round: int | None) -> tuple[int, float]:
        """Returns the number of a turn, and the seconds since it was given."""
        if round is None:
            raise ReportError(f"no round is open: pass the id of the turn, or the seconds that {client!r} took")
        running_turn = self._session.memory.running_turns.get(round)
        if running_turn is None or self._session.fleet.ids[running_turn.row] != client:
            raise ReportError(f"turn {round} is no longer running: pass the seconds that {client!r} took")
        if math.isnan(running_turn.elapsed):
            raise unknown_seconds(client)
        return round, running_turn.elapsed

    def newest_turns(self) -> list[Turn]:
        """Returns the turns that may have been reported last."""
        newest = self._session.fleet.round
        return self._session.journal.turns_between(newest - 4 * (self._session.settings.concurrency or 1), newest)

    def _fill(
        self, candidates: filling.Candidates, joined: Sequence[str], most: int | None = None
    ) -> filling.FillResult:
        """Settles turns that have ended, gives one turn for every free slot or `most`, and writes both."""
        session = self._session
        with session.changing() as memory:
            fleet, settings = self._fleet(memory), session.settings
            first_row, is_due = len(fleet.ids), False
            fleet.join(joined)
            if not fleet.ids:
                raise OfferError("the fleet has no clients: fill with the status of at least one, or register some")
            if not fleet.round and not settings.allow_infeasible:
                require_feasible(fleet)
            with session.journal.writing() as changes:
                ended, late = filling.ended_turns(memory.running_turns, session.journal.turns_running())
                reported = session.journal.pending_late_turns(fleet.round - settings.late_turns)
                offered = partial(filling.build_slot_offer, fleet, session.features, settings, candidates)
                filled = filling.fill_slots(fleet, settings, offered, ended, late, reported, most)
                if len(filled.event.rows) or len(ended) or reported or joined:
                    changes.add_clients(first_row, joined)
                    number = self._write_fill(changes, memory, filled, reported)
                    is_due = is_snapshot_due(settings, memory)
                    if is_due and not session.is_grouping:
                        write_snapshot(changes, settings, memory, number)
            session.owes_snapshot |= is_due and session.is_grouping
        self.check_ins.count(filled.running_turns, filled.event.ended)
        for running_turn in filled.running_turns:
            self.check_ins.remove(session.fleet.ids[running_turn.row], running_turn.row)
        counts = {"given": len(filled.running_turns), "ended": len(filled.event.ended)}
        hold = {} if filled.hold is None else {"hold": filled.hold.why}
        log.event(logging.INFO, "fill", fleet=session.location.name, decision=session.fleet.round, **counts, **hold)
        if filled.running_turns:
            session.warnings.after_round(session.fleet, session.settings)
        if session.tracker is not None:
            _track(session.tracker, session.fleet, filled)
        return filled

    def _write_fill(
        self, changes: Changes, memory: FleetState, filled: filling.FillResult, reported_late: Sequence[Turn]
    ) -> int:
        """Writes what a call changed, and applies it to the running turns; returns the number of the event.

        Args:
            changes: An open transaction.
            memory: The state, whose fleet is changed already.
            filled: What the call changed.
            reported_late: The turns of late clients whose actual times were learned.
        """
        event, running_turns, session, ids = filled.event, filled.running_turns, self._session, memory.fleet.ids
        written = event
        if not session.settings.persist_statuses:
            written = event.without_contexts()
            running_turns = [running_turn.without_context() for running_turn in running_turns]
        ended = event.ended.decisions.tolist()
        for decision in ended:
            changes.drop_open_round(decision)
        number = self._write(changes, memory.fleet.round, (FILL, *pack_fill(written)), filled.late, reported_late)
        changes.put_running_turns(running_turns, [ids[running_turn.row] for running_turn in running_turns])
        if filled.offer is not None:
            changes.put_offer(filled.offer, event.at)
        for decision in ended:
            del memory.running_turns[decision]
        memory.running_turns |= {running_turn.decision: running_turn for running_turn in filled.running_turns}
        memory.unsaved += 1
        return number

    def _has_nothing_to_do(self, memory: FleetState) -> bool:
        """Returns whether all slots are in use, and no turn has ended."""
        if self._fleet(memory).free_slots or clock.monotonic_seconds() >= self._earliest_deadline(memory):
            return False
        return not self._session.journal.has_outcomes()

    def _earliest_deadline(self, memory: FleetState) -> float:
        """Returns when the first running turn is late, by the monotonic clock; infinity if none can be."""
        state, round_, running_turns, earliest = self._earliest or (None, 0, 0, 0.0)
        if state is not memory or (round_, running_turns) != (memory.fleet.round, len(memory.running_turns)):
            left = [
                running_turn.deadline - running_turn.elapsed
                for running_turn in memory.running_turns.values()
                if running_turn.deadline is not None
            ]
            is_unknown = any(math.isnan(seconds) for seconds in left)  # such turns count as late
            earliest = -math.inf if is_unknown else clock.monotonic_seconds() + min(left, default=math.inf)
            self._earliest = (memory, memory.fleet.round, len(memory.running_turns), earliest)
        return earliest

    def _given(self, turn: RunningTurnRecord) -> RunningTurn:
        client = self._session.fleet.ids[turn.row]
        return RunningTurn(turn.decision, client, turn.deadline, turn.reasons, turn.given)

    @staticmethod
    def _fleet(memory: FleetState) -> SlotFleet:
        assert isinstance(memory.fleet, SlotFleet), "a fleet with a concurrency has slots"
        return memory.fleet


def _track(tracker: GuardedTracker, fleet: Fleet, filled: filling.FillResult) -> None:
    """Logs what a call of `fill` has changed; the step is the newest decision."""
    from turnout.tracking.trackers import furthest_behind

    ended = filled.event.ended
    if not len(ended) and not filled.running_turns:
        return
    metrics = {"turns/given": float(len(filled.running_turns)), "turns/ended": float(len(ended))}
    metrics |= {f"turns/{kind}": float((ended.kinds == index).sum()) for index, kind in enumerate(KINDS)}
    if len(ended):
        metrics["turns/mean_seconds"] = float(ended.seconds.mean())
        if not np.isnan(ended.losses).all():
            metrics["metrics/loss"] = float(np.nanmean(ended.losses))
    if (certificate := fleet.certificate()) is not None:
        metrics["promise/turns_behind"] = furthest_behind(certificate)
    tracker.log(metrics, fleet.round)
