"""A live fleet, read from its file into a ledger."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from turnout.closing import close_on_error
from turnout.counting import pluralize
from turnout.dashboard.sources.base import Source, align_reasons
from turnout.dashboard.sources.columns import Decision, Outcomes
from turnout.dashboard.sources.ledger import EVERY_ROUND_UP_TO, Ledger
from turnout.errors import ReportError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray
from turnout.kernel.rounds import RoundReport, Selection
from turnout.live import Amendment, FleetEvent, FleetReader, Turn
from turnout.live._internals import (
    FAILED,
    OUTCOME_OF_KIND,
    FilledSlots,
    OpenRound,
    RecordedRound,
    RunningTurnRecord,
    SlotFleet,
    WriterMetrics,
    explain_closed_round,
    journal_of,
    read_totals,
)
from turnout.policies.explain.explanation import Explanation
from turnout.storage.store import Store
from turnout.storage.training_log import TrainingLog

EVENTS_PER_POLL, EVENTS_PER_POLL_LARGE = 20, 4
#: The number of joins, departures and amendments that are remembered, the newest ones.
KEPT_CHANGES = 20
#: The number of amendments that the page lists, the newest ones.
SHOWN_AMENDMENTS = 5
#: Prefixes of the display names by kind of metric, in display order.
METRIC_PREFIXES = {"server": "", "evaluate": "clients' ", "train": "training "}
NO_DEADLINE = {
    "round": "No deadline is set: a round stays open until every selected client replies or the round is closed.",
    "decision": "No deadline is set: a client that never reports keeps its slot.",
}


class FleetSource(Source):
    """The source of a live fleet, with or without rounds.

    Args:
        reader: Reads the fleet; `close` closes it, and so does a failure to read.
    """

    no_clients = "No client has joined yet."

    def __init__(self, reader: FleetReader) -> None:
        self._reader, location = reader, reader.location
        #: What an adapter has recorded beside the file of the fleet.
        self._training = TrainingLog(location) if isinstance(location, Path) else None
        with close_on_error(reader):
            self._follower = reader.follow()
            super().__init__(self._make_ledger(), name=location.name, policy=str(reader.settings.policy))
            self._add_dropped_rounds()
            self._events = reader.last_event
        self._amendments: list[Amendment] = []
        self._changes: deque[dict[str, Any]] = deque(maxlen=KEPT_CHANGES)  # of the clients and the settings

    @property
    def changes(self) -> tuple[int, float]:
        """A value that changes with every write to the fleet or its training log."""
        return self._reader.changes, 0.0 if self._training is None else self._training.written_at

    @property
    def reading(self) -> dict[str, int] | None:
        """The numbers of events read and of events stored at the last check; None if all events have been read."""
        position = self._follower.position
        return {"done": position, "of": self._events} if position < self._events else None

    def catch_up(self, seconds: float) -> None:
        """Reads a few events at a time, so that it stops soon after `seconds`."""
        end = time.monotonic() + seconds
        self._events = self._reader.last_event
        while self._follower.position < self._events and time.monotonic() < end:
            is_large = self.ledger.clients > EVERY_ROUND_UP_TO
            events = self._follower.poll(EVENTS_PER_POLL_LARGE if is_large else EVENTS_PER_POLL)
            for (joined, is_ahead), part in groupby(
                events, lambda event: (event.kind == "joined", self._follower.is_ahead(event.number))
            ):
                if joined:
                    self._join(list(part), is_ahead=is_ahead)
                    continue
                for event in part:
                    self._apply(event, is_ahead=is_ahead)
        if self._follower.position >= self._follower.starts_after:
            self._adopt_policy()
            fleet = self._follower.fleet
            self.ledger.counters["backed_off"] = fleet.counters.rounds_backed_off(fleet.round)

    def backed_off_until(self, row: int) -> int:
        """Returns the last round or decision of a client's back-off; 0 if it is not backed off."""
        fleet = self._follower.fleet
        return int(fleet.counters.backoff_until[row]) if fleet.counters.backing_off(fleet.round)[row] else 0

    def events(self, most: int) -> list[dict[str, Any]]:
        """Returns the latest failed turns with their reasons, joins, departures and amendments, newest first."""
        failed = np.flatnonzero(self.ledger.turn_column("kinds") == FAILED)[-most:]
        numbers = self.ledger.round_of_each_turn[failed].tolist()
        reasons = {number: self.failures(number) for number in set(numbers)}
        failures = [
            {"round": number, "kind": "failed", "id": self.id_of(row), "text": reasons[number].get(row)}
            for number, row in zip(numbers, self.ledger.turn_column("chosen")[failed].tolist(), strict=True)
        ]
        return sorted([*self._changes, *failures], key=lambda event: -event["round"])[:most]

    def id_of(self, row: int) -> str:
        """Returns the id under which the client joined."""
        return self._follower.fleet.ids[row]

    def row_of(self, client: str) -> int:
        """Returns the row of a client id."""
        row = self._follower.fleet.rows.get(client)
        if row is None or row >= self.ledger.clients:
            raise ReportError(f"there is no client {client!r} in {self.name}: check the id")
        return row

    def _ids(self) -> list[str]:
        return self._follower.fleet.ids[: self.ledger.clients]

    def explain(self, row: int, number: int) -> Explanation:
        """Explains a closed round by replaying the journal up to it, an open round with the newest state.

        It has a reader of its own, because the replay may take seconds, and other threads read meanwhile.
        """
        fleet = self._follower.fleet
        with FleetReader(self._reader.location) as reader:
            if number > fleet.round:
                return reader.explain(self.id_of(row), number)
            return explain_closed_round(reader, fleet, row, number)

    def open_round(self) -> tuple[OpenRound, list[Turn]] | None:
        """Returns the open round and its turns; None if no round is open."""
        return self._reader.open_round() if self.ledger.slots is None else None

    def running(self) -> list[tuple[RunningTurnRecord, Turn]]:
        """Returns the running turns of a fleet without rounds, with the outcomes reported so far."""
        return [] if self.ledger.slots is None else self._reader.running()

    @property
    def store(self) -> Store[Any]:
        """The store of the fleet, with its sizes and the process that writes it."""
        return journal_of(self._reader).file

    def writer(self) -> WriterMetrics:
        """Returns figures about the process that writes the fleet."""
        return self._reader.writer()

    def failures(self, number: int) -> dict[int, str]:
        """Returns the reported reasons of the failures in a round, by row."""
        return {turn.row: turn.why for turn in self._reader.history(round=number) if turn.why is not None}

    def training_metrics(self) -> dict[str, tuple[IntArray, FloatArray]]:
        """Returns the metrics that an adapter recorded next to the fleet, up to the last closed round.

        Round 0 precedes the first round.
        """
        series = {} if self._training is None else self._training.series()
        last = self.ledger.last_round
        return {
            f"{prefix}{name}": (rounds[rounds <= last], values[rounds <= last])
            for kind, prefix in METRIC_PREFIXES.items()
            for name, (rounds, values) in series.get(kind, {}).items()
        }

    def notices(self) -> list[str]:
        """Returns messages about the settings and about data that are not recorded."""
        notices, unit = [], self.ledger.unit
        if self._reader.settings.deadline is None:
            notices.append(NO_DEADLINE[unit])
        if self.ledger.first_after:
            notices.append(
                f"{unit.capitalize()}s up to {self.ledger.first_after:,} are no longer kept (keep_rounds). Totals "
                f"contain them, charts begin with the next {unit}."
            )
        notices.extend(f"The settings were {each.sentence()}." for each in self._amendments[-SHOWN_AMENDMENTS:])
        return notices

    def extra_flags(self) -> dict[str, BoolArray]:
        """Returns which clients back off after missed turns and which are rarely available."""
        fleet, clients = self._follower.fleet, self.ledger.clients
        rarely_available = fleet.rarely_available()
        backing_off = fleet.counters.backing_off(fleet.round)
        # While the ledger reads events before the snapshot, the fleet has more clients than the ledger.
        return {"backing_off": backing_off[:clients], "rarely_available": rarely_available[:clients]}

    def close(self) -> None:
        """Closes the file."""
        self._reader.close()

    def _make_ledger(self) -> Ledger:
        follower, fleet = self._follower, self._follower.fleet
        slots, training = None, dict[int, int]()
        if isinstance(fleet, SlotFleet):
            slots = fleet.slots
            training = fleet.training() if follower.starts_after == follower.summary.event else {}
        return Ledger(slots, first_after=follower.summary.round, training=training, is_dated=True)

    def _add_dropped_rounds(self) -> None:
        """Adds the clients that joined, and the turns that were taken, in rounds that are no longer kept."""
        summary, fleet = self._follower.summary, self._follower.fleet
        if summary.event:
            joined, left = fleet.counters.joined[: summary.clients], fleet.counters.retired[: summary.clients] > 0
            with journal_of(self._reader).reading() as db:
                totals = read_totals(db)
            self.ledger.begin(summary.clients, joined, left, totals)

    def _join(self, events: Sequence[FleetEvent], *, is_ahead: bool) -> None:
        """Applies events with which clients joined, all at once: each time, all arrays are copied."""
        if is_ahead:
            self._adopt_policy()
            self._follower.fleet.join([client for event in events for client in event.clients])
        self.ledger.join(sum(len(event.clients) for event in events))
        for event in events:
            self._note_change(event.kind, pluralize(len(event.clients), "client"), event.clients)

    def _apply(self, event: FleetEvent, *, is_ahead: bool) -> None:
        if is_ahead:
            self._adopt_policy()
        if event.closed is not None:
            self._add_round(event, event.closed, is_ahead=is_ahead)
            return
        if event.filled is not None:
            self._add_turns(event, event.filled, is_ahead=is_ahead)
            return
        if event.amended is not None:
            self._amend(event, event.amended)
            return
        self._follower.apply(event)
        self.ledger.leave(event.rows[0])
        self._note_change(event.kind, pluralize(len(event.clients), "client"), event.clients)

    def _note_change(self, kind: str, text: str, clients: Sequence[str] = ()) -> None:
        client = clients[0] if len(clients) == 1 else None
        change = {"round": self.ledger.last_round, "kind": kind, "id": client, "text": None if client else text}
        self._changes.append(change)

    def _amend(self, event: FleetEvent, amendment: Amendment) -> None:
        self._amendments.append(amendment)
        self._note_change("amended", ", ".join(f"{name} = {value}" for name, value in amendment.changes.items()))
        if not self._follower.is_ahead(event.number):
            return  # the initial state has these settings already
        self._follower.apply(event)
        if self.ledger.policy is not None:
            self.ledger.amend(self._follower.fleet.policy)

    def _add_round(self, event: FleetEvent, closed: RecordedRound, *, is_ahead: bool) -> None:
        outcomes = _outcomes(
            closed.round, closed.rows, closed.contexts, closed.seconds, closed.kinds, closed.losses, closed.closed
        )
        offer = self._reader.offer(closed.round)
        reasons: dict[str, Any] = {}
        if offer is not None:
            reasons = align_reasons(Selection(closed.round, offer.rows, dict(offer.reasons)), outcomes.report)
        decision = Decision(
            closed.round, closed.rows, closed.contexts, closed.available, reasons, closed.opened.timestamp()
        )
        if is_ahead:
            self._mark_back_off(closed.round, closed.rows)
        self.ledger.add([decision], [outcomes], partial(self._follower.apply, event) if is_ahead else None)

    def _add_turns(self, event: FleetEvent, filled: FilledSlots, *, is_ahead: bool) -> None:
        fleet, ended, at = self._follower.fleet, filled.ended, datetime.fromisoformat(filled.at)
        assert isinstance(fleet, SlotFleet)
        present = None if event.stored[2] is None else filled.present
        # The reasons of later decisions of the same fill are not recorded.
        offer = self._reader.offer(filled.first) if len(filled.rows) else None
        reasons = [{} if offer is None else offer.reasons, *[{}] * len(filled.rows)]
        given = [
            Decision(filled.first + index, row, context, present, reasons[index], at.timestamp())
            for index, (row, context) in enumerate(zip(filled.rows[:, None], filled.contexts[:, None], strict=True))
        ]
        contexts, unknown = fleet.contexts if is_ahead else {}, (0, np.full(filled.contexts.shape[1], np.nan))
        outcomes = []
        for index, turn in enumerate(ended.decisions.tolist()):
            one, context = slice(index, index + 1), contexts.get(turn, unknown)[1][None]
            columns = ended.seconds[one], ended.kinds[one], ended.losses[one]
            outcomes.append(_outcomes(turn, ended.rows[one], context, *columns, at))
        self.ledger.add(
            given,
            outcomes,
            partial(self._follower.apply, event) if is_ahead else None,
            capped=(lambda decision: fleet.running.capped(decision, fleet.queues)) if is_ahead else None,
            broken_since=lambda: fleet.counters.broken_since,
        )
        for decision in given if is_ahead else ():
            self._mark_back_off(decision.number, decision.rows)

    def _mark_back_off(self, number: int, rows: IntArray) -> None:
        """Marks the clients that were backed off in a round or decision; those that it selected were not."""
        counters = self._follower.fleet.counters
        resting = (counters.backoff_until >= number) & (counters.retired == 0)
        resting[rows] = False
        if resting.any():
            self.ledger.back_offs.add(number, resting)

    def _adopt_policy(self) -> None:
        """Lets the ledger use the policy of the replayed fleet, once both have reached the same event."""
        ledger, fleet = self.ledger, self._follower.fleet
        if ledger.policy is not None or not fleet.ids:
            return
        # A fleet without a time model keeps no prediction errors; the ledger does.
        ledger.adopt(fleet.policy, None if fleet.model is None else fleet.history)
        if self._follower.starts_after:
            ledger.resume(fleet.counters.offered.copy(), fleet.counters.broken_since)


def _outcomes(
    number: int,
    rows: IntArray,
    contexts: FloatArray,
    seconds: FloatArray,
    kinds: IntArray,
    losses: FloatArray | None,
    end: datetime,
) -> Outcomes:
    """Returns how recorded turns have ended.

    The exchange time of a failed client is unknown; the journal records how long the server waited for it.
    """
    report = RoundReport(number, rows, contexts, seconds, outcomes=OUTCOME_OF_KIND[kinds], losses=losses)
    return Outcomes(report, kinds, np.where(kinds == FAILED, np.nan, seconds), end.timestamp())
