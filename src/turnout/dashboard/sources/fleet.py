"""A live fleet, read from its file into a ledger."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from turnout.dashboard.sources.base import align_reasons
from turnout.dashboard.sources.ledger import EVERY_ROUND_UP_TO, Ledger, PlayedRound
from turnout.dashboard.sources.training import read_training_metrics
from turnout.errors import ReportError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray
from turnout.kernel.rounds import RoundReport, Selection
from turnout.live import Amendment, FleetEvent, FleetReader, Turn
from turnout.live._internals import (
    FAILED,
    Flight,
    OpenRound,
    RecordedRound,
    WriterFigures,
    explain_closed_round,
    journal_of,
    read_totals,
)
from turnout.policies.explain.explanation import Explanation
from turnout.storage.training_log import TrainingLog

EVENTS_PER_POLL, EVENTS_PER_POLL_LARGE = 20, 4
#: The number of amendments that the page lists, the newest ones.
SHOWN_AMENDMENTS = 5


class FleetSource:
    """The source of a live fleet.

    Args:
        reader: Reads the fleet; `close` closes it.
    """

    _no_deadline = "No deadline is set: a round stays open until every selected client replies or the round is closed."

    def __init__(self, reader: FleetReader) -> None:
        self._reader, self._path = reader, reader.path
        self._follower = reader.follow()
        self.trouble: str | None = None
        self.ledger = self._make_ledger()
        self._add_dropped_rounds()
        self._events = self._reader.last_event
        self._amendments: list[Amendment] = []

    @property
    def name(self) -> str:
        """The name of the file."""
        return self._path.name

    @property
    def policy(self) -> str:
        """The policy named in the settings of the fleet."""
        return str(self._reader.settings.policy)

    @property
    def run(self) -> int | None:
        """None: a fleet has no runs."""
        return None

    @property
    def planned(self) -> int | None:
        """None: the number of rounds of a fleet is not planned."""
        return None

    @property
    def finished(self) -> bool:
        """False: a scheduler can always add rounds."""
        return False

    @property
    def changes(self) -> tuple[int, float]:
        """A value that changes with every write to the fleet or its training log."""
        return self._reader.changes, TrainingLog(self._path).written_at

    @property
    def reading(self) -> tuple[int, int] | None:
        """The numbers of events read and of events stored at the last check; None if all events have been read."""
        position = self._follower.position
        return (position, self._events) if position < self._events else None

    def catch_up(self, seconds: float) -> None:
        """Reads a few events at a time, so that it stops soon after `seconds`."""
        end = time.monotonic() + seconds
        self._events = self._reader.last_event
        while self._follower.position < self._events and time.monotonic() < end:
            is_large = self.ledger.clients > EVERY_ROUND_UP_TO
            for event in self._follower.poll(EVENTS_PER_POLL_LARGE if is_large else EVENTS_PER_POLL):
                self._apply(event)
        if self._follower.position >= self._follower.starts_after:
            self._adopt_policy()

    def id_of(self, row: int) -> str:
        """Returns the id under which the client joined."""
        return self._follower.fleet.ids[row]

    def row_of(self, client: str) -> int:
        """Returns the row of a client id."""
        row = self._follower.fleet.rows.get(client)
        if row is None or row >= self.ledger.clients:
            raise ReportError(f"there is no client {client!r} in {self.name}: check the id")
        return row

    def search(self, query: str, limit: int) -> IntArray:
        """Returns the rows of at most `limit` clients whose ids contain `query`, ignoring case."""
        part = query.casefold()
        ids = self._follower.fleet.ids[: self.ledger.clients]
        matches = (row for row, client in enumerate(ids) if part in client.casefold())
        return np.fromiter((row for row, _ in zip(matches, range(limit), strict=False)), dtype=np.int64)

    def explain(self, row: int, number: int) -> Explanation:
        """Explains a closed round by replaying the journal up to it, an open round with the newest state."""
        fleet = self._follower.fleet
        if number > fleet.round:
            return self._reader.explain(self.id_of(row), number)
        return explain_closed_round(self._reader, fleet, row, number)

    def open_round(self) -> tuple[OpenRound, list[Turn]] | None:
        """Returns the open round and its turns; None if no round is open."""
        return self._reader.open_round()

    def in_flight(self) -> list[tuple[Flight, Turn]]:
        """Returns an empty list: all turns of a round are those of the open round."""
        return []

    def writer(self) -> tuple[WriterFigures, int] | None:
        """Returns figures about the process that writes the fleet, and the age of its snapshot in rounds."""
        figures = self._reader.writer()
        return figures, figures.snapshot_age

    def failures(self, number: int) -> dict[int, str]:
        """Returns the reported reasons of the failures in a round, by row."""
        return {turn.row: turn.why for turn in self._reader.history(round=number) if turn.why is not None}

    def training_metrics(self) -> dict[str, tuple[IntArray, FloatArray]]:
        """Returns the metrics that an adapter recorded next to the fleet, up to the last closed round."""
        metrics = read_training_metrics(self._path)
        last = self.ledger.last_round
        return {name: (rounds[rounds <= last], values[rounds <= last]) for name, (rounds, values) in metrics.items()}

    def notices(self) -> list[str]:
        """Returns messages about the settings and about data that are not recorded."""
        notices, noun = [], self.ledger.unit
        if self._reader.settings.deadline is None:
            notices.append(self._no_deadline)
        if self.ledger.first_after:
            notices.append(
                f"{noun.capitalize()}s up to {self.ledger.first_after:,} are no longer kept (keep_rounds). Totals "
                f"contain them, charts begin with the next {noun}."
            )
        if self.ledger.debts_from > self.ledger.first_after:
            notices.append(
                f"Availability up to {noun} {self.ledger.debts_from:,} is no longer stored because this fleet is "
                f"large. Debts are shown from the next {noun} on."
            )
        notices.extend(
            f"The settings were {amendment.sentence()}." for amendment in self._amendments[-SHOWN_AMENDMENTS:]
        )
        return notices

    def extra_flags(self) -> dict[str, BoolArray]:
        """Returns which clients back off after missed turns and which are rarely available."""
        fleet, clients = self._follower.fleet, self.ledger.clients
        rarely_available = np.zeros(len(fleet.ids), dtype=np.bool_)
        rarely_available[fleet.rarely_available()] = True
        backing_off = fleet.counters.backing_off(fleet.round)
        # While the ledger reads events before the snapshot, the fleet has more clients than the ledger.
        return {"backing_off": backing_off[:clients], "rarely_available": rarely_available[:clients]}

    def close(self) -> None:
        """Closes the file."""
        self._reader.close()

    def _make_ledger(self) -> Ledger:
        return Ledger(debts_from=self._follower.fleet.round, first_after=self._follower.summary.round)

    def _add_dropped_rounds(self) -> None:
        """Adds the clients that joined, and the turns that were taken, in rounds that are no longer kept."""
        summary, fleet = self._follower.summary, self._follower.fleet
        if summary.event:
            joined, left = fleet.counters.joined[: summary.clients], fleet.counters.retired[: summary.clients] > 0
            with journal_of(self._reader).reading() as db:
                totals = read_totals(db)
            self.ledger.begin(summary.clients, joined, left, totals)

    def _apply(self, event: FleetEvent) -> None:
        is_ahead = self._follower.is_ahead(event.number)
        if is_ahead:
            self._adopt_policy()
        if event.closed is not None:
            tell = (lambda: self._follower.apply(event)) if is_ahead else None
            self.ledger.add(self._to_played_round(event.closed), tell)
            return
        if event.amended is not None:
            self._amend(event, event.amended)
            return
        self._follower.apply(event)
        if event.kind == "joined":
            self.ledger.join(len(event.clients))
        else:
            self.ledger.leave(event.rows[0])

    def _amend(self, event: FleetEvent, amendment: Amendment) -> None:
        self._amendments.append(amendment)
        if not self._follower.is_ahead(event.number):
            return  # the initial state has these settings already
        self._follower.apply(event)
        if self.ledger.policy is not None:
            self.ledger.amend(self._follower.fleet.policy)

    def _to_played_round(self, closed: RecordedRound) -> PlayedRound:
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
            reasons = align_reasons(Selection(closed.round, offer.rows, dict(offer.reasons)), report)
        # The exchange time of a failed client is unknown; the journal records how long the server waited for it.
        times = np.where(closed.kinds == FAILED, np.nan, closed.seconds)
        opened, ended = closed.opened.timestamp(), closed.closed.timestamp()
        closed_before = self.ledger.round_column("closed")
        between = opened - closed_before[-1] if len(closed_before) else np.nan
        return PlayedRound(report, closed.kinds, times, reasons, opened=opened, closed=ended, between=between)

    def _adopt_policy(self) -> None:
        """Lets the ledger use the policy of the replayed fleet, once both have reached the same event."""
        ledger, fleet = self.ledger, self._follower.fleet
        if ledger.policy is not None or not fleet.ids:
            return
        ledger.policy = fleet.policy
        if fleet.model is not None:  # a fleet without a time model keeps no prediction errors; the ledger does
            ledger.use_history(fleet.history)
        if self._follower.starts_after:
            ledger.counters["volunteered"], ledger.knows_availability = fleet.counters.offered.copy(), True
            if ledger.queues is not None:
                exact = ledger.queues.owed_exactly()
                ledger.initial_units = exact.units + exact.credit
                ledger.initial_units_per_turn = ledger.queues.units_per_turn
                ledger.judge_snapshot(fleet.counters.broken_since)
