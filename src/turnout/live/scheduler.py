"""The scheduler of a live fleet."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Unpack

import numpy as np

from turnout.errors import InterruptedGroupError, OfferError, ReportError, SettingError, StoreError
from turnout.kernel.arrays import BoolArray, IntArray, as_number
from turnout.kernel.certificate import Certificate
from turnout.kernel.rounds import RoundRecord, Selection
from turnout.live.audit.explain import explain_client
from turnout.live.clock import now
from turnout.live.features import PAPER_FEATURES, Features, FleetStatus, Status, Statuses
from turnout.live.identifiers import as_round, check_client_id, check_client_ids
from turnout.live.journal.amendments import Amendment, amendments, write_amendment
from turnout.live.journal.answers import StoredAnswer
from turnout.live.journal.events import decode_event
from turnout.live.journal.journal import Journal
from turnout.live.journal.replay import FleetState, amend_fleet, live_policy, load, resolve_features
from turnout.live.operation.amending import OF_POLICY, Amendments, actual_changes, amended_settings, groups_by_row
from turnout.live.operation.dispatch import Offered, SlotServer
from turnout.live.operation.fleet_warnings import FleetWarnings
from turnout.live.operation.metrics import SchedulerMetrics, metrics_of, writer_figures
from turnout.live.operation.notices import UNCLEAN_NOTICE, UNKNOWN_ELAPSED, notices_of
from turnout.live.operation.tracking import track_fill, track_round
from turnout.live.operation.upkeep import (
    SNAPSHOT_EVERY,
    drop_some,
    summarize_at_once,
    summary_without,
    write_snapshot,
)
from turnout.live.reader import StaleError
from turnout.live.reporter import Outcome, outcomes_of, record
from turnout.live.settings import DEFAULT_POLICY, SchedulerOptions, SchedulerSettings
from turnout.live.status import SchedulerStatus, status_of
from turnout.live.turns.outcomes import KINDS
from turnout.live.turns.records import OpenRound, RecordedOffer, Turn, has_context, pack_closed
from turnout.live.turns.rounds.choosing import build_open_round
from turnout.live.turns.rounds.closing import build_closed_round
from turnout.live.turns.rounds.state import Fleet
from turnout.live.turns.slots.check_ins import CheckIns
from turnout.live.turns.slots.feasibility import require_feasible
from turnout.live.turns.slots.filling import Filled
from turnout.live.turns.slots.records import Flight
from turnout.live.turns.slots.state import SlotFleet
from turnout.live.turns.slots.turns import GivenTurn, Wait
from turnout.live.turns.slots.waiting import Waiting
from turnout.log import get_log
from turnout.policies.base import SelectionPolicy
from turnout.policies.explain.explanation import Explanation
from turnout.tracking import GuardedTracker, Tracker, open_tracker

log = get_log("turnout.live")
#: The longest pause between two steps of forgetting a client, in seconds.
LONGEST_PAUSE = 0.05
#: The number of events that an export reads at a time.
EXPORT_BATCH = 100


class Scheduler:
    """Selects cohorts for a live fleet and records every outcome in one file.

    A round consists of `choose`, one `report` or `report_failure` per client, and `close_round`. A cohort is in the
    file before `choose` returns it, and an outcome before `report` returns: after a crash, open the file again. Threads
    may share a scheduler. Other processes report with `Reporter` and read with `FleetReader` or `read_only=True`.
    """

    def __init__(self, journal: Journal, settings: SchedulerSettings, features: Features) -> None:
        self._journal, self._settings, self._features = journal, settings, features
        self._amended_features = features  # those of an amendment that may not be written
        self._mutex = threading.RLock()
        self._loaded: FleetState | None = None  # None while it is changed, and after a change that failed
        self._warnings = FleetWarnings(journal.path)
        self._refused = 0
        self._is_grouping = self._owes_snapshot = False
        self._tracker: GuardedTracker | None = None
        self._last_server = (settings, features, SlotServer(journal, settings, features))
        self._reset_check_ins()
        if not journal.read_only:
            for notice in self.notices():
                log.warning("%s: %s", journal.path, notice)
            self._warnings.start(self._fleet, settings)

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        features: Features | None = None,
        read_only: bool = False,
        takeover: bool = False,
        accept_older: bool = False,
        tracker: str | Tracker | None = None,
        **options: Unpack[SchedulerOptions],
    ) -> Scheduler:
        """Opens the fleet at `path`, or creates one.

        Args:
            path: The file of the fleet.
            features: The features of the clients; the paper's by default. Pass custom features that a function computes
                whenever you open the fleet for writing.
            read_only: Whether the fleet is only read; any number of processes may do so.
            takeover: Whether to continue although another process, which hangs, holds the file. That process can no
                longer write. If that process was stopped inside a transaction, the error names the process to end.
            accept_older: Whether to continue with a file that has lost commits which were acknowledged, for example
                a copy without its log. Without this, such a file is refused.
            tracker: Receives the metrics of every round; see `track`.
            options: `policy`, `settings` (those of the policy), `deadline` and the other settings of a fleet, which
                `SchedulerSettings` documents. An existing fleet keeps its settings: different ones are refused. `amend`
                changes them.

        Raises:
            SettingError: If an option is unknown or invalid, or differs from that of the existing fleet.
            StoreError: If the file cannot be opened, is damaged, or is held by another process.
        """
        path = Path(path)
        if not path.exists():
            if read_only:
                raise StoreError(f"there is no fleet at {path}: check the path")
            _create(path, SchedulerSettings.from_kwargs(options), features or PAPER_FEATURES)
        journal = Journal(path, read_only=read_only, takeover=takeover, accept_older=accept_older)
        try:
            stored = journal.settings
            settings = SchedulerSettings.from_dict(stored)
            amended = _rounds_of_amendments(amendments(journal))
            settings.check_same(options, path, amended)
            resolved = resolve_features(
                stored["features"], features, path, read_only=read_only, amended_in=amended.get("features")
            )
            opened = cls(journal, settings, resolved)
            if tracker is not None:
                opened.track(tracker)
            return opened
        except BaseException:
            journal.close()
            raise

    @property
    def path(self) -> Path:
        """The file of the fleet."""
        return self._journal.path

    @property
    def settings(self) -> SchedulerSettings:
        """The settings of the fleet, as the last amendment left them."""
        with self._mutex:
            self._ensure_loaded()
            return self._settings

    @property
    def features(self) -> Features:
        """The features of the clients, as the last amendment left them."""
        with self._mutex:
            self._ensure_loaded()
            return self._features

    # Clients

    @property
    def clients(self) -> list[str]:
        """The ids of all clients, by row."""
        with self._mutex:
            return list(self._fleet.ids)

    @property
    def summary_round(self) -> int:
        """The last round that is no longer kept, because a summary has taken its place; 0 if all are kept."""
        with self._mutex:
            return self._journal.summary().round

    def rows(self, ids: Sequence[str]) -> IntArray:
        """Returns the rows of these clients, for a FleetStatus."""
        with self._mutex:
            return np.array([self._row(client) for client in ids], dtype=np.int64)

    def register(self, ids: Sequence[str]) -> int:
        """Adds clients before they are first available; returns how many of them are new."""
        with self._mutex:
            self._refuse_while_open("register clients")
            new_ids, first = self._new_ids(ids), len(self._fleet.ids)
            if not new_ids:
                return 0
            with self._changing() as memory:
                memory.fleet.join(new_ids)  # before writing, so that nothing is written if the policy refuses them
                with self._journal.writing() as changes:
                    changes.add_clients(first, new_ids)
            self._warnings.after_change(self._fleet)
            return len(new_ids)

    def retire(self, client: str) -> None:
        """Excludes a client that has left for good.

        The turns that it is behind stay in the certificate, but the status of the promise judges it no more. A second
        call has no effect.
        """
        with self._mutex:
            self._refuse_while_open("retire a client")
            row = self._row(client)
            if self._fleet.counters.retired[row]:
                return
            with self._changing() as memory:
                with self._journal.writing() as changes:
                    changes.add_event("retire", json.dumps({"row": row}).encode())
                memory.fleet.retire(row)

    def forget(self, client: str) -> None:
        """Removes the id and all reports of a client, and retires it; its turns stay in the certificate.

        The history is redacted in short transactions, between which other threads and processes can work. If the
        process ends before that is complete, it is completed when the fleet is opened again. A file of up to 64 MiB is
        rewritten at the end, so that unused parts of it contain nothing either; `compact` does so for larger ones.
        """
        start = time.monotonic()
        for _ in self.forget_in_steps(client):
            time.sleep(min(time.monotonic() - start, LONGEST_PAUSE))  # others get as much time
            start = time.monotonic()

    def forget_in_steps(self, client: str, answer: StoredAnswer | None = None) -> Iterator[None]:
        """Does the same as `forget`, and yields after each transaction, so that the caller can do other work between.

        The first step replaces the id and writes a snapshot: from then on, no query returns anything that the client
        reported. If the caller stops before the last step, the rest is removed when the fleet is opened again. With the
        first step the answer of a service is stored.
        """
        with self._mutex:
            self._refuse_in_group("forget")
            self._refuse_while_open("forget a client")
            row = self._row(client)
            self._refuse_while_training(row, "forget")
            name = f"forgotten-{row}"
            while name in self._fleet.rows:
                name += "-"
            with self._changing() as memory:
                summary = summary_without(self._journal, self._settings, self._features, row, name)
                memory.fleet.forget(row, name)
                with self._journal.writing() as changes:
                    since = memory.fleet.round - self._settings.late_window * (self._settings.concurrency or 1)
                    last = changes.forget(row, client, name, since, summary)
                    state = memory.state(with_contexts=self._settings.persist_statuses)
                    changes.put_snapshot(last, state, now())  # without retention: older ones contain the client
                    if answer is not None:
                        changes.put_answer(answer)
                memory.unsaved = 0
            self._check_ins.remove(client, row)
        yield
        is_left = True
        while is_left:
            with self._mutex:
                is_left = self._journal.redact()
            yield

    # Settings

    def amend(self, *, features: Features | None = None, **changes: Unpack[Amendments]) -> list[str]:
        """Changes settings of the fleet from the next round on; returns the names of those that differ.

        Rounds so far count at the guaranteed rate that they were promised, later ones at the new rate. What was learned
        stays; only new features make the fleet learn the times of all clients again. Turns and debts stay in any case,
        but a smaller deadline or speed weight also lowers the default of `max_owed`, which limits debts. The change is
        an event of the journal: certificates, explanations and replays use the settings of each round.

        Args:
            features: The new features of the clients.
            changes: `deadline`, `overcommit`, `allow_infeasible`, `keep_rounds`, `keep_offers`, `persist_statuses`,
                and with a `concurrency` `status_ttl`, `max_staleness`, `buffer`, `window_goal`, `window_seconds`,
                `min_available` and `rest_seconds`, which `SchedulerSettings` documents; and `cohort_size`,
                `guaranteed_rate`, `tolerance` and `speed_weight` of the policy. In a wrapper, they belong to the policy
                inside that has them. With the policy `quota`, `groups` is a mapping from client ids to groups; other
                clients keep theirs.

        Raises:
            ReportError: If a round is open.
            SettingError: If a value is invalid, or no policy of the fleet has the setting.
            InfeasiblePromise: If the clients of the fleet cannot be given what the new settings promise, unless
                `allow_infeasible` is or was set.
        """
        with self._mutex:
            self._refuse_while_open("amend the settings")
            new_features = self._features if features is None else features
            if "groups" in changes:
                by_row: Any = groups_by_row(self._settings, changes["groups"], self._fleet.rows)
                changes["groups"] = by_row
            settings = amended_settings(self._settings, changes)
            live_policy(settings, new_features.outputs, 1)
            differing = actual_changes(self._settings, settings, changes)
            if features is not None and _stored(features) != _stored(self._features):
                differing["features"] = (_stored(self._features), _stored(features))
            if not differing:
                return []
            amendment = Amendment(
                round=self._fleet.round,
                at=now(),
                changes={name: after for name, (_, after) in differing.items()},
                before={name: before for name, (before, _) in differing.items()},
                settings=_as_stored(settings, new_features),
            )
            self._write_amendment(amendment, settings, new_features)
            return list(differing)

    @property
    def amendments(self) -> list[Amendment]:
        """All changes of the settings since the fleet was created, in order."""
        with self._mutex:
            return amendments(self._journal)

    def _write_amendment(self, amendment: Amendment, settings: SchedulerSettings, features: Features) -> None:
        """Applies an amendment to the state, checks that it is feasible, and writes it."""
        with self._changing() as memory:
            self._amended_features = features
            amend_fleet(memory.fleet, amendment)  # before writing, so that nothing is written if the policy refuses it
            if not settings.allow_infeasible:
                require_feasible(memory.fleet)
            with self._journal.writing() as changes:
                write_amendment(changes, amendment)
            self._settings, self._features = settings, features
        self._check_ins.ttl = settings.status_ttl
        if amendment.has_new_features:
            self._check_ins.clear()  # their statuses have other values
        log.info("%s: %s", self.path, amendment.sentence())
        self._warnings.after_change(self._fleet)

    # Rounds

    @property
    def round(self) -> int:
        """The number of the open round, or of the last closed round."""
        with self._mutex:
            return self._fleet.round if self._opened is None else self._opened.round

    @property
    def open_round(self) -> OpenRound | None:
        """The open round: its cohort, its deadline and the reasons of the selection; None if no round is open."""
        with self._mutex:
            return self._opened

    def choose(self, statuses: Statuses) -> list[str]:
        """Selects the cohort of the next round; while a round is open, returns its cohort again.

        Args:
            statuses: The available clients: a mapping of ids to statuses (a ClientStatus, a mapping with one number per
                declared feature, or None if nothing is known), a list of ids about which nothing is known, or a
                FleetStatus. For a client about which nothing is known, the features have their default values
                (`Feature.default`); the policy sees these, and the recorded offer contains them.

        Raises:
            OfferError: If an id or a status is invalid; no client joins and no round is opened.
        """
        with self._mutex:
            self._refuse_slots("choose")
            if self._opened is not None:
                self._journal.check_writer()
            opened = self._opened or self._open_round(statuses)
            return [self._fleet.ids[row] for row in opened.rows.tolist()]

    def report(
        self,
        client: str | int,
        seconds: float | None = None,
        *,
        loss: float | None = None,
        round: int | None = None,
    ) -> bool:
        """Records that the update of a client arrived; returns False if that was recorded before.

        Args:
            client: The id of the client; in a fleet with a `concurrency`, the id of the turn.
            seconds: The exchange time, from sending the model until the update arrived; by default the time since the
                selection.
            loss: The mean training loss of the client, for policies that use it. The loss of a late client is stored
                but not learned.
            round: The round in which the client was selected; by default the latest.
        """
        if isinstance(client, int):
            with self._mutex:
                turn = self._turn(client)
                return self._record([Outcome(turn.id, self._elapsed_of(turn, seconds), round=turn.round, loss=loss)])[0]
        if seconds is None:
            with self._mutex:
                opened = self._need_open()
                if round not in (None, opened.round):
                    raise ReportError(
                        f"round {opened.round} is open: pass the seconds that {client!r} took in round {round}"
                    )
                elapsed = opened.elapsed
                if math.isnan(elapsed):
                    raise ReportError(f"{UNKNOWN_ELAPSED}: pass the seconds that {client!r} took")
                return self._record([Outcome(client, elapsed, round=opened.round, loss=loss)])[0]
        return self._record([Outcome(client, seconds, round=round, loss=loss)])[0]

    def report_many(
        self,
        seconds: Mapping[str, float],
        *,
        losses: Mapping[str, float] | None = None,
        round: int | None = None,
    ) -> int:
        """Records arrivals in one transaction; returns how many are new. `losses` may cover some of the clients."""
        return sum(self._record(outcomes_of(seconds, losses, round)))

    def failed(self, client: str, why: str, *, round: int | None = None) -> bool:
        """The former name of `report_failure`."""
        return self.report_failure(client, why, round=round)

    def report_failure(self, client: str | int, why: str, *, round: int | None = None) -> bool:
        """Records that a client failed, which does not change its learned speed; returns False if that was recorded.

        In a fleet with a `concurrency`, `client` is the id of the turn.
        """
        if isinstance(client, int):
            with self._mutex:
                turn = self._turn(client)
                return self._record([Outcome(turn.id, why=why, round=turn.round)])[0]
        return self._record([Outcome(client, why=why, round=round)])[0]

    def predicted(self) -> dict[str, float]:
        """The former name of `predicted_seconds`."""
        return self.predicted_seconds()

    def predicted_seconds(self) -> dict[str, float]:
        """Returns the predicted seconds of the clients of the open round whose times were learned before."""
        with self._mutex:
            opened, model = self._need_open(), self._fleet.model
            if model is None:
                return {}
            known = (self._fleet.counters.learned[opened.rows] > 0) & has_context(opened.contexts)
            rows = opened.rows[known]
            times = model.predict(opened.contexts[known], rows)
            return {self._fleet.ids[row]: seconds for row, seconds in zip(rows.tolist(), times.tolist(), strict=True)}

    def elapsed(self) -> float:
        """Returns the seconds since the selection, by the monotonic clock unless the machine was restarted since.

        If it was restarted and the clock was changed, the time is unknown: NaN.
        """
        with self._mutex:
            return self._need_open().elapsed

    @property
    def ready(self) -> bool:
        """Whether the round can be closed: enough clients or all have reported, or the deadline has passed.

        If the time since the selection is unknown, no deadline can be waited for.
        """
        with self._mutex:
            opened = self._opened
            if opened is None:
                return False
            turns = self._journal.turns_of(opened.round)
            arrived = sum(turn.kind == "arrived" for turn in turns)
            is_over = opened.deadline is not None and not opened.elapsed < opened.deadline
            return arrived >= opened.wanted or all(turn.kind for turn in turns) or is_over

    def close_round(self, after: float | None = None) -> RoundRecord:
        """Closes the round with the clients that have reported.

        The policy learns that a missing client took at least the deadline, or `after` seconds if there is none (by
        default the time since the selection; if that is unknown, the client has failed). Its actual time replaces this
        bound if it is reported within `late_window` rounds.
        """
        with self._mutex:
            self._refuse_slots("close_round")
            opened = self._need_open()
            if after is not None:
                as_number("after", after, ReportError, above=0)
            is_persisted = self._settings.persist_statuses
            with self._changing() as memory:
                with self._journal.writing() as changes:
                    waiting = self._journal.pending_late_turns(opened.round - 1 - self._settings.late_window)
                    closed, turns = build_closed_round(opened, self._journal.turns_of(opened.round), waiting, after)
                    memory.fleet.build_report(closed)  # refused before anything is written, if it must be
                    changes.add_clients(len(memory.fleet.ids) - len(opened.joined), opened.joined)
                    written = closed if is_persisted else closed.without_contexts()
                    data, mask = pack_closed(written, opened=opened.opened, closed=now(), wanted=opened.wanted)
                    event = changes.add_event("close", data, mask)
                    changes.put_closed_round(opened.round)
                    changes.put_turns([*turns, *(replace(turn, folded=opened.round) for turn in waiting)])
                    changes.drop_open_round(opened.round)
                    drop_some(changes, self._settings, opened.round)
                    changes.put_writer_figures(writer_figures(self._journal.figures(), self._refused)._asdict())
                    if not is_persisted:  # what is learned now cannot be computed from the event
                        report = memory.close(closed)
                        write_snapshot(changes, self._settings, memory, event)
                if is_persisted:
                    report = memory.close(closed)
            counts = {kind: int((closed.kinds == index).sum()) for index, kind in enumerate(KINDS)}
            log.event(logging.INFO, "close", fleet=self.path.name, round=closed.round, **counts)
            self._warnings.after_round(self._fleet, self._settings)
            if self._memory.unsaved >= SNAPSHOT_EVERY:
                try:
                    self.snapshot()
                except StoreError as error:  # the round is closed and recorded without it
                    log.warning("no snapshot was written: %s", error)
            record = RoundRecord(Selection(opened.round, opened.rows, dict(opened.reasons)), report)
            if self._tracker is not None:
                track_round(self._tracker, self._fleet, record)
            return record

    # Turns without rounds

    def fill(self, statuses: Statuses) -> list[GivenTurn]:
        """Gives one client a turn for every free slot, in a fleet with a `concurrency`; returns the new turns.

        Turns whose results were reported, or whose deadline has passed, have ended: they are learned from, and their
        slots are free. The new turns are in the file before they are returned. Clients that have checked in compete
        with those that are passed here, and their turns are among those that are returned.

        Args:
            statuses: The available clients, as for `choose`; those that are training may be among them.

        With `min_available`, nobody is given a turn while fewer clients are there; `window_seconds` has no effect here.
        """
        with self._mutex:
            self._need_slots("fill")
            resolved = self._features.resolve(statuses, self._settings.model_size)
            joined = self._new_ids(resolved) if isinstance(resolved, Mapping) else []
            filled = self._fill(Offered(resolved, joined, self._check_ins.statuses(), self._awaited()))
            return [self._given(flight) for flight in filled.flights]

    def check_in(self, client: str, status: Status = None) -> GivenTurn | Wait:
        """Answers a device that asks for work, in a fleet with a `concurrency`: its turn, or when to ask again.

        The check-in is kept for `status_ttl` seconds. The free slots are filled among all check-ins that are kept; with
        `window_seconds`, when enough of them were gathered. So a call may give turns to other clients as well: each is
        returned when its client checks in again. A client that is training gets its turn again, in case the answer was
        lost. A new client joins the fleet.

        Args:
            client: The id of the client.
            status: Its status, as for `choose`; None if nothing is known.

        Raises:
            OfferError: If the id or the status is invalid.
        """
        with self._mutex:
            self._need_slots("check_in")
            check_client_id(client, OfferError)
            resolved = self._features.resolve({client: status}, self._settings.model_size)
            assert isinstance(resolved, Mapping), "statuses by id are returned by id"
            joined = self._new_ids(resolved)
            self._features.check(client, resolved[client])
            row = len(self._fleet.ids) if joined else self._row(client)
            if joined or not self._fleet.counters.retired[row]:
                self._check_ins.add(client, row, resolved[client])
            hold = None
            try:
                if joined or not self._server.has_nothing_to_do(self._memory):
                    kept = self._check_ins.statuses(client)
                    hold = self._fill(Offered({}, joined, kept, self._awaited(), self._check_ins.waited)).hold
            except BaseException:
                self._check_ins.remove(client, row)  # a new client may not have joined
                raise
            turn = self._turn_of_row(row)
            if turn is None:
                return self._waiting.answer(self._slot_fleet, client, hold)
            self._check_ins.remove(client, row)
            return self._given(turn)

    def in_flight(self) -> list[GivenTurn]:
        """Returns the turns whose results are not known yet, in a fleet with a `concurrency`; also after a crash."""
        with self._mutex:
            self._need_slots("in_flight")
            flights, turns = self._memory.flights, self._journal.turns_under_way()
            return [self._given(flights[turn.round]) for turn in turns if turn.kind is None]

    def _fill(self, offered: Offered) -> Filled:
        with self._changing() as memory:
            filled = self._server.fill(memory, offered, self._refused, defers=self._is_grouping)
            self._owes_snapshot |= self._is_grouping and self._server.is_snapshot_due(memory)
        self._check_ins.count(filled.flights, filled.event.ended)
        for flight in filled.flights:
            self._check_ins.remove(self._fleet.ids[flight.row], flight.row)
        log.event(
            logging.INFO,
            "fill",
            fleet=self.path.name,
            decision=self._fleet.round,
            given=len(filled.flights),
            ended=len(filled.event.ended),
            **({} if filled.hold is None else {"hold": filled.hold.why}),
        )
        if filled.flights:
            self._warnings.after_round(self._fleet, self._settings)
        if self._tracker is not None:
            track_fill(self._tracker, self._fleet, filled)
        return filled

    @property
    def _server(self) -> SlotServer:
        settings, features, server = self._last_server
        if settings is not self._settings or features is not self._features:
            server = SlotServer(self._journal, self._settings, self._features)
            self._last_server = (self._settings, self._features, server)
        return server

    @property
    def _slot_fleet(self) -> SlotFleet:
        fleet = self._fleet
        assert isinstance(fleet, SlotFleet), "the callers refuse fleets with rounds"
        return fleet

    def _awaited(self) -> BoolArray:
        return self._check_ins.awaited(len(self._fleet.ids))

    def _turn_of_row(self, row: int) -> Flight | None:
        """Returns the turn that a client has not ended; None if it has none."""
        decision = self._slot_fleet.in_flight.decision_of(row)
        if not decision or self._journal.turns_of(decision)[0].kind is not None:
            return None
        return self._memory.flights[decision]

    def _turn(self, decision: int) -> Turn:
        """Returns the turn of a decision; raises ReportError if there is none."""
        self._need_slots("a report with the id of a turn")
        turns = self._journal.turns_of(decision)
        if not turns:
            raise ReportError(f"there is no turn {decision}: report with the id of a turn that fill returned")
        return turns[0]

    def _elapsed_of(self, turn: Turn, seconds: float | None) -> float:
        """Returns the seconds that were reported, or those since the turn was given."""
        if seconds is not None:
            return seconds
        flight = self._memory.flights.get(turn.round)
        if flight is None:
            raise ReportError(f"turn {turn.round} is no longer under way: pass the seconds that {turn.id!r} took")
        elapsed = flight.elapsed
        if math.isnan(elapsed):
            raise ReportError(f"{UNKNOWN_ELAPSED}: pass the seconds that {turn.id!r} took")
        return elapsed

    def _newest_turns(self) -> list[Turn]:
        """Returns the turns that may have been reported last, in a fleet without rounds."""
        newest = self._fleet.round
        return self._journal.turns_between(newest - 4 * (self._settings.concurrency or 1), newest)

    def _given(self, flight: Flight) -> GivenTurn:
        return GivenTurn(flight.decision, self._fleet.ids[flight.row], flight.deadline, flight.reasons)

    def _need_slots(self, method: str) -> None:
        if self._settings.concurrency is None:
            raise SettingError(f"{method} needs a fleet with a concurrency: use choose and close_round")

    def _refuse_slots(self, method: str) -> None:
        if self._settings.concurrency is not None:
            raise SettingError(f"{method} needs a fleet with rounds: use fill, and report with the id of the turn")

    def abandon_round(self) -> None:
        """Cancels a round without any reports, as if its cohort had never been selected."""
        with self._mutex:
            opened = self._need_open()
            with self._journal.writing() as changes:
                reported = [turn.id for turn in self._journal.turns_of(opened.round) if turn.kind]
                if reported:
                    raise ReportError(
                        f"round {opened.round} cannot be abandoned: {reported[0]!r} has reported. Close it instead"
                    )
                self._loaded = None  # the clients that joined in this round must leave
                changes.drop_open_round(opened.round)
                changes.drop_offer(opened.round)
                changes.drop_turns(opened.round)

    # Many calls at once

    @contextmanager
    def group(self) -> Iterator[None]:
        """Opens a block whose changes are committed together when it ends: many calls, one flush to disk.

        What a call inside returns is in the file only when the block has ended: do not pass it on before. A call that
        raises an error changes nothing, and the next ones go on. If the block is left by an exception, or the commit
        fails, nothing of it is in the file. Other threads wait until the block ends. `forget` and `compact` cannot be
        called inside.

        Raises:
            StoreError: If the changes could not be committed.
            InterruptedGroupError: If a call failed in the middle of a change, and the others cannot go on without it:
                with `persist_statuses=False`, the calls share one snapshot. Repeat each in a group of its own.
        """
        with self._mutex:
            self._ensure_loaded()
            try:
                with self._journal.grouping():
                    self._is_grouping = True
                    try:
                        yield
                        self._write_owed_snapshot()
                    finally:
                        self._is_grouping = self._owes_snapshot = False
            except BaseException:
                self._loaded = None  # it may contain changes that were not committed
                self._reset_check_ins()  # those of clients that have not joined after all are among them
                raise

    def _write_owed_snapshot(self) -> None:
        """Writes the snapshot that calls of a group have left to its end, so that they share one."""
        if self._owes_snapshot:
            memory = self._memory
            with self._journal.writing() as changes:
                write_snapshot(changes, self._settings, memory, self._journal.last_event())

    def stored_answer(self, key: bytes) -> StoredAnswer | None:
        """Returns what a service answered to the request with this key; None if nothing is stored."""
        with self._mutex:
            return self._journal.answer(key)

    def store_answer(self, answer: StoredAnswer) -> None:
        """Stores what a service answers to a request; call it in the `group` in which the request is executed.

        It is kept for a day, unless there are very many, and until a client is forgotten whose id it contains.
        """
        with self._mutex, self._journal.writing() as changes:
            changes.put_answer(answer)

    # Queries

    @property
    def policy(self) -> SelectionPolicy:
        """The policy that selects; reading it is safe, changing it is not."""
        with self._mutex:
            return self._fleet.policy

    @property
    def promises(self) -> bool:
        """The former name of `has_guarantee`."""
        return self.has_guarantee

    @property
    def has_guarantee(self) -> bool:
        """Whether the policy guarantees anything, so that there is a certificate."""
        with self._mutex:
            return self._fleet.policy.guarantee is not None

    def certificate(self) -> Certificate:
        """Returns how many turns every client was promised and got, by row, and since when promises are broken.

        Retired clients are in the certificate with what they are behind, but its overall status, its worst client and
        its summary judge only the others.

        Raises:
            SettingError: If the policy guarantees nothing.
        """
        with self._mutex:
            certificate = self._fleet.certificate()
            if certificate is None:
                raise SettingError(
                    f"the policy {self._settings.policy} guarantees nothing: use {DEFAULT_POLICY} for a certificate"
                )
            return certificate

    def explain(self, client: str, round: int | None = None) -> Explanation:
        """Explains why a client was selected in a round, by default the latest, or what it lacked."""
        with self._mutex:
            number = self.round if round is None else as_round(round)
            row, memory = self._row(client), self._memory
            return explain_client(self._journal, memory, self._settings, self._features, row, number)

    def status(self) -> SchedulerStatus:
        """Returns a summary of the fleet; its string form is for people."""
        with self._mutex:
            if self._settings.concurrency is not None:
                turns = self._journal.turns_under_way()
            else:
                turns = [] if self._opened is None else self._journal.turns_of(self._opened.round)
            elapsed = 0.0 if self._opened is None else self._opened.elapsed
            return status_of(self._fleet, self._opened, turns, elapsed, self.notices())

    def metrics(self) -> SchedulerMetrics:
        """Returns figures about this scheduler, for monitoring."""
        with self._mutex:
            memory, number = self._memory, self.round
            return metrics_of(
                self._journal.figures(),
                round=number,
                opened=memory.opened,
                turns=self._journal.turns_of(number) if self._settings.concurrency is None else self._newest_turns(),
                flights=list(memory.flights.values()) if self._settings.concurrency is not None else None,
                unsaved=memory.unsaved,
                refused=self._refused,
                certificate=memory.fleet.certificate() if memory.fleet.ids else None,
            )

    def history(self, client: str) -> list[Turn]:
        """Returns all turns of a client, oldest first, with their outcomes."""
        with self._mutex:
            self._row(client)
            return self._journal.turns_of_client(client)

    def turns(self, round: int | None = None) -> list[Turn]:
        """Returns the turns of a round, by default the latest, with their outcomes."""
        with self._mutex:
            return self._journal.turns_of(self.round if round is None else as_round(round))

    def reliability(self, client: str) -> float:
        """Returns the estimated probability that a client reports in time."""
        with self._mutex:
            return float(self._fleet.history.reliability[self._row(client)])

    def doubted(self) -> list[str]:
        """The former name of `suspect_clients`."""
        return self.suspect_clients()

    def suspect_clients(self) -> list[str]:
        """Returns the clients whose contexts no longer explain their times; they lose no turns for it."""
        with self._mutex:
            return [self._fleet.ids[row] for row in np.flatnonzero(self._fleet.history.suspects()).tolist()]

    def notices(self) -> list[str]:
        """Returns what an operator should know about the settings and the clients of this fleet."""
        with self._mutex:
            notices = notices_of(self._fleet, self._settings, self._opened)
            return [*notices, UNCLEAN_NOTICE] if self._journal.is_unclean else notices

    def export(self) -> Iterator[dict[str, Any]]:
        """Yields every event in order, as dictionaries that can be written as JSON, for an audit.

        If earlier events are no longer kept, a line of the kind "summary" comes first: it states the last of them, the
        last round that was closed by then, and the number of clients that had joined.

        Raises:
            StaleError: If the next events are no longer kept, because the fleet went on meanwhile: export it again.
        """
        with self._mutex:
            summary = self._journal.summary()
        if summary.event:
            yield {"event": summary.event, "kind": "summary", "round": summary.round, "clients": summary.clients}
        last, joined = summary.event, summary.clients
        while True:
            events = []
            with self._mutex:  # in batches, so that other threads are not blocked for long
                for stored in self._journal.events(last, EXPORT_BATCH):
                    if stored[0] != last + 1:
                        raise StaleError(f"event {last + 1} is no longer kept in {self.path}: export it again")
                    last = stored[0]
                    event = decode_event(*stored, self._fleet.ids, joined)
                    joined += len(event.clients) if event.kind == "joined" else 0
                    events.append(event.to_dict())
            yield from events
            if len(events) < EXPORT_BATCH:
                return

    def state(self) -> dict[str, Any]:
        """Returns the in-memory state as plain arrays and numbers, which depend only on the recorded events."""
        with self._mutex:
            return self._memory.state()

    def snapshot(self) -> None:
        """Writes a snapshot of the state, so that the file opens quickly; this also happens every few rounds."""
        with self._mutex:
            self._refuse_while_open("take a snapshot")
            memory = self._memory
            with self._journal.writing() as changes:
                write_snapshot(changes, self._settings, memory, self._journal.last_event())

    def compact(self) -> None:
        """Deletes everything that is no longer kept, and rewrites the file without unused space.

        With `keep_rounds` and `keep_offers`, every round deletes some of what is no longer kept, and the file does not
        grow any more. This deletes all of it at once, and makes the file smaller: it temporarily needs as much disk
        space again, and other processes cannot write meanwhile. It also removes what is left of forgotten clients in
        unused parts of the file.
        """
        with self._mutex:
            self._refuse_in_group("compact")
            self._refuse_while_open("compact the file")
            while self._journal.redact():  # a client whose forgetting was interrupted
                pass
            self.snapshot()
            summarize_at_once(self._journal, self._settings, self._features, self._memory)
            is_left = True
            while is_left:
                with self._journal.writing() as changes:
                    is_left = drop_some(changes, self._settings, self._fleet.round)
            self._journal.compact()

    # Tracking

    @property
    def tracker(self) -> GuardedTracker | None:
        """The tracker that receives the metrics of every round, and the number of its failures; None if there is none.

        An error of the tracker does not stop the fleet.
        """
        return self._tracker

    def track(self, tracker: str | Tracker | None) -> GuardedTracker | None:
        """Logs the metrics of every round from now on to this tracker, and closes the former one.

        A round is logged after it is in the file. The step is its number; without rounds, that of the newest decision.
        The tracker is closed with the scheduler. Its `log` should return soon, because the next call waits for it.

        Args:
            tracker: A text such as "tensorboard:logs", or an object with `log(metrics, step)` and `close()`; None for
                no tracker.

        Raises:
            SettingError: If there is no such tracker, or the fleet is open only for reading.
        """
        with self._mutex:
            if tracker is not None and self._journal.read_only:
                raise SettingError("a fleet that is only read closes no rounds: open it without read_only=True")
            settings = {"fleet": str(self.path), **self._settings.to_dict()}
            former, self._tracker = self._tracker, None
            if former is not None:
                former.close()
            if tracker is not None:
                self._tracker = open_tracker(tracker, run=self.path.stem, settings=settings)
            return self._tracker

    def close(self) -> None:
        """Closes the file, in which everything recorded is already, and the tracker."""
        self._journal.close()
        if self._tracker is not None:
            self._tracker.close()

    def __repr__(self) -> str:
        mode = ", read_only=True" if self._journal.read_only else ""
        return (
            f"Scheduler({str(self.path)!r}, policy={self._settings.policy!r}, clients={len(self.clients)}, "
            f"round={self.round}, is_open={self._opened is not None}{mode})"
        )

    def __enter__(self) -> Scheduler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _memory(self) -> FleetState:
        """The state in memory, loaded from the file again if a change of it has failed or was interrupted."""
        return self._ensure_loaded()

    def _ensure_loaded(self) -> FleetState:
        if self._loaded is None:
            if self._owes_snapshot:  # the events of the group alone do not contain what was learned from statuses
                raise InterruptedGroupError(f"a call failed while a group of changes of {self.path} was written: retry")
            self._journal.reset()
            self._read_settings()
            self._check_ins.ttl = self._settings.status_ttl
            self._loaded = load(self._journal, self._settings, self._features)
        return self._loaded

    def _read_settings(self) -> None:
        """Reads the settings from the file: an amendment of them may have been interrupted after it was written."""
        stored = self._journal.settings
        self._settings = SchedulerSettings.from_dict(stored)
        if stored["features"] == _stored(self._amended_features):
            self._features = self._amended_features

    def _reset_check_ins(self) -> None:
        """Drops all check-ins: devices check in again, as they were asked."""
        self._check_ins = CheckIns(self._settings.status_ttl, self._settings.concurrency or 1)
        self._waiting = Waiting(self._check_ins)

    @contextmanager
    def _changing(self) -> Iterator[FleetState]:
        """Opens a block that changes the file and the state in memory.

        The state is taken away for the duration of the block, and put back only if the block succeeds: whatever
        interrupts it, and wherever, memory and file agree afterwards.
        """
        memory, self._loaded = self._memory, None
        yield memory
        self._loaded = memory

    @property
    def _fleet(self) -> Fleet:
        return self._memory.fleet

    @property
    def _opened(self) -> OpenRound | None:
        return self._memory.opened

    def _open_round(self, statuses: Statuses) -> OpenRound:
        resolved = self._features.resolve(statuses, self._settings.model_size)
        joined = self._new_ids(resolved) if isinstance(resolved, Mapping) else []
        if not joined:  # statuses that are refused change nothing
            opened, offered = self._select(self._fleet, resolved, ())
        with self._changing() as memory:
            if joined:
                memory.fleet.join(joined)
                opened, offered = self._select(memory.fleet, resolved, tuple(joined))
            with self._journal.writing() as changes:
                written = opened if self._settings.persist_statuses else opened.without_contexts()
                changes.put_open_round(written, [memory.fleet.ids[row] for row in opened.rows.tolist()])
                changes.put_offer(offered, opened.opened)
            memory.opened = opened
        available, chosen = int(np.count_nonzero(opened.available)), len(opened.rows)
        log.event(
            logging.INFO,
            "choose",
            fleet=self.path.name,
            round=opened.round,
            available=available,
            chosen=chosen,
            deadline=opened.deadline,
        )
        return opened

    def _select(
        self, fleet: Fleet, statuses: Mapping[str, Any] | FleetStatus, joined: tuple[str, ...]
    ) -> tuple[OpenRound, RecordedOffer]:
        return build_open_round(fleet, self._features, self._settings, statuses, joined)

    def _record(self, outcomes: Sequence[Outcome]) -> list[bool]:
        with self._mutex:
            self._ensure_loaded()
            window = self._settings.late_window * (self._settings.concurrency or 1)
            try:
                is_new = record(self._journal, outcomes, window)
            except ReportError as error:
                self._refused += 1
                log.event(logging.INFO, "refuse", fleet=self.path.name, error=str(error))
                raise
            for outcome, new in zip(outcomes, is_new, strict=True):
                result = {"why": outcome.why} if outcome.seconds is None else {"seconds": outcome.seconds}
                log.event(logging.DEBUG, "report", fleet=self.path.name, client=outcome.client, **result, new=new)
            return is_new

    def _need_open(self) -> OpenRound:
        if self._opened is None:
            raise ReportError("no round is open: choose first")
        return self._opened

    def _refuse_while_open(self, what: str) -> None:
        if self._opened is not None:
            raise ReportError(f"round {self._opened.round} is open: close or abandon it before you {what}")

    def _refuse_in_group(self, method: str) -> None:
        if self._is_grouping:
            raise SettingError(f"{method} writes more than one transaction: call it outside of a group")

    def _refuse_while_training(self, row: int, what: str) -> None:
        turn = next((number for number, flight in self._memory.flights.items() if flight.row == row), None)
        if turn is not None:
            raise ReportError(
                f"{self._fleet.ids[row]!r} is training: report the result of turn {turn} and fill before you {what} it"
            )

    def _new_ids(self, ids: Sequence[str] | Mapping[str, Any]) -> list[str]:
        """Returns the ids that are not in the fleet yet, without duplicates."""
        if isinstance(ids, str):
            raise OfferError(f"ids must be a list of strings, got {ids!r}")
        are_plain = set(map(type, ids)) <= {str}
        for client in () if are_plain else ids:
            if not isinstance(client, Hashable):
                check_client_id(client, OfferError)
        known = self._fleet.rows if self._fleet.ids else {}
        new_ids = dict.fromkeys([client for client in ids if client not in known] if known else ids)
        check_client_ids(new_ids.keys(), OfferError)
        # SQLite stores subclasses such as numpy.str_ differently.
        return list(new_ids) if are_plain else [str.__str__(client) for client in new_ids]

    def _row(self, client: str) -> int:
        row = self._fleet.rows.get(client) if isinstance(client, str) else None
        if row is None:
            raise ReportError(f"there is no client {client!r} in {self._journal.path}: check the id")
        return row


def _create(path: Path, settings: SchedulerSettings, features: Features) -> None:
    """Creates the file of a fleet, after checking that its policy can be built."""
    live_policy(settings, features.outputs, 1)
    Journal.make(path, {**settings.to_dict(), "features": features.to_dict()})


def _stored(features: Features) -> Any:
    """Returns features as they are read from the file, where a tuple is a list."""
    return json.loads(json.dumps(features.to_dict()))


def _as_stored(settings: SchedulerSettings, features: Features) -> dict[str, Any]:
    """Returns all settings as they are read from the file."""
    stored: dict[str, Any] = json.loads(json.dumps({**settings.to_dict(), "features": features.to_dict()}))
    return stored


def _rounds_of_amendments(amended: Sequence[Amendment]) -> dict[str, int]:
    """Returns the round after which each option of `Scheduler.open` was last amended."""
    rounds: dict[str, int] = {}
    for amendment in amended:
        for name in amendment.changes:
            rounds["settings" if name in OF_POLICY else name] = rounds[name] = amendment.round
    return rounds
