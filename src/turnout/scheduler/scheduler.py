"""Chooses for a live fleet, and forgets nothing."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from turnout.errors import OfferError, ReportError, SettingError, StoreError
from turnout.kernel.arrays import IntArray, as_number
from turnout.kernel.fairness import Certificate
from turnout.kernel.rounds import RoundRecord, Selection
from turnout.policies.base import SelectionPolicy
from turnout.policies.explain.explanation import Explanation
from turnout.policies.registry import nested_settings
from turnout.scheduler.audit.explain import explain_client
from turnout.scheduler.clock import now
from turnout.scheduler.features import PAPER_FEATURES, Features
from turnout.scheduler.journal.events import decode_event, event_to_dict
from turnout.scheduler.journal.journal import Journal
from turnout.scheduler.journal.replay import live_policy, load, resolve_features
from turnout.scheduler.records import OpenRound, Turn, pack_closed
from turnout.scheduler.reporter import Outcome, outcomes_of, record
from turnout.scheduler.rounds.choosing import Statuses, build_open_round
from turnout.scheduler.rounds.closing import build_closed_round
from turnout.scheduler.rounds.state import Fleet
from turnout.scheduler.settings import SchedulerSettings
from turnout.scheduler.status import SchedulerStatus, status_of

log = logging.getLogger("turnout.scheduler")
EXPORTED_AT_ONCE = 100


class Scheduler:
    """Statuses in, a cohort out, outcomes back, and a round is closed; all of it in one file.

    A choice is in the file before it is handed out, an outcome before `report` returns. What was killed goes on where
    it was: open the file again. Threads may share a scheduler; other processes report through `Reporter`, and read with
    `read_only=True`.
    """

    def __init__(self, journal: Journal, settings: SchedulerSettings, features: Features) -> None:
        self._journal, self.settings, self.features = journal, settings, features
        self._turn = threading.RLock()
        self._memory = load(journal, settings, features)
        if not journal.read_only:
            for notice in self.notices():
                log.warning("%s: %s", journal.path, notice)

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        features: Features | None = None,
        read_only: bool = False,
        takeover: bool = False,
        **settings: Any,
    ) -> Scheduler:
        """Open the fleet at `path`, or begin one with these settings (SchedulerSettings has them all).

        An existing file keeps its settings; others than those that stand in it are refused. `takeover`: go on although
        another process holds the file, because that one hangs; it can then no longer write.
        """
        place = Path(path)
        if not place.exists():
            if read_only:
                raise StoreError(f"there is no fleet at {place}: check the path")
            _begin(place, SchedulerSettings.from_given(settings), features or PAPER_FEATURES)
        journal = Journal(place, read_only=read_only, takeover=takeover)
        try:
            stored = journal.settings
            kept = SchedulerSettings.from_told(stored)
            kept.check_same(settings, place)
            return cls(journal, kept, resolve_features(stored["features"], features, place, read_only))
        except BaseException:
            journal.close()
            raise

    @property
    def path(self) -> Path:
        """The fleet's file."""
        return self._journal.path

    # Clients

    @property
    def clients(self) -> list[str]:
        """All ids, in order of their rows."""
        with self._turn:
            return list(self._fleet.ids)

    def rows(self, ids: Sequence[str]) -> IntArray:
        """The rows of these clients, for a FleetStatus."""
        with self._turn:
            return np.array([self._row(client) for client in ids], dtype=np.int64)

    def register(self, ids: Sequence[str]) -> int:
        """Let clients join before they are first offered; how many are new."""
        with self._turn:
            self._refuse_while_open("register clients")
            fresh, first = self._fresh(ids), len(self._fleet.ids)
            try:
                self._fleet.join(fresh)  # refused before anything is written, if it must be
                with self._journal.writing() as db:
                    self._journal.add_clients(db, first, fresh)
            except BaseException:
                self._reload()
                raise
            return len(fresh)

    def retire(self, client: str) -> None:
        """It has left for good: it is not chosen any more, and what it is owed stays in the certificate."""
        with self._turn:
            self._refuse_while_open("retire a client")
            row = self._row(client)
            with self._journal.writing() as db:
                self._journal.add_event(db, "retire", json.dumps({"row": row}).encode())
            self._fleet.retire(row)

    def forget(self, client: str) -> None:
        """Remove its id and all that was reported about it, and retire it; only sums for the certificate stay."""
        with self._turn:
            self._refuse_while_open("forget a client")
            row = self._row(client)
            name = f"forgotten-{row}"
            while name in self._fleet.rows:
                name += "-"
            try:
                self._fleet.forget(row, name)
                with self._journal.writing() as db:
                    last = self._journal.forget(db, row, client, name)
                    self._journal.put_snapshot(db, last, self._memory.state())
            except BaseException:
                self._reload()
                raise
            self._journal.checkpoint_wal()
            self._memory.unsaved = 0

    # Rounds

    @property
    def round(self) -> int:
        """The round that is open, or the last that was closed."""
        with self._turn:
            return self._fleet.round if self._opened is None else self._opened.round

    @property
    def open_round(self) -> OpenRound | None:
        """What was handed out and is not closed yet: who, until when, and why."""
        with self._turn:
            return self._opened

    def choose(self, statuses: Statuses) -> list[str]:
        """Who trains in the next round; if one is open, its cohort again, whatever the statuses are."""
        with self._turn:
            if self._opened is not None:
                self._journal.check_writer()
            opened = self._opened or self._begin_round(statuses)
            return [self._fleet.ids[row] for row in opened.rows.tolist()]

    def report(
        self,
        client: str,
        seconds: float | None = None,
        *,
        loss: float | None = None,
        round: int | None = None,
    ) -> bool:
        """It came back after so many seconds, by default since the choice; False if that was known.

        `loss`: its mean training loss, for policies that choose by it. Of a late client it is kept and not learned.
        """
        if seconds is None:
            with self._turn:
                opened = self._need_open()
                if round not in (None, opened.round):
                    raise ReportError(f"round {opened.round} is open: tell how many seconds {client!r} took in {round}")
                return self._record([Outcome(client, opened.elapsed, round=opened.round, loss=loss)])[0]
        return self._record([Outcome(client, seconds, round=round, loss=loss)])[0]

    def report_many(
        self,
        seconds: Mapping[str, float],
        *,
        losses: Mapping[str, float] | None = None,
        round: int | None = None,
    ) -> int:
        """Many at once, in one transaction; how many were news. `losses`: of all of them, or of some."""
        return sum(self._record(outcomes_of(seconds, losses, round)))

    def failed(self, client: str, why: str, *, round: int | None = None) -> bool:
        """The former name of `report_failure`."""
        return self.report_failure(client, why, round=round)

    def report_failure(self, client: str, why: str, *, round: int | None = None) -> bool:
        """It will not come back in this round, which says nothing about its speed; False if that was known."""
        return self._record([Outcome(client, why=why, round=round)])[0]

    def predicted(self) -> dict[str, float]:
        """The former name of `predicted_seconds`."""
        return self.predicted_seconds()

    def predicted_seconds(self) -> dict[str, float]:
        """How many seconds each of the open round should take, of those whose times were learned from."""
        with self._turn:
            opened, model = self._need_open(), self._fleet.model
            if model is None:
                return {}
            known = self._fleet.counters.learned[opened.rows] > 0
            rows = opened.rows[known]
            times = model.predict(opened.contexts[known], rows)
            return {self._fleet.ids[row]: seconds for row, seconds in zip(rows.tolist(), times.tolist(), strict=True)}

    def elapsed(self) -> float:
        """Seconds since the choice: by the monotonic clock, unless the machine was started anew in between."""
        with self._turn:
            return self._need_open().elapsed

    @property
    def ready(self) -> bool:
        """Whether there is nothing left to wait for: enough are back, all were heard of, or time is up."""
        with self._turn:
            opened = self._opened
            if opened is None:
                return False
            turns = self._journal.turns_of(opened.round)
            back = sum(turn.kind == "arrived" for turn in turns)
            late = opened.deadline is not None and opened.elapsed >= opened.deadline
            return back >= opened.wanted or all(turn.kind for turn in turns) or late

    def close_round(self, after: float | None = None) -> RoundRecord:
        """End the round with whoever is back.

        Who is missing is learned as late after the deadline; without one after `after` seconds, by default those since
        the choice. When it comes back within the window, its true time takes that place.
        """
        with self._turn:
            opened = self._need_open()
            if after is not None:
                as_number("after", after, ReportError, above=0)
            with self._journal.writing() as db:
                waiting = self._journal.pending_late_turns()
                closed, turns = build_closed_round(opened, self._journal.turns_of(opened.round), waiting, after)
                self._fleet.build_report(closed)  # refused before anything is written, if it must be
                self._journal.add_clients(db, len(self._fleet.ids) - len(opened.joined), opened.joined)
                data, mask = pack_closed(closed, opened=opened.opened, closed=now(), wanted=opened.wanted)
                self._journal.add_event(db, "close", data, mask)
                self._journal.put_closed_round(db, opened.round)
                self._journal.put_turns(db, [*turns, *(replace(turn, folded=opened.round) for turn in waiting)])
                self._journal.drop_open_round(db)
            report = self._fleet.close(closed)
            self._memory.opened = None
            self._memory.unsaved += 1
            if self._memory.unsaved >= self._snapshot_every:
                try:
                    self.snapshot()
                except StoreError as trouble:  # the round is closed all the same
                    log.warning("no snapshot was taken: %s", trouble)
            return RoundRecord(Selection(opened.round, opened.rows, dict(opened.reasons)), report)

    def abandon_round(self) -> None:
        """Undo a round that was never used: as if it had not been chosen."""
        with self._turn:
            opened = self._need_open()
            with self._journal.writing() as db:
                heard = [turn.id for turn in self._journal.turns_of(opened.round) if turn.kind]
                if heard:
                    raise ReportError(f"round {opened.round} was used ({heard[0]!r} has reported): close it instead")
                self._journal.drop_open_round(db)
                self._journal.drop_offer(db, opened.round)
                db.execute("DELETE FROM turns WHERE round = ?", (opened.round,))
            self._reload()

    # What is known

    @property
    def policy(self) -> SelectionPolicy:
        """The policy that selects; reading it is safe, changing it is not."""
        with self._turn:
            return self._fleet.policy

    @property
    def promises(self) -> bool:
        """The former name of `has_guarantee`."""
        return self.has_guarantee

    @property
    def has_guarantee(self) -> bool:
        """Whether the policy guarantees anything, so that there is a certificate."""
        with self._turn:
            return self._fleet.policy.guarantee is not None

    def certificate(self) -> Certificate:
        """What every client was promised and what it got, by rows."""
        with self._turn:
            certificate = self._fleet.policy.certificate()
            if certificate is None:
                raise SettingError(f"the policy {self.settings.policy} guarantees nothing: use rbcsf for a certificate")
            return certificate

    def explain(self, client: str, round: int | None = None) -> Explanation:
        """Why a client was chosen in a round, by default the newest, or why not, and what it lacked."""
        with self._turn:
            number = self.round if round is None else round
            return explain_client(self._journal, self._memory, self.settings, self.features, self._row(client), number)

    def status(self) -> SchedulerStatus:
        """Where the fleet stands, for a person to read."""
        with self._turn:
            turns = [] if self._opened is None else self._journal.turns_of(self._opened.round)
            elapsed = 0.0 if self._opened is None else self._opened.elapsed
            return status_of(self._fleet, self._opened, turns, elapsed, self.notices())

    def history(self, client: str) -> list[Turn]:
        """All turns of a client, first to last, and what became of each."""
        with self._turn:
            self._row(client)
            return self._journal.turns_of_client(client)

    def turns(self, round: int | None = None) -> list[Turn]:
        """Everyone who was invited in a round, by default the newest, and what became of each."""
        with self._turn:
            return self._journal.turns_of(self.round if round is None else round)

    def reliability(self, client: str) -> float:
        """How likely it is to come back, from how often it has."""
        with self._turn:
            return float(self._fleet.history.reliability[self._row(client)])

    def doubted(self) -> list[str]:
        """The former name of `suspect_clients`."""
        return self.suspect_clients()

    def suspect_clients(self) -> list[str]:
        """Clients whose reported context has stopped explaining their times; they lose no turns for it."""
        with self._turn:
            return [self._fleet.ids[row] for row in np.flatnonzero(self._fleet.history.suspects()).tolist()]

    def notices(self) -> list[str]:
        """What a person should know about this fleet's settings and clients."""
        notices = []
        if self.settings.deadline is None:
            notices.append("no deadline is set: a round in which a client never returns stays open until it is closed")
        with self._turn:
            seldom = [self._fleet.ids[row] for row in self._fleet.rarely_available().tolist()]
        if seldom:
            notices.append(
                f"{', '.join(seldom[:5])} volunteered for fewer rounds than were promised: lower guaranteed_rate, or "
                "use accrual='available'"
            )
        queues = self._fleet.queues
        forfeited = 0 if queues is None or not self._fleet.ids else int((queues.forfeited >= 1).sum())
        if forfeited:
            notices.append(
                f"{forfeited:,} clients have forfeited turns to the cap: raise max_owed or lower speed_weight"
            )
        doubted = self.doubted()
        if doubted:
            notices.append(f"what {', '.join(doubted[:5])} reported no longer explains the times: look at them")
        return notices

    def export(self) -> Iterator[dict[str, Any]]:
        """Everything that happened, one event after the other, for an audit."""
        last, joined = 0, 0
        while True:
            events = []
            with self._turn:  # a few at a time, so that others can go on meanwhile
                for stored in self._journal.events(last, EXPORTED_AT_ONCE):
                    event = decode_event(*stored, self._fleet.ids, joined)
                    joined += len(event.clients) if event.kind == "joined" else 0
                    events.append(event_to_dict(event))
            yield from events
            if len(events) < EXPORTED_AT_ONCE:
                return
            last += len(events)

    def state(self) -> dict[str, Any]:
        """Memory as plain arrays and numbers: the same for the same history."""
        with self._turn:
            return self._memory.state()

    def snapshot(self) -> None:
        """Save memory, so that opening the file need not fold all rounds again; done by itself now and then."""
        with self._turn:
            self._refuse_while_open("take a snapshot")
            with self._journal.writing() as db:
                self._journal.put_snapshot(db, self._journal.last_event(), self._memory.state())
            self._memory.unsaved = 0

    def close(self) -> None:
        """Let go of the file; nothing is lost by not doing so."""
        self._journal.close()

    def __enter__(self) -> Scheduler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _fleet(self) -> Fleet:
        return self._memory.fleet

    @property
    def _opened(self) -> OpenRound | None:
        return self._memory.opened

    @property
    def _snapshot_every(self) -> int:
        """Rounds between snapshots: more for large fleets, whose snapshots are large."""
        return min(max(len(self._fleet.ids) // 2000, 50), 500)

    def _begin_round(self, statuses: Statuses) -> OpenRound:
        joined = self._fresh(statuses) if isinstance(statuses, Mapping) else []
        try:
            self._fleet.join(joined)
            opened, offered = build_open_round(self._fleet, self.features, self.settings, statuses, tuple(joined))
            with self._journal.writing() as db:
                self._journal.put_open_round(db, opened, [self._fleet.ids[row] for row in opened.rows.tolist()])
                self._journal.put_offer(db, offered)
        except BaseException:
            if joined:
                self._reload()
            raise
        self._memory.opened = opened
        return opened

    def _record(self, outcomes: Sequence[Outcome]) -> list[bool]:
        with self._turn:
            return record(self._journal, outcomes, self.settings.late_window)

    def _reload(self) -> None:
        self._memory = load(self._journal, self.settings, self.features)

    def _need_open(self) -> OpenRound:
        if self._opened is None:
            raise ReportError("no round is open: choose first")
        return self._opened

    def _refuse_while_open(self, what: str) -> None:
        if self._opened is not None:
            raise ReportError(f"round {self._opened.round} is open: close or abandon it before you {what}")

    def _fresh(self, ids: Sequence[str] | Mapping[str, Any]) -> list[str]:
        if isinstance(ids, str):
            raise OfferError(f"give a list of ids, not {ids!r}")
        fresh = dict.fromkeys(client for client in ids if client not in self._fleet.rows)
        for client in fresh:
            if not isinstance(client, str) or not client or "\0" in client or not _is_writable(client):
                raise OfferError(f"a client is known by its id, a word, not {client!r}")
        return [str.__str__(client) for client in fresh]  # plain: a NumPy word is written in another way

    def _row(self, client: str) -> int:
        row = self._fleet.rows.get(client)
        if row is None:
            raise ReportError(f"there is no client {client!r} in {self._journal.path}: check the id")
        return row


def _is_writable(word: str) -> bool:
    """Half of a character (a lone surrogate) cannot be stored."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def _begin(path: Path, settings: SchedulerSettings, features: Features) -> None:
    """A new file; what cannot be built is refused before there is one."""
    every = nested_settings(settings.policy, settings.settings)
    if any("group_rates" in own and len(own.get("groups") or ()) != 1 for _, own in every):
        raise SettingError(
            "a live fleet does not know its clients at the start, so it cannot guarantee turns to groups of them: "
            "leave out groups and group_rates, or simulate"
        )
    live_policy(settings, features.outputs, 1)
    Journal.make(path, {**settings.told(), "features": features.told()})
