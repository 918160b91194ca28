"""Events of a fleet's journal as values: who joined and left, and the rounds that were closed."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from turnout.errors import StoreError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray
from turnout.scheduler.outcomes import KINDS, OUTCOME_OF_KIND
from turnout.scheduler.records import unpack_closed

#: Kinds of events, by the names under which they are stored.
EVENT_KINDS = {"join": "joined", "close": "closed", "retire": "retired", "forget": "forgotten"}


class LateTime(NamedTuple):
    """The true time of a client that was late in an earlier round, learned when a later round was closed."""

    round: int
    row: int
    client: str
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class RecordedRound:
    """A closed round as it is on record; arrays have one entry per client of the cohort, in the order of `clients`.

    `kinds` are indices into KINDS. `seconds`: from the choice until the client was back, or until the round was closed
    without it; 0 for a client that was forgotten since. `losses`: NaN for a client that reported none, None if nobody
    did. `available`: who volunteered, by row; None where a large fleet no longer keeps it. `late`: true times of
    clients that were late in earlier rounds. `opened`, `closed`: when the cohort was chosen, and when it was closed.
    """

    round: int
    clients: tuple[str, ...]
    rows: IntArray
    kinds: IntArray
    seconds: FloatArray
    losses: FloatArray | None
    contexts: FloatArray
    available: BoolArray | None
    late: tuple[LateTime, ...]
    wanted: int
    opened: datetime
    closed: datetime

    @property
    def outcomes(self) -> npt.NDArray[np.str_]:
        """What policies are told about each client: "arrived", "late" or "failed"."""
        outcomes: npt.NDArray[np.str_] = OUTCOME_OF_KIND[self.kinds]
        return outcomes


@dataclass(frozen=True, slots=True, eq=False)
class FleetEvent:
    """One event of a fleet. `number` counts from 1.

    `kind` is "joined", "retired", "forgotten" or "closed". `clients` and `rows`: the clients that joined or left, or
    those of the closed round; a forgotten client bears the name that has replaced its id. `closed`: the round, if one
    was closed. `stored`: kind, data and mask of who was available, as they stand in the journal.
    """

    number: int
    kind: str
    clients: tuple[str, ...]
    rows: tuple[int, ...]
    stored: tuple[str, bytes, bytes | None] = field(repr=False)
    closed: RecordedRound | None = None


def decode_event(
    number: int, kind: str, data: bytes, mask: bytes | None, ids: Sequence[str], joined: int
) -> FleetEvent:
    """Read one event of a journal.

    Args:
        number: its number in the journal, from 1.
        kind: its kind, as stored.
        data: its content, as stored.
        mask: who was available in a closed round, as stored; None if it is not on record.
        ids: the ids by row, at least of the clients that had joined before.
        joined: how many clients had joined before this event.
    """
    stored = (kind, data, mask)
    if kind not in EVENT_KINDS:
        raise StoreError(f"unknown event {kind!r}: install a newer turnout")
    if kind == "close":
        closed = _closed_round(data, mask, ids)
        return FleetEvent(number, "closed", closed.clients, tuple(closed.rows.tolist()), stored, closed)
    content = json.loads(data)
    if kind == "join":
        return FleetEvent(number, "joined", tuple(content), tuple(range(joined, joined + len(content))), stored)
    row = int(content["row"])
    return FleetEvent(number, EVENT_KINDS[kind], (str(content.get("name", ids[row])),), (row,), stored)


def _closed_round(data: bytes, mask: bytes | None, ids: Sequence[str]) -> RecordedRound:
    closed, header = unpack_closed(data, mask)
    late = zip(closed.late_rounds.tolist(), closed.late_rows.tolist(), closed.late_seconds.tolist(), strict=True)
    return RecordedRound(
        round=closed.round,
        clients=tuple(ids[row] for row in closed.rows.tolist()),
        rows=closed.rows,
        kinds=closed.kinds,
        seconds=closed.seconds,
        losses=closed.losses,
        contexts=closed.contexts,
        available=None if mask is None else closed.available,
        late=tuple(LateTime(round_, row, ids[row], seconds) for round_, row, seconds in late),
        wanted=header["wanted"],
        opened=datetime.fromisoformat(header["opened"]),
        closed=datetime.fromisoformat(header["closed"]),
    )


def event_to_dict(event: FleetEvent) -> dict[str, Any]:
    """An event as JSON has it, for an audit: part of the format of certificates."""
    closed, kind = event.closed, event.stored[0]
    if closed is None:
        about = {"clients": list(event.clients)} if kind == "join" else {"client": event.clients[0]}
        return {"event": event.number, "kind": kind, **about}
    losses = [None] * len(closed.rows) if closed.losses is None else closed.losses.tolist()
    available = closed.available
    return {
        "event": event.number,
        "kind": "round",
        "round": closed.round,
        "opened": closed.opened.isoformat(timespec="milliseconds"),
        "closed": closed.closed.isoformat(timespec="milliseconds"),
        "wanted": closed.wanted,
        "available": None if available is None else int(available.sum()),
        "volunteers": None if available is None else np.packbits(available).tobytes().hex(),  # one bit per client
        "clients": list(closed.clients),
        "outcomes": [KINDS[kind] for kind in closed.kinds.tolist()],
        "seconds": closed.seconds.tolist(),
        "losses": [None if loss is None or math.isnan(loss) else loss for loss in losses],
        "contexts": closed.contexts.tolist(),
        "late": [{"client": late.client, "round": late.round, "seconds": late.seconds} for late in closed.late],
    }
