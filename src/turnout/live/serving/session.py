"""An open fleet: its file, its state in memory, and everything that is the same for rounds and slots."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Unpack

from turnout.closing import close_on_error
from turnout.errors import InterruptedGroupError, OfferError, OpenRoundError, ReportError, SettingError, StoreError
from turnout.kernel.certificate import Certificate
from turnout.live.clock import now
from turnout.live.features import PAPER_FEATURES, Features
from turnout.live.identifiers import check_client_id, check_client_ids
from turnout.live.journal.answers import StoredAnswer
from turnout.live.journal.journal import Amendment, Journal, amendments, as_stored, write_amendment
from turnout.live.journal.replay import FleetState, amend_fleet, check_new_policy, load, resolve_features
from turnout.live.journal.summary import last_event
from turnout.live.operation.amending import actual_changes, amended_settings, groups_by_row, rounds_of_amendments
from turnout.live.operation.monitoring import FleetWarnings
from turnout.live.operation.upkeep import drop_some, summarize_at_once, summary_without, write_snapshot
from turnout.live.reporter import Outcome, record
from turnout.live.settings import SchedulerSettings
from turnout.live.turns.feasibility import require_feasible
from turnout.live.turns.state import Fleet, row_of
from turnout.log import get_log
from turnout.storage.opening import store_exists
from turnout.storage.store import Location, Modes

if TYPE_CHECKING:
    from turnout.tracking import GuardedTracker, Tracker

log = get_log("turnout.live")


class FleetSession:
    """The file of a fleet and its state in memory.

    The scheduler holds `lock` around everything that it calls. What neighbours call directly takes the lock itself.

    Args:
        journal: The journal of the fleet.
        settings: Its settings.
        features: Its features.

    Attributes:
        lock: The lock of the fleet; it may be taken again by the thread that holds it.
        refused: The number of reports that this process has refused.
        is_grouping: Whether calls are in a group.
        tracker: Receives the metrics of every round; None if there is none. Its errors do not stop the fleet.
    """

    def __init__(self, journal: Journal, settings: SchedulerSettings, features: Features) -> None:
        self.journal = journal
        self._settings, self._features = settings, features
        self._amended_features = features  # those of an amendment that may not be written
        self.lock = threading.RLock()
        self._loaded: FleetState | None = None  # None while it is changed, and after a change that failed
        self._is_changing = False
        #: The file of the fleet, or its address in a database.
        self.location = journal.location
        self.warnings = FleetWarnings(journal.location)
        self.refused = 0
        self.is_grouping = False
        self.owes_snapshot = False  # whether a call of a group has left its snapshot to the end of the group
        self.tracker: GuardedTracker | None = None

    @property
    def settings(self) -> SchedulerSettings:
        """The settings of the fleet, as the last amendment left them."""
        if not self._is_changing:
            self._load()
        return self._settings

    @property
    def features(self) -> Features:
        """The features of the clients, as the last amendment left them."""
        if not self._is_changing:
            self._load()
        return self._features

    @property
    def memory(self) -> FleetState:
        """The state in memory, loaded from the file again if a change of it has failed or was interrupted."""
        return self._load()

    @property
    def fleet(self) -> Fleet:
        """The clients and the policy."""
        return self._load().fleet

    def _load(self) -> FleetState:
        if self._loaded is None:
            if self.owes_snapshot:  # the events of the group alone do not contain what was learned from statuses
                raise InterruptedGroupError(f"a call failed while a group of {self.location} was written: retry")
            self.journal.reset()
            stored = self.journal.settings  # an amendment may have been interrupted after it was written
            self._settings = SchedulerSettings.from_dict(stored)
            if stored["features"] == as_stored(self._amended_features.to_dict()):
                self._features = self._amended_features
            self._loaded = load(self.journal)
        return self._loaded

    @contextmanager
    def changing(self) -> Iterator[FleetState]:
        """Opens a block that changes the file and the state in memory.

        The state is taken away for the duration of the block, and put back only if the block succeeds: whatever
        interrupts it, and wherever, memory and file agree afterwards.
        """
        memory, self._loaded = self._load(), None
        self._is_changing = True
        try:
            yield memory
        finally:
            self._is_changing = False
        self._loaded = memory

    def drop_memory(self) -> None:
        """Drops the state in memory, so that it is loaded from the file again."""
        self._loaded = None

    @contextmanager
    def grouping(self) -> Iterator[None]:
        """Opens a block whose changes are committed together when it ends."""
        self._load()
        try:
            with self.journal.grouping():
                self.is_grouping = True
                try:
                    yield
                    if self.owes_snapshot:  # the calls of the group share one
                        self._write_snapshot()
                finally:
                    self.is_grouping = self.owes_snapshot = False
        except BaseException:
            self._loaded = None  # it may contain changes that were not committed
            raise

    # Clients and reports

    def row(self, client: str) -> int:
        """Returns the row of a client; raises ReportError if there is none."""
        with self.lock:
            return row_of(self.fleet, client, self.location)

    def new_ids(self, ids: Sequence[str] | Mapping[str, Any]) -> list[str]:
        """Returns the ids that are not in the fleet yet, without duplicates; raises OfferError if one is no id."""
        if isinstance(ids, str) or not isinstance(ids, Iterable):
            raise OfferError(f"ids must be a list of strings, got {ids!r}")
        if not isinstance(ids, Collection):
            ids = list(ids)  # a generator can be read once
        are_plain = set(map(type, ids)) <= {str}
        for client in () if are_plain else ids:
            if not isinstance(client, Hashable):
                check_client_id(client, OfferError)
        known = self.fleet.rows if self.fleet.ids else {}
        new_ids = dict.fromkeys([client for client in ids if client not in known] if known else ids)
        check_client_ids(new_ids.keys(), OfferError)
        # SQLite stores subclasses such as numpy.str_ differently.
        return list(new_ids) if are_plain else [str.__str__(client) for client in new_ids]

    def register(self, ids: Sequence[str]) -> int:
        """Adds clients; returns how many of them are new."""
        self.refuse_while_open("register clients")
        new_ids, first = self.new_ids(ids), len(self.fleet.ids)
        if not new_ids:
            return 0
        with self.changing() as memory:
            memory.fleet.join(new_ids)  # before writing, so that nothing is written if the policy refuses them
            with self.journal.writing() as changes:
                changes.add_clients(first, new_ids)
        self.warnings.after_change(self.fleet)
        return len(new_ids)

    def retire(self, client: str) -> None:
        """Excludes a client that has left for good; a second call has no effect."""
        self.refuse_while_open("retire a client")
        row = self.row(client)
        if self.fleet.counters.retired[row]:
            return
        with self.changing() as memory:
            with self.journal.writing() as changes:
                changes.add_event("retire", json.dumps({"row": row}).encode())
            memory.fleet.retire(row)

    def forget_in_steps(self, client: str, answer: StoredAnswer | None = None) -> Iterator[None]:
        """Forgets a client, and yields after each transaction, so that the caller can do other work between.

        The first step replaces the id and writes a snapshot: from then on, no query returns anything that the client
        reported. If the caller stops before the last step, the rest is removed when the fleet is opened again. With the
        first step the answer of a service is stored.
        """
        with self.lock:
            self.refuse_in_group("forget")
            self.refuse_while_open("forget a client")
            row = self.row(client)
            running = {turn.row: number for number, turn in self.memory.running_turns.items()}
            if row in running:
                raise ReportError(
                    f"{client!r} is training: report the result of turn {running[row]} and fill before you forget it"
                )
            name = f"forgotten-{row}"
            while name in self.fleet.rows:
                name += "-"
            with self.changing() as memory:
                summary = summary_without(self.journal, row, name)
                memory.fleet.forget(row, name)
                with self.journal.writing() as changes:
                    since = memory.fleet.round - self._settings.late_turns
                    last = changes.forget(row, client, name, since, summary)
                    state = memory.state(with_contexts=self._settings.persist_statuses)
                    changes.put_snapshot(last, state, now())  # without retention: older ones contain the client
                    if answer is not None:
                        changes.put_answer(answer)
                memory.unsaved, memory.snapshot = 0, None
        yield
        is_left = True
        while is_left:
            with self.lock:
                is_left = self.journal.redact()
            yield

    def record(self, outcomes: Sequence[Outcome]) -> list[bool]:
        """Records outcomes of turns; returns whether each of them is new."""
        try:
            is_new = record(self.journal, outcomes, self.settings.late_turns)
        except ReportError as error:
            self.refused += 1
            log.event(logging.INFO, "refuse", fleet=self.location.name, error=str(error))
            raise
        for outcome, new in zip(outcomes, is_new, strict=True):
            result = {"why": outcome.why} if outcome.seconds is None else {"seconds": outcome.seconds}
            log.event(logging.DEBUG, "report", fleet=self.location.name, client=outcome.client, **result, new=new)
            self.warnings.question_unit(outcome, self.settings.deadline)
        return is_new

    def certificate(self) -> Certificate | None:
        """Returns what every client was promised and got; None if the policy guarantees nothing."""
        with self.lock:
            return self.fleet.certificate()

    # Answers of a service

    def stored_answer(self, key: bytes) -> StoredAnswer | None:
        """Returns what a service answered to the request with this key; None if nothing is stored."""
        with self.lock:
            return self.journal.answer(key)

    def store_answer(self, answer: StoredAnswer) -> None:
        """Stores what a service answers to a request, in the group in which the request is executed.

        It is kept for a day, unless there are very many, and until a client is forgotten whose id it contains.
        """
        with self.lock, self.journal.writing() as changes:
            changes.put_answer(answer)

    # Settings

    def amend(self, features: Features | None, changes: dict[str, Any]) -> list[str]:
        """Changes settings from the next round on; returns the names of those that differ."""
        self.refuse_while_open("amend the settings")
        new_features = self.features if features is None else features
        if "groups" in changes:
            changes["groups"] = groups_by_row(self._settings, changes["groups"], self.fleet.rows)
        settings = amended_settings(self._settings, changes)
        check_new_policy(settings, new_features)
        differing = actual_changes(self._settings, settings, changes)
        stored, former = as_stored(new_features.to_dict()), as_stored(self._features.to_dict())
        if stored != former:
            differing["features"] = (former, stored)
        if differing:
            amendment = Amendment(
                round=self.fleet.round,
                at=now(),
                changes={name: after for name, (_, after) in differing.items()},
                before={name: before for name, (before, _) in differing.items()},
                settings=as_stored({**settings.to_dict(), "features": new_features.to_dict()}),
            )
            self._write_amendment(amendment, settings, new_features)
        return list(differing)

    def _write_amendment(self, amendment: Amendment, settings: SchedulerSettings, features: Features) -> None:
        """Applies an amendment to the state, checks that it is feasible, and writes it."""
        with self.changing() as memory:
            self._amended_features = features
            amend_fleet(memory.fleet, amendment)  # before writing, so that nothing is written if the policy refuses it
            if not settings.allow_infeasible:
                require_feasible(memory.fleet)
            with self.journal.writing() as changes:
                write_amendment(changes, amendment)
            self._settings, self._features = settings, features
        log.info("%s: %s", self.location, amendment.sentence())
        self.warnings.after_change(self.fleet)

    # Upkeep

    def snapshot(self) -> None:
        """Writes a snapshot of the state, so that the file opens quickly; this also happens every few rounds."""
        self.refuse_while_open("take a snapshot")
        self._write_snapshot()

    def _write_snapshot(self) -> None:
        memory = self.memory
        with self.journal.writing() as changes:
            write_snapshot(changes, self._settings, memory, last_event(changes.db)[0])

    def compact(self) -> None:
        """Deletes everything that is no longer kept, and rewrites the file without unused space."""
        self.refuse_in_group("compact")
        self.refuse_while_open("compact the file")
        while self.journal.redact():  # a client whose forgetting was interrupted
            pass
        self.memory.snapshot = None  # so that the snapshot is complete: earlier ones are deleted
        self.snapshot()
        summarize_at_once(self.journal, self._settings, self.memory)
        is_left = True
        while is_left:
            with self.journal.writing() as changes:
                is_left = drop_some(changes, self._settings, self.fleet.round)
        self.journal.compact()

    def track(self, tracker: str | Tracker | None) -> None:
        """Logs the metrics of every round from now on to this tracker, and closes the former one; None for none."""
        with self.lock:
            former, self.tracker = self.tracker, None
            if former is not None:
                former.close()
            if tracker is not None:
                from turnout.tracking import open_tracker

                settings = {"fleet": str(self.location), **self.settings.to_dict()}
                self.tracker = open_tracker(tracker, run=self.location.stem, settings=settings)

    def close(self) -> None:
        """Closes the file and the tracker; everything is already on disk, except what a large fleet has learned."""
        try:
            if self._loaded is not None and self._loaded.unsaved and not self._settings.persist_statuses:
                self._write_snapshot()
        except StoreError as error:
            log.warning("%s: what was learned from the last turns is not stored: %s", self.location, error)
        finally:
            self.journal.close()
        if self.tracker is not None:
            self.tracker.close()

    def refuse_while_open(self, what: str) -> None:
        """Raises OpenRoundError if a round is open."""
        opened = self.memory.opened
        if opened is not None:
            raise OpenRoundError(f"round {opened.round} is open: close or abandon it before you {what}")

    def refuse_in_group(self, method: str) -> None:
        """Raises SettingError inside a group."""
        if self.is_grouping:
            raise SettingError(f"{method} writes more than one transaction: call it outside of a group")


def open_session(
    path: Location,
    features: Features | None,
    options: Mapping[str, Any],
    *,
    keep_amended: bool = False,
    **modes: Unpack[Modes],
) -> FleetSession:
    """Opens the fleet at `path`, or creates one; the arguments are those of `Scheduler.open`."""
    if not store_exists(path):
        _create(path, SchedulerSettings.from_kwargs(options), features or PAPER_FEATURES)
    journal = Journal(path, **modes)
    with close_on_error(journal):
        stored = journal.settings
        settings = SchedulerSettings.from_dict(stored)
        rounds = rounds_of_amendments(amendments(journal))
        settings.check_same(options, path, rounds, keep_amended=keep_amended)
        resolved = resolve_features(stored["features"], features, path, rounds.get("features"))
        return FleetSession(journal, settings, resolved)


def _create(path: Location, settings: SchedulerSettings, features: Features) -> None:
    """Creates the file of a fleet, after checking that its policy can be built."""
    check_new_policy(settings, features)
    Journal.make(path, {**settings.to_dict(), "features": features.to_dict()})
