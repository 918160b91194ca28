"""A run without rounds of a store, read into a ledger."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable

import numpy as np

from turnout.dashboard.sources.base import align_reasons
from turnout.dashboard.sources.ledger import Ledger
from turnout.dashboard.sources.run import RunSource, kinds_of
from turnout.dashboard.sources.slot_ledger import EndedSlot, GivenSlot, SlotLedger
from turnout.errors import TurnoutError
from turnout.kernel.arrays import FloatArray, IntArray
from turnout.kernel.rounds import RoundRecord
from turnout.kernel.slots.turns import FINISHED, STARTED, InFlight, StartedTurn
from turnout.lab.runs.info import RunInfo
from turnout.lab.runs.slots import Flight
from turnout.lab.runs.store import RunStore
from turnout.live._internals import FAILED

#: The metrics of a turn that the ledger has as columns.
_OWN = (STARTED, FINISHED)
STALENESS = "staleness"


class SlotRunSource(RunSource):
    """The source of a run without rounds.

    The record has the turns in the order of their decisions. They are passed to the policy as they happened: a turn
    ends before the first decision that was made after its end, as in `turnout.lab.SlotRun`.
    """

    def __init__(self, store: RunStore, info: RunInfo) -> None:
        super().__init__(store, info)
        self._in_flight = InFlight(info.clients)
        self._flights: list[Flight] = []  # a heap
        self._now = 0.0
        self._metrics: dict[str, tuple[list[int], list[float]]] = {}
        self._ended = 0

    def catch_up(self, seconds: float) -> None:
        """Reads one chunk of turns at a time, so that it stops soon after `seconds`."""
        end = time.monotonic() + seconds
        while len(self.ledger) < self.info.rounds:
            columns = self._store.columns(self.info.id, after=self.ledger.last_round, most=1)
            for record in columns.records():
                self._add(record)
            if time.monotonic() > end:
                break
        if self.info.finished and len(self.ledger) >= self.info.rounds and self._flights:
            self._fill([heapq.heappop(self._flights) for _ in range(len(self._flights))], None)

    def training_metrics(self) -> dict[str, tuple[IntArray, FloatArray]]:
        """Returns the metrics recorded with the turns, by the number of turns that had ended."""
        return {name: (np.array(ended), np.array(values)) for name, (ended, values) in self._metrics.items()}

    def _make_ledger(self) -> Ledger:
        return SlotLedger(int(self.info.plan["concurrency"]))

    def _add(self, record: RoundRecord) -> None:
        started, ended = record.report.metrics[STARTED], list[Flight]()
        client = int(record.report.clients[0])
        while self._flights and self._ends_before(started, client, ended):
            ended.append(heapq.heappop(self._flights))
            self._now = ended[-1].end
        self._now = started
        self._fill(ended, record)
        heapq.heappush(self._flights, Flight(record.report.metrics[FINISHED], record.round, record))

    def _ends_before(self, started: float, client: int, ended: list[Flight]) -> bool:
        """Returns whether the turn that ends next ended before a decision.

        Of turns that end at the moment of the decision, only as many ended as it needed: for the clock to reach that
        moment, for a free slot, and for the client to be idle.

        Args:
            started: The time of the decision.
            client: The client that was given a turn.
            ended: The turns that ended since the decision before, as far as they are known.
        """
        end = self._flights[0].end
        is_full = len(self._flights) >= int(self.info.plan["concurrency"])
        is_training = self._in_flight.decision_of(client) not in (0, *(flight.decision for flight in ended))
        return end < started or (end == started and (is_full or is_training or self._now < started))

    def _fill(self, ended: list[Flight], record: RoundRecord | None) -> None:
        ledger = self.ledger
        assert isinstance(ledger, SlotLedger)
        turn: StartedTurn | None = None
        given: list[GivenSlot] = []
        for flight in ended:
            self._in_flight.finish(int(flight.record.report.clients[0]))
            self._record_metrics(flight.record)
        if record is not None:
            turn = self._started(record)
            self._in_flight.start(turn)
            report = record.report
            reasons = align_reasons(record.selection, report)
            context = report.contexts[0]
            given = [GivenSlot(record.round, turn.client, context, self._now, turn.present, reasons)]
        capped = None if turn is None else turn.capped
        ledger.fill(
            [_ended(flight.record) for flight in ended],
            given,
            lambda: self._tell_turns(ended, turn),
            _always(capped),
        )

    def _started(self, record: RoundRecord) -> StartedTurn:
        """Returns the decision: the record has the clients that earned with it, the others present were capped."""
        debts = None if self.ledger.policy is None else self.ledger.policy.debts
        capped = self._in_flight.capped(record.round, debts)
        present = np.ones(self.info.clients, dtype=np.bool_)
        if record.report.available is not None:
            present = record.report.available.copy()
            present[capped] = True
        return StartedTurn.trusted(record.round, int(record.report.clients[0]), present, capped)

    def _tell_turns(self, ended: list[Flight], turn: StartedTurn | None) -> None:
        if self.ledger.policy is None:
            return
        try:
            for flight in ended:
                self.ledger.policy.tell_finished(flight.record.report)
            if turn is not None:
                self.ledger.policy.tell_started(turn)
        except TurnoutError as error:
            self.ledger.policy = None
            self.trouble = f"The guarantee of this run is not shown because its record is incomplete: {error}."

    def _record_metrics(self, record: RoundRecord) -> None:
        self._ended += 1
        for name, value in record.report.metrics.items():
            if name not in _OWN and np.isfinite(value):
                ended, values = self._metrics.setdefault(name, ([], []))
                ended.append(self._ended)
                values.append(value)


def open_run_source(store: RunStore, info: RunInfo) -> RunSource:
    """Opens the source of a run, with or without rounds.

    Plans of other programs may name a concurrency of another kind: without the times of its turns, a run has rounds.
    """
    has_slots = isinstance(info.plan.get("concurrency"), int)
    if has_slots and info.rounds:
        has_slots = all(name in store.columns(info.id, most=1).metrics for name in _OWN)
    return SlotRunSource(store, info) if has_slots else RunSource(store, info)


def _ended(record: RoundRecord) -> EndedSlot:
    report, kind = record.report, int(kinds_of(record.report)[0])
    seconds = float(report.exchange_times[0])
    loss = np.nan if report.losses is None else float(report.losses[0])
    stale = report.metrics.get(STALENESS, np.nan)
    time_ = np.nan if kind == FAILED else seconds
    return EndedSlot(record.round, int(report.clients[0]), kind, seconds, time_, loss, stale)


def _always(rows: IntArray | None) -> Callable[[int], IntArray] | None:
    return None if rows is None else lambda _: rows
