"""The record of a fleet without rounds, and a world that replays it."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from turnout.kernel.arrays import BoolArray
from turnout.kernel.fairness import FairnessQueues
from turnout.kernel.rounds import RoundOffer, RoundRecord, RoundReport, Selection
from turnout.kernel.slots.turns import FINISHED, STARTED, InFlight, StartedTurn
from turnout.lab.columns import RoundColumns
from turnout.lab.runs.slots import SlotRun
from turnout.lab.worlds.recorded import RecordedHistory, RecordedWorld
from turnout.live import FleetReader
from turnout.live._internals import RecordedTurn
from turnout.policies.base import SelectionPolicy

#: What to know about the record of a fleet without rounds.
NOTES = (
    "updates per second: of the recorded turns as well as of the replay, in slots that are never empty, without the "
    "pauses in which the server did not fill them",
    "clients that were training at a decision of the record count as available at this decision of the replay",
    "late clients teach that they were late, not their actual times",
)


class TurnRecord(NamedTuple):
    """The turns of a fleet without rounds that have ended, numbered from 1 in the order of their decisions.

    Attributes:
        turns: The turns.
        under_way: The number of turns that are left out because they have not ended.
        dropped: The number of turns that are left out because their events are no longer kept.
    """

    turns: list[RecordedTurn]
    under_way: int
    dropped: int


def read_turns(reader: FleetReader, after: int) -> TurnRecord:
    """Reads the turns with known contexts and presence that were given after a decision."""
    ended = sorted(reader.ended_turns(), key=lambda turn: turn.id)
    kept = [turn for turn in ended if turn.id > after and _is_complete(turn)]
    under_way = len(reader.in_flight())
    return TurnRecord(kept, under_way, reader.round - len(kept) - under_way)


def present_columns(turns: Sequence[RecordedTurn], clients: int) -> RoundColumns:
    """Returns the turns with the clients that were present at each decision as available."""
    masks = [_whole(turn.present, clients) for turn in turns]
    return RoundColumns.from_records(_records(turns, masks, [{} for _ in turns]), clients=clients)


def judged_columns(
    turns: Sequence[RecordedTurn], clients: int, slots: int, debts: FairnessQueues | None
) -> RoundColumns:
    """Returns the turns with the clients that earned with each decision as available, and with their times.

    The times are those of slots that are never empty: a turn begins when a slot is free.

    Args:
        turns: The turns.
        clients: The number of clients.
        slots: The number of slots.
        debts: The queues with the rates of the clients; None if nothing is guaranteed.
    """
    in_flight, ends = InFlight(clients), list[float]()
    waiting: list[tuple[int, int]] = []  # the decision before which each turn ended, and its client
    last_end: dict[int, float] = {}
    masks, metrics, now = [], [], 0.0
    for number, turn in enumerate(turns, start=1):
        while waiting and waiting[0][0] < turn.id:
            in_flight.finish(heapq.heappop(waiting)[1])
        present, capped = _whole(turn.present, clients), in_flight.capped(number, debts)
        started = StartedTurn.trusted(number, turn.row, present, capped)
        in_flight.start(started)
        heapq.heappush(waiting, (turn.decisions, turn.row))
        masks.append(started.earning())
        free = heapq.heappop(ends) if len(ends) >= slots else 0.0
        now = max(now, free, last_end.get(turn.row, 0.0))
        last_end[turn.row] = now + turn.seconds
        heapq.heappush(ends, now + turn.seconds)
        metrics.append({STARTED: now, FINISHED: now + turn.seconds})
    return RoundColumns.from_records(_records(turns, masks, metrics), clients=clients)


class RecordedTurnWorld(RecordedWorld):
    """Replays the recorded decisions: each meets the clients that were present at the recorded one.

    Recorded are the clients that were present, the contexts of those that were not training, and the time of the client
    that was given this turn in the record too, if its context is the same. Everything else is resampled.
    """

    def __init__(self, history: RecordedHistory, seed: int = 0) -> None:
        super().__init__(history, seed)
        self._decisions = 0

    def offer(self, round: int) -> RoundOffer:  # noqa: ARG002
        """Returns the offer of the next decision, also if turns end and it is offered again."""
        return super().offer(self._decisions + 1)

    def play(self, offer: RoundOffer, selection: Selection) -> RoundReport:
        """Reports the recorded or resampled result of the selected client."""
        self._decisions += 1
        return super().play(offer, selection)


def play_turns(policy: SelectionPolicy, world: RecordedTurnWorld, slots: int) -> RoundColumns:
    """Replays all recorded decisions with another policy."""
    turns = SlotRun(policy, world, slots).play(len(world.history.columns))
    return RoundColumns.from_records(turns, clients=world.clients)


def _is_complete(turn: RecordedTurn) -> bool:
    return turn.present is not None and turn.context is not None and not bool(np.isnan(turn.context).any())


def _whole(present: BoolArray | None, clients: int) -> BoolArray:
    """Returns the mask for the present number of clients; those that joined later were not there."""
    mask = np.zeros(clients, dtype=np.bool_)
    if present is not None:
        mask[: len(present)] = present
    return mask


def _records(
    turns: Sequence[RecordedTurn], masks: Sequence[BoolArray], metrics: Sequence[dict[str, float]]
) -> list[RoundRecord]:
    records = []
    for number, (turn, mask, own) in enumerate(zip(turns, masks, metrics, strict=True), start=1):
        rows = np.array([turn.row])
        assert turn.context is not None
        report = RoundReport(
            number,
            rows,
            turn.context[None],
            np.array([turn.seconds]),
            available=mask,
            outcomes=np.array([turn.kind]),
            losses=None if turn.loss is None else np.array([turn.loss]),
            metrics=own,
        )
        records.append(RoundRecord(Selection(number, rows), report))
    return records
