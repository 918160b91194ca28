"""The file of a live fleet, read into a ledger."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from turnout.dashboard.sources.base import aligned
from turnout.dashboard.sources.ledger import OFTEN_UP_TO, Ledger, Played
from turnout.dashboard.sources.training import measured
from turnout.errors import ReportError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray
from turnout.kernel.rounds import RoundReport, Selection
from turnout.scheduler import (
    FAILED,
    FleetEvent,
    FleetReader,
    OpenRound,
    RecordedRound,
    Scheduler,
    Turn,
    explain_closed_round,
)
from turnout.store.training_log import TrainingLog

EVENTS_AT_ONCE, OF_A_LARGE_FLEET = 20, 4


class FleetSource:
    """The file of a live fleet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reader = FleetReader(path)
        try:
            self._follower = self._reader.follow()
        except BaseException:
            self._reader.close()
            raise
        self.ledger = Ledger(debts_from=self._follower.fleet.round)
        self._events = self._reader.last_event

    @property
    def name(self) -> str:
        """That of its file."""
        return self._path.name

    @property
    def policy(self) -> str:
        """As its settings say."""
        return str(self._reader.settings.policy)

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
        return self._reader.changes, TrainingLog(self._path).written_at

    @property
    def reading(self) -> tuple[int, int] | None:
        """Events read, and events on record when it was last looked at."""
        done = self._follower.position
        return (done, self._events) if done < self._events else None

    def catch_up(self, seconds: float) -> None:
        """A few events at a time."""
        end = time.monotonic() + seconds
        self._events = self._reader.last_event
        while self._follower.position < self._events and time.monotonic() < end:
            large = self.ledger.clients > OFTEN_UP_TO
            for event in self._follower.poll(OF_A_LARGE_FLEET if large else EVENTS_AT_ONCE):
                self._take(event)
        if self._follower.position >= self._follower.starts_after:
            self._adopt()

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
        fleet = self._follower.fleet
        if number > fleet.round:
            with Scheduler.open(self._path, read_only=True) as scheduler:
                return asdict(scheduler.explain(self.id_of(row), number))
        return asdict(explain_closed_round(self._reader, fleet, row, number))

    def open_round(self) -> tuple[OpenRound, list[Turn]] | None:
        """What was handed out and is not closed yet."""
        return self._reader.open_round()

    def failures(self, number: int) -> dict[int, str]:
        """As they were reported."""
        return {turn.row: turn.why for turn in self._reader.turns(number) if turn.why is not None}

    def measured(self) -> dict[str, tuple[IntArray, FloatArray]]:
        """As an adapter keeps it beside the fleet."""
        found = measured(self._path)
        last = self.ledger.last
        return {name: (rounds[rounds <= last], values[rounds <= last]) for name, (rounds, values) in found.items()}

    def notices(self) -> list[str]:
        """Of the settings, and of the clients' ways."""
        notices = []
        if self._reader.settings.deadline is None:
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
        seldom = np.zeros(len(fleet.ids), dtype=np.bool_)
        seldom[fleet.rarely_available()] = True
        resting = fleet.counters.backing_off(fleet.round)
        # As long as the ledger reads what lies before the snapshot, the fleet has more clients than the ledger.
        return {"resting": resting[:clients], "seldom": seldom[:clients]}

    def close(self) -> None:
        """Let go of the file."""
        self._reader.close()

    def _take(self, event: FleetEvent) -> None:
        is_ahead = self._follower.is_ahead(event.number)
        if is_ahead:
            self._adopt()
        if event.closed is not None:
            self.ledger.add(self._played(event.closed), (lambda: self._follower.apply(event)) if is_ahead else None)
            return
        self._follower.apply(event)
        if event.kind == "joined":
            self.ledger.join(len(event.clients))
        else:
            self.ledger.leave(event.rows[0])

    def _played(self, closed: RecordedRound) -> Played:
        report = RoundReport(
            closed.round,
            closed.rows,
            closed.contexts,
            closed.seconds,
            available=closed.available,
            outcomes=closed.outcomes,
            losses=closed.losses,
        )
        reasons: Mapping[str, Any] = {}
        offer = self._reader.offer(closed.round)
        if offer is not None:
            reasons = aligned(Selection(closed.round, offer.rows, dict(offer.reasons)), report)
        # It is not known when a client failed; the record puts it at the deadline.
        times = np.where(closed.kinds == FAILED, np.nan, closed.seconds)
        opened, ended = closed.opened.timestamp(), closed.closed.timestamp()
        before = self.ledger.round_column("closed")
        between = opened - before[-1] if len(before) else np.nan
        return Played(report, closed.kinds, times, reasons, opened=opened, closed=ended, between=between)

    def _adopt(self) -> None:
        """From here on memory goes along: its policy is the ledger's."""
        ledger, fleet = self.ledger, self._follower.fleet
        if ledger.policy is not None or not fleet.ids:
            return
        ledger.policy = fleet.policy
        if fleet.model is not None:  # without a model of its own a fleet does not judge predictions; the ledger does
            ledger.share_history(fleet.history)
        if self._follower.starts_after:
            ledger.numbers["volunteered"], ledger.knows_available = fleet.counters.offered.copy(), True
            if ledger.queues is not None:
                exactly = ledger.queues.owed_exactly()
                ledger.start_units = exactly.units + exactly.credit
