"""Where a ledger comes from: a run of a store, or the file of a fleet."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from turnout.dashboard.ledger import ARRIVED, FAILED, LATE, OFTEN_UP_TO, Ledger, Played
from turnout.dashboard.trained import measured, written_at
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray
from turnout.kernel.errors import ReportError, TurnoutError
from turnout.kernel.fairness import FairnessQueues
from turnout.kernel.rounds import RoundRecord, RoundReport, Selection
from turnout.policies.base import SelectionPolicy
from turnout.policies.guarantee import MostOwed
from turnout.policies.registry import filled, make_policy
from turnout.scheduler.explaining import explained
from turnout.scheduler.fleet import OUTCOME_OF_KIND
from turnout.scheduler.following import Followed, Follower
from turnout.scheduler.journal import Journal
from turnout.scheduler.memory import Memory
from turnout.scheduler.records import OpenRound, Turn
from turnout.scheduler.scheduler import Scheduler
from turnout.simulator.explaining import explain_run
from turnout.store import RunInfo, RunStore

_KIND_OF = {"arrived": ARRIVED, "late": LATE, "failed": FAILED}
EVENTS_AT_ONCE, OF_A_LARGE_FLEET = 20, 4


class Source(Protocol):
    """One run or fleet: its ledger, and what only it can say."""

    ledger: Ledger

    @property
    def name(self) -> str:
        """What pages call it."""

    @property
    def policy(self) -> str:
        """The policy's name."""

    @property
    def run(self) -> int | None:
        """Its number in a store of runs."""

    @property
    def planned(self) -> int | None:
        """How many rounds it should have, if that is known."""

    @property
    def finished(self) -> bool:
        """Whether no more will come."""

    def catch_up(self, seconds: float) -> tuple[int, int] | None:
        """Read on for about so long; (what was read, of how much) if there is more, None at the end."""

    def id_of(self, row: int) -> str:
        """What the client of this row is called."""

    def row_of(self, client: str) -> int:
        """The row of a client; ReportError if there is none."""

    def found(self, words: str, most: int) -> IntArray:
        """Rows of clients whose names contain these words, at most so many."""

    def explain(self, row: int, number: int) -> dict[str, Any]:
        """Why this client was chosen in a round, or was not."""

    def open_round(self) -> tuple[OpenRound, list[Turn]] | None:
        """The round that is open, if this is a fleet."""

    def failures(self, number: int) -> dict[int, str]:
        """Why clients failed in a round, by their rows, where they said so."""

    def measured(self) -> dict[str, tuple[IntArray, FloatArray]]:
        """What was measured of the model after which rounds, by name."""

    def notices(self) -> list[str]:
        """What a person should know."""

    def more_flags(self) -> dict[str, BoolArray]:
        """What is to be said of clients, that only this source knows."""

    def close(self) -> None:
        """Let go of the file."""


class RunSource:
    """A run of a store. Its policy is built anew and told what is on record."""

    def __init__(self, store: RunStore, info: RunInfo) -> None:
        self._store, self.info = store, info
        self.ledger = Ledger()
        self.trouble: str | None = None
        self.ledger.policy, self.trouble = _policy_of(info)
        self.ledger.join(info.clients)

    @property
    def name(self) -> str:
        """Its label, or its policy."""
        return name_of(self.info)

    @property
    def policy(self) -> str:
        """As its plan says."""
        return str(self.info.plan.get("policy", ""))

    @property
    def run(self) -> int | None:
        """Its number."""
        return self.info.id

    @property
    def planned(self) -> int | None:
        """As its plan says."""
        rounds = self.info.plan.get("rounds")
        return rounds if isinstance(rounds, int) else None

    @property
    def finished(self) -> bool:
        """As the store says."""
        return self.info.finished

    def catch_up(self, seconds: float) -> tuple[int, int] | None:
        """A chunk at a time."""
        end = time.monotonic() + seconds
        while len(self.ledger) < self.info.rounds:
            columns = self._store.columns(self.info.id, after=self.ledger.last, most=1)
            for record in columns.records():
                self.ledger.add(_played(record), partial(self._tell, record.report))
            if time.monotonic() > end:
                break
        done = len(self.ledger)
        return (done, self.info.rounds) if done < self.info.rounds else None

    def id_of(self, row: int) -> str:
        """Rows are all that a run knows of clients."""
        return str(row)

    def row_of(self, client: str) -> int:
        """Also c17, or client 17."""
        row = client.removeprefix("client ").removeprefix("c")
        if not row.isdecimal() or int(row) >= self.info.clients:
            raise ReportError(f"there is no client {client!r}: those of a run are called 0 to {self.info.clients - 1}")
        return int(row)

    def found(self, words: str, most: int) -> IntArray:
        """By the digits."""
        there = (row for row in range(self.info.clients) if words in str(row))
        return np.fromiter((row for row, _ in zip(there, range(most), strict=False)), dtype=np.int64)

    def explain(self, row: int, number: int) -> dict[str, Any]:
        """By playing it again up to there."""
        return asdict(explain_run(self._store, self.info.id, row, number))

    def open_round(self) -> tuple[OpenRound, list[Turn]] | None:
        """Rounds of a run are written when they are over."""
        return None

    def failures(self, number: int) -> dict[int, str]:  # noqa: ARG002
        """A run keeps no words."""
        return {}

    def measured(self) -> dict[str, tuple[IntArray, FloatArray]]:
        """As the rounds tell."""
        return {name: (where.all, what.all) for name, (where, what) in self.ledger.metrics.items()}

    def notices(self) -> list[str]:
        """Only that what it promised cannot be counted again here."""
        return [] if self.trouble is None else [self.trouble]

    def more_flags(self) -> dict[str, BoolArray]:
        """Nothing."""
        return {}

    def close(self) -> None:
        """The store is closed by whoever opened it."""

    def _tell(self, report: RoundReport) -> None:
        if self.ledger.policy is None:
            return
        try:
            self.ledger.policy.tell(report)
        except TurnoutError as refused:
            self.ledger.policy = None
            self.trouble = (
                f"What the policy of this run promised is not shown, as the record says too little: {refused}."
            )


class FleetSource:
    """The file of a live fleet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._follower = Follower(path)
        self.ledger = Ledger(debts_from=self._follower.fleet.round)

    @property
    def name(self) -> str:
        """That of its file."""
        return self._path.name

    @property
    def policy(self) -> str:
        """As its settings say."""
        return str(self._follower.settings.policy)

    @property
    def run(self) -> int | None:
        """A fleet has no runs."""
        return None

    @property
    def planned(self) -> int | None:
        """Nobody knows."""
        return None

    @property
    def finished(self) -> bool:
        """Never for sure."""
        return False

    @property
    def changes(self) -> tuple[int, float]:
        """Something else whenever somebody has written."""
        return self._follower.changes, written_at(self._path)

    def catch_up(self, seconds: float) -> tuple[int, int] | None:
        """A few events at a time."""
        end, of = time.monotonic() + seconds, self._follower.events
        while self._follower.read < of and time.monotonic() < end:
            large = self.ledger.clients > OFTEN_UP_TO
            for event in self._follower.next(OF_A_LARGE_FLEET if large else EVENTS_AT_ONCE):
                self._take(event)
        if self._follower.read >= self._follower.begins_after:
            self._adopt()
        return (self._follower.read, of) if self._follower.read < of else None

    def id_of(self, row: int) -> str:
        """As it called itself."""
        return self._follower.fleet.ids[row]

    def row_of(self, client: str) -> int:
        """By its id."""
        row = self._follower.fleet.rows.get(client)
        if row is None or row >= self.ledger.clients:
            raise ReportError(f"there is no client {client!r} in {self.name}: check the id")
        return row

    def found(self, words: str, most: int) -> IntArray:
        """By any part of the id, whatever its case."""
        part = words.casefold()
        ids = self._follower.fleet.ids[: self.ledger.clients]
        there = (row for row, client in enumerate(ids) if part in client.casefold())
        return np.fromiter((row for row, _ in zip(there, range(most), strict=False)), dtype=np.int64)

    def explain(self, row: int, number: int) -> dict[str, Any]:
        """A closed round by folding up to it again; one that is open by a scheduler that only reads."""
        follower = self._follower
        if number > follower.fleet.round:
            with Scheduler.open(self._path, read_only=True) as scheduler:
                return asdict(scheduler.explain(self.id_of(row), number))
        with closing(Journal(self._path, read_only=True)) as journal:
            memory = Memory(follower.fleet, None, 0)
            return asdict(explained(journal, memory, follower.settings, follower.features, row, number))

    def open_round(self) -> tuple[OpenRound, list[Turn]] | None:
        """What was handed out and is not closed yet."""
        return self._follower.open_round()

    def failures(self, number: int) -> dict[int, str]:
        """As they were reported."""
        return {turn.row: turn.why for turn in self._follower.journal.turns_of(number) if turn.why is not None}

    def measured(self) -> dict[str, tuple[IntArray, FloatArray]]:
        """As an adapter keeps it beside the fleet."""
        found = measured(self._path)
        last = self.ledger.last
        return {name: (rounds[rounds <= last], values[rounds <= last]) for name, (rounds, values) in found.items()}

    def notices(self) -> list[str]:
        """Of the settings, and of the clients' ways."""
        notices = []
        if self._follower.settings.deadline is None:
            notices.append("No deadline is set: a round in which a client never returns stays open until it is closed.")
        if self.ledger.debts_from:
            notices.append(
                f"A large fleet: who volunteered up to round {self.ledger.debts_from:,} is no longer on record, so "
                "debts are drawn from there on."
            )
        return notices

    def more_flags(self) -> dict[str, BoolArray]:
        """Who rests after misses, and who is seldom there."""
        fleet, clients = self._follower.fleet, self.ledger.clients
        seldom = np.zeros(clients, dtype=np.bool_)
        seldom[fleet.seldom_there()] = True
        return {"resting": fleet.numbers["rest_until"] > fleet.round, "seldom": seldom}

    def close(self) -> None:
        """Let go of the file."""
        self._follower.close()

    def _take(self, event: Followed) -> None:
        ledger, closed = self.ledger, event.closed
        if event.is_new:
            self._adopt()
        if closed is None:
            self._follower.take(event)
            if event.joined:
                ledger.join(event.joined)
            elif event.left is not None:
                ledger.leave(event.left)
            return
        report = RoundReport(
            closed.round,
            closed.rows,
            closed.contexts,
            closed.seconds,
            available=closed.available if event.knows_available else None,
            outcomes=OUTCOME_OF_KIND[closed.kinds],
            losses=closed.losses,
        )
        reasons: Mapping[str, Any] = {}
        if event.offered is not None:
            reasons = _aligned(Selection(closed.round, event.offered.rows, dict(event.offered.reasons)), report)
        # Of who failed it is not known when; the record puts it at the deadline.
        times = np.where(closed.kinds == FAILED, np.nan, closed.seconds)
        moments = {"opened": event.opened_at, "closed": event.closed_at, "between": event.between}
        played = Played(report, closed.kinds, times, reasons, **moments)
        ledger.add(played, (lambda: self._follower.take(event)) if event.is_new else None)

    def _adopt(self) -> None:
        """From here on memory goes along: its policy is the ledger's."""
        ledger, fleet = self.ledger, self._follower.fleet
        if ledger.policy is not None or not fleet.ids:
            return
        ledger.policy = fleet.policy
        if self._follower.begins_after:
            ledger.numbers["volunteered"], ledger.knows_available = fleet.numbers["offered"].copy(), True
            if fleet.model is not None:  # what it knows of the clients' ways began before the record here does
                ledger.sums |= {name: array.copy() for name, array in fleet.ways.items()}
            if ledger.queues is not None:
                exactly = ledger.queues.owed_exactly()
                ledger.start_units = exactly.units + exactly.credit


def name_of(info: RunInfo) -> str:
    """The label of a run, or its policy, with the settings that tell it from others."""
    plan = info.plan
    if plan.get("label"):
        return str(plan["label"])
    told = plan.get("settings") or {}
    settings = ", ".join(f"{key} {value}" for key, value in told.items()) if isinstance(told, Mapping) else ""
    return f"{plan.get('policy', info.key)}{f' ({settings})' if settings else ''}"


def _policy_of(info: RunInfo) -> tuple[SelectionPolicy | None, str | None]:
    """A new one like that of the run, and what to say if it cannot be made here."""
    plan = info.plan
    try:
        own = {"seed": plan.get("seed", 0), "allow_infeasible": True}
        name, settings = str(plan["policy"]), dict(plan.get("settings") or {})
        policy = make_policy(name, info.clients, **filled(name, settings, own))
        return (_promise_of(policy) if plan.get("keep") == "choices" else policy), None
    except (TurnoutError, LookupError, TypeError, ValueError) as cannot:
        return None, f"The policy of this run cannot be built here ({cannot}): what it promised is not shown."


def _promise_of(policy: SelectionPolicy) -> SelectionPolicy | None:
    """Of a run that keeps no contexts its promise can be counted again, but nothing can be learned."""
    queues = getattr(policy, "queues", None)
    if not isinstance(queues, FairnessQueues):
        return None
    paid: Any = getattr(getattr(policy, "debts", policy), "paid", "chosen")
    promise = MostOwed(policy.clients, guaranteed_rate=0.0, paid=paid, allow_infeasible=True)
    promise.queues = queues
    return promise


def _played(record: RoundRecord) -> Played:
    report = record.report
    kinds = np.zeros(len(report.clients), dtype=np.int64)
    if report.outcomes is not None:
        kinds = np.array([_KIND_OF[str(word)] for word in report.outcomes], dtype=np.int64)
    return Played(report, kinds, report.exchange_times, _aligned(record.selection, report))


def _aligned(selection: Selection, report: RoundReport) -> dict[str, Any]:
    """Reasons in the order of the report; those of the whole cohort as they are."""
    order = np.argsort(selection.clients, kind="stable")
    place = order[np.searchsorted(selection.clients, report.clients, sorter=order)] if len(order) else order
    return {
        word: value[place] if np.ndim(value) == 1 and len(value) == len(order) else value
        for word, value in selection.reasons.items()
    }
