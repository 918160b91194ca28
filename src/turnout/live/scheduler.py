"""The scheduler of a live fleet: the face of an open fleet and of the server that gives its turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Unpack

from turnout.closing import close_on_error
from turnout.errors import SettingError
from turnout.kernel.rounds import RoundRecord
from turnout.live.features import Features, Status, Statuses
from turnout.live.identifiers import as_ids
from turnout.live.journal.answers import StoredAnswer
from turnout.live.journal.journal import Journal
from turnout.live.journal.replay import FleetState
from turnout.live.operation.amending import Amendments
from turnout.live.operation.monitoring import SchedulerMetrics, fleet_notices, metrics_of
from turnout.live.queries import FleetQueries
from turnout.live.reporter import Outcome, outcomes_of
from turnout.live.serving.server import TurnServer
from turnout.live.serving.session import FleetSession, open_session
from turnout.live.settings import SchedulerOptions, SchedulerSettings
from turnout.live.turns.rounds.records import OpenRound
from turnout.live.turns.slots.turns import RunningTurn, Wait
from turnout.log import get_log
from turnout.storage.address import DatabaseAddress, as_location, file_of
from turnout.storage.store import Modes, Result, repeat

if TYPE_CHECKING:
    from turnout.tracking import Tracker

log = get_log("turnout.live")
#: The longest pause between two steps of forgetting a client, in seconds.
MAX_PAUSE = 0.05


class Scheduler(FleetQueries):
    """Selects cohorts for a live fleet and records every outcome in one file.

    A round consists of `choose`, one `report` or `report_failure` per client, and `close_round`. A cohort is in the
    file before `choose` returns it, and an outcome before `report` returns: after a crash, open the file again. Threads
    may share a scheduler. Other processes report with `Reporter` and read with `FleetReader`.
    """

    def __init__(self, session: FleetSession) -> None:
        self._session = session
        self._lock = session.lock
        self._server = _server_of(session)
        for notice in fleet_notices(session.journal, session.memory, session.settings):
            log.warning("%s: %s", session.location, notice)
        session.warnings.start(session.fleet, session.settings)

    @classmethod
    def open(
        cls,
        path: str | Path | DatabaseAddress,
        *,
        features: Features | None = None,
        takeover: bool = False,
        accept_older: bool = False,
        standby: bool = False,
        amended: Literal["refuse", "keep"] = "refuse",
        tracker: str | Tracker | None = None,
        **options: Unpack[SchedulerOptions],
    ) -> Scheduler:
        """Opens the fleet at `path`, or creates one.

        Args:
            path: The file of the fleet, or its address in a database: "postgresql://host/database?fleet=name".
            features: The features of the clients; the paper's by default. Pass custom features that a function computes
                whenever you open the fleet.
            takeover: Whether to continue although another process, which hangs, holds the file; it can no longer write.
            accept_older: Whether to continue with a fleet that has lost acknowledged commits; otherwise it is refused.
            standby: Whether to wait until no other process writes the fleet, which must be in a database.
            amended: Whether to "refuse" or to "keep" the settings that were amended since, where an option differs.
            tracker: Receives the metrics of every round after it is in the file: a text such as "tensorboard:logs", or
                an object with `log(metrics, step)` and `close()`. The step is the number of the round; without rounds,
                that of the newest decision. The tracker is closed with the scheduler; its errors do not stop the fleet.
                Its `log` should return soon, because the next call waits for it.
            options: `policy`, `settings` (those of the policy), `deadline` and the other settings of a fleet, which
                `SchedulerSettings` documents. An existing fleet keeps its settings: different ones are refused.

        Raises:
            SettingError: If an option is unknown or invalid, or differs from that of the existing fleet.
            StoreError: If the file cannot be opened, is damaged, or is held by another process.
        """
        if amended not in ("refuse", "keep"):
            raise SettingError(f"amended must be 'refuse' or 'keep', got {amended!r}")
        modes: Modes = {"takeover": takeover, "accept_older": accept_older, "standby": standby}
        session = open_session(as_location(path), features, options, keep_amended=amended == "keep", **modes)
        with close_on_error(session):
            opened = cls(session)
            session.track(tracker)
            return opened

    @property
    def path(self) -> Path:
        """The file of the fleet; raises FleetKindError if it is in a database."""
        return file_of(self._session.location)

    @property
    def settings(self) -> SchedulerSettings:
        """The settings of the fleet, as the last amendment left them."""
        with self._lock:
            return self._session.settings

    # Clients

    @property
    def clients(self) -> list[str]:
        """The ids of all clients, by row."""
        with self._lock:
            return list(self._session.fleet.ids)

    def register(self, ids: Sequence[str]) -> int:
        """Adds clients before they are first available; returns how many of them are new."""
        given = ids if isinstance(ids, Collection) or not isinstance(ids, Iterable) else list(ids)
        return self._call(lambda: self._session.register(given))

    def retire(self, client: str) -> None:
        """Excludes a client that has left for good.

        What it is behind stays in the certificate, but the promise is no longer judged by it.
        """
        self._call(lambda: self._session.retire(client))

    def forget(self, client: str) -> None:
        """Removes the id and all reports of a client, and retires it; its turns stay in the certificate.

        The history is redacted in short transactions, between which others can work; what an interruption leaves is
        redacted when the fleet is opened again. A file of up to 64 MiB is rewritten at the end, so that unused parts of
        it contain nothing either; `compact` does so for larger ones.
        """
        start = time.monotonic()
        for _ in self._forget_in_steps(client):
            time.sleep(min(time.monotonic() - start, MAX_PAUSE))  # others get as much time
            start = time.monotonic()

    def _forget_in_steps(self, client: str, answer: StoredAnswer | None = None) -> Iterator[None]:
        """Does the same as `forget`, and yields after each transaction: the caller can do other work between."""
        row, steps = self._session.row(client), self._session.forget_in_steps(client, answer)
        for number, _ in enumerate(steps):
            if not number:
                with self._lock:
                    self._server.drop_check_ins(client, row)
            yield

    # Settings

    def amend(self, /, *, features: Features | None = None, **changes: Unpack[Amendments]) -> list[str]:
        """Changes settings of the fleet from the next round on; returns the names of those that differ.

        Rounds so far count at the guaranteed rate that they were promised, later ones at the new rate. Turns, debts and
        what was learned stay; only new features make the fleet learn the times of all clients again. The change is an
        event of the journal: certificates, explanations and replays use the settings of each round.

        Args:
            features: The new features of the clients.
            changes: The settings that `SchedulerSettings` says can be amended; and `cohort_size`, `guaranteed_rate`,
                `tolerance` and `speed_weight` of the policy. In a wrapper, they belong to the policy inside that has
                them. With the policy `quota`, `groups` is a mapping from client ids to groups; other clients keep
                theirs.

        Raises:
            ReportError: If a round is open.
            SettingError: If a value is invalid, or no policy of the fleet has the setting.
            InfeasiblePromise: If the clients of the fleet cannot be given what the new settings promise, unless
                `allow_infeasible` is or was set.
        """
        return self._call(lambda: self._session.amend(features, dict(changes)))

    # Rounds

    @property
    def round(self) -> int:
        """The number of the open round, or of the last closed round; without rounds, of the last decision."""
        with self._lock:
            return self._session.memory.newest_round

    @property
    def open_round(self) -> OpenRound | None:
        """The open round: its cohort, its deadline and the reasons of the selection; None if no round is open."""
        with self._lock:
            return self._session.memory.opened

    def choose(self, statuses: Statuses, *, cold: Collection[str] = ()) -> list[str]:
        """Selects the cohort of the next round; while a round is open, returns its cohort again.

        Args:
            statuses: The available clients: a mapping of ids to statuses (a ClientStatus, a mapping with one number per
                declared feature, or None if nothing is known), a list of ids about which nothing is known, or a
                FleetStatus. For a client about which nothing is known, the features have their default values
                (`Feature.default`); the policy sees these, and the recorded offer contains them.
            cold: The ids of those whose exchange includes a start-up, because they have just connected or restarted:
                policies that learn from statuses do not learn how long it takes.

        Raises:
            OfferError: If an id or a status is invalid; no client joins and no round is opened.
        """
        return self._call(lambda: self._server.choose(statuses, as_ids("cold", cold)))

    def report(
        self,
        client: str | int,
        seconds: float | None = None,
        *,
        loss: float | None = None,
        signals: Mapping[str, float] | None = None,
        round: int | None = None,
    ) -> bool:
        """Records that the update of a client arrived; returns False if that was recorded before.

        Args:
            client: The id of the client; in a fleet with a `concurrency`, the id of the turn.
            seconds: The exchange time, from sending the model until the update arrived; by default the time since the
                selection.
            loss: The mean training loss of the client, for policies that use it. The loss of a late client is stored
                but not learned.
            signals: Numbers by the names of signals that the setting `signals` declares, for policies that use them. A
                number outside of its range, or NaN, is not recorded. Otherwise they are treated as losses.
            round: The round in which the client was selected; by default the latest.
        """
        with self._lock:
            client, number = self._server.turn_of(client, round)
            if seconds is None:
                number, seconds = self._server.elapsed(client, number)
        return self._record([Outcome(client, seconds, loss=loss, signals=signals, round=number)])[0]

    def report_many(
        self,
        seconds: Mapping[str, float],
        *,
        losses: Mapping[str, float] | None = None,
        signals: Mapping[str, Mapping[str, float]] | None = None,
        round: int | None = None,
    ) -> int:
        """Records arrivals in one transaction; returns how many are new. Some clients may lack losses and signals."""
        return sum(self._record(outcomes_of(seconds, losses, signals, round)))

    def report_failure(self, client: str | int, why: str, *, round: int | None = None) -> bool:
        """Records that a client failed, which does not change its learned speed; returns False if that was recorded.

        In a fleet with a `concurrency`, `client` is the id of the turn.
        """
        with self._lock:
            client, number = self._server.turn_of(client, round)
        return self._record([Outcome(client, why=why, round=number)])[0]

    def _record(self, outcomes: Sequence[Outcome]) -> list[bool]:
        return self._call(lambda: self._session.record(outcomes))

    def _call(self, function: Callable[[], Result]) -> Result:
        """Calls a function under the lock of the fleet; repeats it if the store was interrupted, except in a group."""
        with self._lock:
            return function() if self._session.is_grouping else repeat(function)

    @property
    def ready(self) -> bool:
        """Whether the round can be closed: enough clients or all have reported, or the deadline has passed."""
        with self._lock:
            opened = self._session.memory.opened
            if opened is None:
                return False
            turns = self._session.journal.turns_of(opened.round)
            arrived = sum(turn.kind == "arrived" for turn in turns)
            # If the time since the selection is unknown (NaN), no deadline can be waited for.
            is_over = opened.deadline is not None and not opened.elapsed < opened.deadline
            return arrived >= opened.target_size or all(turn.kind for turn in turns) or is_over

    def close_round(self, after: float | None = None) -> RoundRecord:
        """Closes the round with the clients that have reported.

        The policy learns that a missing client took at least the deadline, or `after` seconds if there is none (by
        default the time since the selection; if that is unknown, the client has failed). Its actual time replaces this
        bound if it is reported within 10 rounds.
        """
        return self._call(lambda: self._server.close_round(after))

    def abandon_round(self) -> None:
        """Cancels a round without any reports, as if its cohort had never been selected."""
        self._call(lambda: self._server.abandon_round())

    # Turns without rounds

    def fill(self, statuses: Statuses, *, cold: Collection[str] = ()) -> list[RunningTurn]:
        """Gives one client a turn for every free slot, in a fleet with a `concurrency`; returns the new turns.

        Turns whose results were reported, or whose deadline has passed, have ended: they are learned from, and their
        slots are free. The new turns are in the file before they are returned. Clients that have checked in compete
        with those that are passed here, and their turns are among those that are returned.

        Args:
            statuses: The available clients, as for `choose`; those that are training may be among them.
            cold: The ids of those that have just started, as for `choose`.

        With `min_present`, nobody is given a turn while fewer clients are there; `window_seconds` has no effect here.
        """
        return self._call(lambda: self._server.fill(statuses, as_ids("cold", cold)))

    def check_in(self, client: str, status: Status = None) -> RunningTurn | Wait:
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
        return self._call(lambda: self._server.check_in(client, status))

    def running(self) -> list[RunningTurn]:
        """Returns the turns whose results are not known yet, in a fleet with a `concurrency`; also after a crash."""
        with self._lock:
            return self._server.running()

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
        with self._lock:
            try:
                with self._session.grouping():
                    yield
            except BaseException:
                self._server.drop_check_ins()  # those of clients that have not joined after all are among them
                raise

    @contextmanager
    def _querying(self) -> Iterator[Journal]:
        with self._lock:
            yield self._session.journal

    def _state(self) -> FleetState:
        return self._session.memory

    def metrics(self) -> SchedulerMetrics:
        """Returns figures about this scheduler, for monitoring."""
        with self._lock:
            session = self._session
            return metrics_of(session.journal.file, session.memory, self._server.newest_turns(), session.refused)

    def compact(self) -> None:
        """Deletes everything that is no longer kept at once, and rewrites the file without unused space.

        It needs as much disk space again, and other processes cannot write meanwhile.
        """
        with self._lock:
            self._session.compact()

    def close(self) -> None:
        """Closes the file and the tracker; everything is already on disk."""
        self._session.close()

    def __repr__(self) -> str:
        state = f"clients={len(self.clients)}, round={self.round}, is_open={self.open_round is not None}"
        return f"Scheduler({str(self._session.location)!r}, policy={self.settings.policy!r}, {state})"


def _server_of(session: FleetSession) -> TurnServer:
    """Returns what gives the turns of a fleet; a server imports only the modules of its own kind."""
    if session.settings.has_rounds:
        from turnout.live.serving.rounds import RoundServer

        return RoundServer(session)
    from turnout.live.serving.slots import SlotServer

    return SlotServer(session)
