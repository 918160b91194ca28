"""Turns without rounds that have ended: each is given by one event of the journal and ends with a later one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from turnout.kernel.arrays import BoolArray, FloatArray
from turnout.live.journal.events import FleetEvent
from turnout.live.journal.journal import Journal
from turnout.live.turns.outcomes import KINDS
from turnout.live.turns.records import RecordedOffer


@dataclass(frozen=True, slots=True, eq=False)
class RecordedTurn:
    """A turn without rounds that has ended, as it is recorded.

    Attributes:
        id: The number of the decision that gave it.
        client: The id of the client.
        row: The row of the client.
        kind: The outcome: "arrived", "late" or "failed".
        seconds: The exchange time; the deadline of a late client, or the time until a client failed; 0 for a client
            that was forgotten later.
        loss: The reported loss, or None.
        decisions: The number of decisions that had been made when the result was learned. Between the turn and its
            result lie `decisions` − `id` other turns.
        given: When the client was given the turn; None if the event is no longer kept.
        context: The context of the client; NaN if statuses are not persisted; None if the event is no longer kept.
        present: Which clients were available or training at the decision, by row; None if that is no longer kept.
    """

    id: int
    client: str
    row: int
    kind: str
    seconds: float
    loss: float | None
    decisions: int
    given: datetime | None
    context: FloatArray | None
    present: BoolArray | None


def ended_turns(events: Iterable[FleetEvent]) -> Iterator[RecordedTurn]:
    """Yields the turns that end with these events, in the order in which their results were learned.

    Args:
        events: Events of a fleet, in order. A turn that was given before the first of them is yielded without what
            only that event has.
    """
    under_way: dict[int, tuple[datetime, FloatArray, BoolArray | None]] = {}
    for event in events:
        filled = event.filled
        if filled is None:
            continue
        ended = filled.ended
        for index, (decision, client) in enumerate(zip(ended.decisions.tolist(), event.ended, strict=True)):
            given, context, present = under_way.pop(decision, (None, None, None))
            loss = float(ended.losses[index])
            yield RecordedTurn(
                id=decision,
                client=client,
                row=int(ended.rows[index]),
                kind=KINDS[int(ended.kinds[index])],
                seconds=float(ended.seconds[index]),
                loss=None if np.isnan(loss) else loss,
                decisions=filled.first - 1,
                given=given,
                context=context,
                present=present,
            )
        at, present = datetime.fromisoformat(filled.at), None if event.stored[2] is None else filled.present
        for index in range(len(filled.rows)):
            under_way[filled.first + index] = (at, filled.contexts[index], present)


def offer_of_decision(journal: Journal, decision: int) -> RecordedOffer | None:
    """Returns the offer of a decision about one slot, or None if it is not recorded.

    Several slots may be filled at once: only the offer of the first is recorded, and those that were given a turn
    before this decision were not available any more. The reasons of the other decisions are not recorded.
    """
    first = journal.last_offer(decision)
    recorded = None if first is None else journal.offer(first)
    if first is None or recorded is None or first == decision:
        return recorded
    turns = journal.turns_between(first, decision)
    if any(turn.round == decision for turn in turns) and len(turns) == decision - first + 1:
        given = np.array([turn.row for turn in turns if turn.round < decision], dtype=np.int64)
        own = np.array([turn.row for turn in turns if turn.round == decision], dtype=np.int64)
        left = recorded.available.copy()
        left[given] = False
        contexts = None if recorded.contexts is None else recorded.contexts[left[recorded.available]]
        return RecordedOffer(decision, own, {}, left, contexts)
    return None
