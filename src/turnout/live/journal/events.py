"""Events of a fleet's journal as values: clients that joined or left, closed rounds, and turns that have ended."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from turnout.errors import StoreError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray
from turnout.kernel.rounds import round_seconds
from turnout.live.journal.journal import AMEND, Amendment
from turnout.live.turns.records import KINDS, OUTCOME_OF_KIND, REDUNDANT, has_context, signals_at
from turnout.live.turns.rounds.records import unpack_closed
from turnout.live.turns.slots.records import FILL, FilledSlots, unpack_fill
from turnout.storage.encoding.packing import parse_stored

#: The kind of an event, by the name under which it is stored.
EVENT_KINDS = {
    "join": "joined",
    "close": "closed",
    FILL: "filled",
    "retire": "retired",
    "forget": "forgotten",
    AMEND: "amended",
}


class LateTime(NamedTuple):
    """The true time of a client that was late in an earlier round; it was learned when a later round was closed."""

    round: int
    row: int
    client: str
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class RecordedRound:
    """A closed round as it is recorded. Arrays have one entry per client of the cohort, in the order of `clients`.

    Attributes:
        round: The number of the round.
        clients: The ids of the cohort.
        rows: The rows of the cohort.
        kinds: The outcomes, as indices into KINDS.
        seconds: The time from the selection until the client returned, or until the round was closed without it; 0 for
            a client that was forgotten later.
        losses: The reported losses, NaN for a client that reported none; None if no client reported a loss.
        signals: The other reported signals, by name; NaN for a client that reported none.
        contexts: The contexts of the cohort; NaN for a client that started cold, and if statuses are not persisted.
        available: Whether each client of the fleet was available, by row; None if a large fleet has dropped it.
        late: The true times of clients that were late in earlier rounds.
        target_size: The number of clients to wait for.
        opened: When the cohort was selected.
        closed: When the round was closed.
    """

    round: int
    clients: tuple[str, ...]
    rows: IntArray
    kinds: IntArray
    seconds: FloatArray
    losses: FloatArray | None
    signals: Mapping[str, FloatArray]
    contexts: FloatArray
    available: BoolArray | None
    late: tuple[LateTime, ...]
    target_size: int
    opened: datetime
    closed: datetime

    @property
    def outcomes(self) -> npt.NDArray[np.str_]:
        """The outcome of each client as policies see it: "arrived", "late" or "failed"."""
        outcomes: npt.NDArray[np.str_] = OUTCOME_OF_KIND[self.kinds]
        return outcomes

    @property
    def duration(self) -> float:
        """How long the server waited, in seconds: until it had enough updates, or until it stopped waiting."""
        return round_seconds(self.seconds, self.kinds != REDUNDANT)


@dataclass(frozen=True, slots=True, eq=False)
class FleetEvent:
    """One event of a fleet.

    Attributes:
        number: The number of the event, from 1.
        kind: "joined", "retired", "forgotten", "closed", "filled" or "amended".
        clients: The clients that joined or left, or the cohort of the closed round. A forgotten client has the name
            that replaced its id.
        rows: The rows of these clients.
        stored: The kind, the data and the packed availability, as they are stored in the journal.
        closed: The round, if one was closed.
        amended: The change of settings, if they were amended.
        filled: The turns that have ended and those that were given, in a fleet without rounds.
        ended: The clients whose turns have ended.
    """

    number: int
    kind: str
    clients: tuple[str, ...]
    rows: tuple[int, ...]
    stored: tuple[str, bytes, bytes | None] = field(repr=False)
    closed: RecordedRound | None = None
    amended: Amendment | None = None
    filled: FilledSlots | None = None
    ended: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Returns the event for JSON; records of certificates have this format."""
        closed, kind = self.closed, self.stored[0]
        if self.amended is not None:
            return {"event": self.number, "kind": kind, **self.amended.to_dict()}
        if self.filled is not None:
            return {"event": self.number, "kind": kind, **_fill_to_dict(self, self.filled)}
        if closed is None:
            clients = {"clients": list(self.clients)} if kind == "join" else {"client": self.clients[0]}
            return {"event": self.number, "kind": kind, **clients}
        losses = [None] * len(closed.rows) if closed.losses is None else closed.losses.tolist()
        available = closed.available
        bits = None if available is None else np.packbits(available).tobytes().hex()  # one bit per client
        return {
            "event": self.number,
            "kind": "round",
            "round": closed.round,
            "opened": closed.opened.isoformat(timespec="milliseconds"),
            "closed": closed.closed.isoformat(timespec="milliseconds"),
            "target_size": closed.target_size,
            "available": None if available is None else int(available.sum()),
            "available_bits": bits,
            "clients": list(closed.clients),
            "outcomes": [KINDS[kind] for kind in closed.kinds.tolist()],
            "seconds": closed.seconds.tolist(),
            "losses": [None if loss is None or math.isnan(loss) else loss for loss in losses],
            "signals": [signals_at(closed.signals, index) for index in range(len(closed.rows))],
            "contexts": _exported_contexts(closed.contexts),
            "late": [{"client": late.client, "round": late.round, "seconds": late.seconds} for late in closed.late],
        }


def _exported_contexts(contexts: FloatArray) -> list[list[float] | None] | None:
    """Returns contexts for JSON: None for one that is unknown or not learned from, and None if all are."""
    known = has_context(contexts).tolist()
    exported = [context if is_known else None for context, is_known in zip(contexts.tolist(), known, strict=True)]
    return exported if any(known) or not known else None


def decode_event(
    number: int, kind: str, data: bytes, availability: bytes | None, ids: Sequence[str], joined: int
) -> FleetEvent:
    """Decodes one event of a journal.

    Args:
        number: Its number in the journal, from 1.
        kind: Its kind, as stored.
        data: Its content, as stored.
        availability: The packed availability of clients in a closed round; None if it is not stored.
        ids: The ids by row, at least those of the clients that joined before this event.
        joined: The number of clients that joined before this event.
    """
    stored = (kind, data, availability)
    if kind not in EVENT_KINDS:
        raise unknown_event(kind)
    if kind == "close":
        closed = _decode_closed_round(data, availability, ids)
        return FleetEvent(number, "closed", closed.clients, tuple(closed.rows.tolist()), stored, closed)
    if kind == FILL:
        filled = unpack_fill(data, availability)
        rows = tuple(filled.rows.tolist())
        given, ended = (tuple(ids[row] for row in part) for part in (rows, filled.ended.rows.tolist()))
        return FleetEvent(number, "filled", given, rows, stored, filled=filled, ended=ended)
    if kind == AMEND:
        return FleetEvent(number, "amended", (), (), stored, amended=Amendment.unpack(data))
    content = parse_stored(data)
    if kind == "join":
        return FleetEvent(number, "joined", tuple(content), tuple(range(joined, joined + len(content))), stored)
    row = int(content["row"])
    return FleetEvent(number, EVENT_KINDS[kind], (str(content.get("name", ids[row])),), (row,), stored)


def unknown_event(kind: str) -> StoreError:
    """Returns the error that reports an event of a kind that this version does not know."""
    return StoreError(f"unknown event kind {kind!r}: install a newer version of turnout")


def _decode_closed_round(data: bytes, availability: bytes | None, ids: Sequence[str]) -> RecordedRound:
    closed, header = unpack_closed(data, availability)
    return RecordedRound(
        round=closed.round,
        clients=tuple(ids[row] for row in closed.rows.tolist()),
        rows=closed.rows,
        kinds=closed.kinds,
        seconds=closed.seconds,
        losses=closed.losses,
        signals=closed.signals,
        contexts=closed.contexts,
        available=None if availability is None else closed.available,
        late=tuple(LateTime(number, row, ids[row], seconds) for number, row, seconds in closed.late),
        target_size=header["target_size"],
        opened=datetime.fromisoformat(header["opened"]),
        closed=datetime.fromisoformat(header["closed"]),
    )


def _fill_to_dict(event: FleetEvent, filled: FilledSlots) -> dict[str, Any]:
    columns = (filled.ended.decisions, filled.ended.kinds, filled.ended.seconds, filled.ended.losses)
    numbers = zip(event.ended, *(column.tolist() for column in columns), strict=True)
    return {
        "at": filled.at,
        "present": np.packbits(filled.present).tobytes().hex() if event.stored[2] is not None else None,
        "ended": [
            {
                "turn": decision,
                "client": client,
                "outcome": KINDS[kind],
                "seconds": seconds,
                "loss": None if math.isnan(loss) else loss,
                "signals": signals_at(filled.ended.signals, index),
            }
            for index, (client, decision, kind, seconds, loss) in enumerate(numbers)
        ],
        "turns": [{"turn": filled.first + index, "client": client} for index, client in enumerate(event.clients)],
        "contexts": _exported_contexts(filled.contexts),
        "late": [{"turn": decision, "seconds": seconds} for decision, _, seconds in filled.late],
    }


# Turns without rounds, each of which is given by one event and ends with a later one


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
        signals: The other reported signals, or None.
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
    signals: Mapping[str, float] | None
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
    running: dict[int, tuple[datetime, FloatArray, BoolArray | None]] = {}
    for event in events:
        filled = event.filled
        if filled is None:
            continue
        ended = filled.ended
        for index, (decision, client) in enumerate(zip(ended.decisions.tolist(), event.ended, strict=True)):
            given, context, present = running.pop(decision, (None, None, None))
            loss = float(ended.losses[index])
            yield RecordedTurn(
                id=decision,
                client=client,
                row=int(ended.rows[index]),
                kind=KINDS[int(ended.kinds[index])],
                seconds=float(ended.seconds[index]),
                loss=None if np.isnan(loss) else loss,
                signals=signals_at(ended.signals, index),
                decisions=filled.first - 1,
                given=given,
                context=context,
                present=present,
            )
        at, present = datetime.fromisoformat(filled.at), None if event.stored[2] is None else filled.present
        for index in range(len(filled.rows)):
            running[filled.first + index] = (at, filled.contexts[index], present)
