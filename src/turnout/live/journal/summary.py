"""Saved states of a fleet: snapshots, and the summary of its past.

The summary takes the place of events and turns that are no longer kept.

The summary has the state after the last event that is not kept, and the digest of that event, from which the digest of
the next event follows. Numbers of events and rounds continue. Rows that belong to the time before the summary are
deleted some at a time; the turns among them are first added to the totals of their clients.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from turnout.errors import StoreError
from turnout.kernel.arrays import FloatArray, IntArray
from turnout.live.identifiers import LAST_ROUND
from turnout.live.journal.schema import corruption
from turnout.live.turns.records import KINDS, Turn, as_bytes, digest_of, turn_from_row
from turnout.storage.encoding.packing import pack_snapshot, parse_stored, unpack_snapshot, with_differences
from turnout.storage.store import Connection, single_value

#: The number of events or offers, and the number of turns, that one transaction deletes; always two rounds at least, so
#: that more is deleted than a round adds.
BATCH, TURNS = 64, 4000
#: Finds the number of the complete snapshot, if those after it consist of the differences to it.
SELECT_BASE = "SELECT value FROM meta WHERE key = 'base'"


@dataclass(frozen=True, slots=True)
class Summary:
    """The place in the record at which what is kept begins.

    Attributes:
        event: The number of the last event that is not kept; 0 if all are kept.
        round: The last round that was closed by then.
        digest: The digest of that event.
        clients: The number of clients that had joined by then.
        amendments: The amendments that are not kept as events: the number and the data of each.
        forgotten: The rows of the clients that were forgotten by then.
    """

    event: int = 0
    round: int = 0
    digest: bytes = b""
    clients: int = 0
    amendments: tuple[tuple[int, bytes], ...] = ()
    forgotten: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ClientTotals:
    """The turns of a client that are no longer kept.

    Attributes:
        row: The row of the client.
        arrived: The number of turns with this outcome; so for the next four.
        redundant: See `arrived`.
        cut_off: See `arrived`.
        late: See `arrived`.
        failed: See `arrived`.
        seconds: The sum of the exchange times of the turns in which the client returned.
        last_round: The last of these turns.
    """

    row: int
    arrived: int = 0
    redundant: int = 0
    cut_off: int = 0
    late: int = 0
    failed: int = 0
    seconds: float = 0.0
    last_round: int = 0

    @property
    def checksum(self) -> int:
        """The checksum that is stored with the totals."""
        return zlib.crc32(repr(astuple(self)).encode())


@dataclass(frozen=True, slots=True, eq=False)
class FleetTotals:
    """The turns of all clients that are no longer kept, as arrays by row.

    Attributes:
        counts: The number of turns, by outcome.
        seconds: The sum of the exchange times of the turns in which the client returned.
        last_round: The last of these turns; 0 if there is none.
    """

    counts: Mapping[str, IntArray]
    seconds: FloatArray
    last_round: IntArray

    @property
    def turns(self) -> IntArray:
        """The number of turns of each client."""
        turns: IntArray = np.sum(list(self.counts.values()), axis=0)
        return turns


def read_summary(db: Connection) -> Summary:
    """Returns the summary, without its state; raises StoreError if it does not match its digest."""
    stored = db.execute("SELECT seq, round, previous, notes, digest FROM summary").fetchone()
    if stored is None:
        return Summary()
    event, round_, previous, notes, digest = stored
    if digest != _header_digest(event, round_, previous, notes):
        raise StoreError("the summary of earlier turns does not match its digest: restore the file from a backup")
    content = parse_stored(notes)
    amendments = tuple((int(number), text.encode()) for number, text in content["amendments"])
    return Summary(event, round_, previous, int(content["clients"]), amendments, tuple(content["forgotten"]))


def read_summary_state(db: Connection) -> dict[str, Any]:
    """Returns the state of the summary, which must exist."""
    digest, data, data_digest = db.execute("SELECT digest, data, data_digest FROM summary").fetchone()
    if data_digest != digest_of(as_bytes(digest), "state", as_bytes(data)):
        raise StoreError("the state in the summary does not match its digest: restore the file from a backup")
    return unpack_snapshot(data)


class SavedState(NamedTuple):
    """A state that is stored in a file.

    Attributes:
        event: The number of the event after which it was taken.
        state: The state.
    """

    event: int
    state: dict[str, Any]


def first_state(db: Connection) -> SavedState | None:
    """Returns the state at which the events that are kept begin: the summary; None if all events are kept."""
    event = read_summary(db).event
    return SavedState(event, read_summary_state(db)) if event else None


def newest_state(db: Connection, before: int | None = None) -> SavedState | None:
    """Returns the newest state that is stored: the last snapshot or, if there is none, the summary.

    Args:
        db: A connection to the file.
        before: Only states before this round was closed are of use.
    """
    query = "SELECT seq, data, digest FROM snapshot WHERE round < ? ORDER BY seq DESC LIMIT 1"
    stored = db.execute(query, (LAST_ROUND if before is None else before,)).fetchone()
    if stored is None:
        first = first_state(db)
        return None if first is None or (before is not None and int(first.state["round"]) >= before) else first
    state, base = _snapshot_state(db, *stored), db.execute(SELECT_BASE).fetchone()
    if base is not None and stored[0] > int(base[0]):
        complete = db.execute("SELECT seq, data, digest FROM snapshot WHERE seq = ?", (int(base[0]),)).fetchone()
        if complete is None:
            raise corruption(db, f"the snapshot after event {base[0]}, which others follow, is missing")
        state = with_differences(_snapshot_state(db, *complete), state)
    return SavedState(int(stored[0]), state)


def _snapshot_state(db: Connection, seq: int, data: bytes, digest: bytes) -> dict[str, Any]:
    if digest != digest_of(b"", str(seq), data):
        raise corruption(db, "the snapshot does not match its digest")
    return unpack_snapshot(data)


def has_all_availability(db: Connection) -> bool:
    """Returns whether the availability of clients is stored for every closed round since the summary."""
    first = read_summary(db).event
    closed = single_value(db, "SELECT COUNT(*) FROM events WHERE kind IN ('close', 'fill') AND seq > ?", first)
    return bool(closed == single_value(db, "SELECT COUNT(*) FROM masks WHERE seq > ?", first))


def count_joined(db: Connection, event: int) -> int:
    """Returns how many clients had joined by this event, inclusive; by the summary, if the event is before it."""
    summary = read_summary(db)
    query = "SELECT data FROM events WHERE kind = 'join' AND seq > ? AND seq <= ?"
    return summary.clients + sum(len(parse_stored(data)) for (data,) in db.execute(query, (summary.event, event)))


def last_event(db: Connection) -> tuple[int, bytes]:
    """Returns the number and the digest of the newest event; 0 and b"" before the first."""
    last = db.execute("SELECT seq, digest FROM events ORDER BY seq DESC LIMIT 1").fetchone()
    if last is not None:
        return int(last[0]), as_bytes(last[1])
    summary = read_summary(db)
    return summary.event, summary.digest


def write_summary(db: Connection, event: int) -> None:
    """Makes the snapshot after event `event` the summary, and deletes older snapshots."""
    before = read_summary(db)
    query = "SELECT data, digest FROM snapshot WHERE seq = ?"
    data, digest = db.execute(query, (event,)).fetchone()
    if digest != digest_of(b"", str(event), data):
        raise StoreError(f"the snapshot after event {event} does not match its digest: restore the file from a backup")
    state = unpack_snapshot(data)
    dropped = db.execute(
        "SELECT seq, kind, data FROM events WHERE kind IN ('amend', 'forget') AND seq > ? AND seq <= ? ORDER BY seq",
        (before.event, event),
    ).fetchall()
    amendments = [(number, as_bytes(text)) for number, kind, text in dropped if kind == "amend"]
    forgotten = [int(parse_stored(text)["row"]) for _, kind, text in dropped if kind == "forget"]
    (last_digest,) = db.execute("SELECT digest FROM events WHERE seq = ?", (event,)).fetchone()
    summary = Summary(
        event,
        int(state["round"]),
        last_digest,
        int(state["clients"]),
        (*before.amendments, *amendments),
        (*before.forgotten, *forgotten),
    )
    _put(db, summary, data)
    db.execute("DELETE FROM snapshot WHERE seq <= ?", (event,))


def replace_summary_state(db: Connection, state: Mapping[str, Any]) -> None:
    """Replaces the state of the summary by one without a client that was forgotten."""
    _put(db, read_summary(db), pack_snapshot(state, compact=True))


def _put(db: Connection, summary: Summary, data: bytes) -> None:
    amendments = [(number, text.decode()) for number, text in summary.amendments]
    content = {"clients": summary.clients, "amendments": amendments, "forgotten": list(summary.forgotten)}
    notes = json.dumps(content, ensure_ascii=False).encode()
    digest = _header_digest(summary.event, summary.round, summary.digest, notes)
    db.execute("DELETE FROM summary")
    db.execute(
        "INSERT INTO summary VALUES (?, ?, ?, ?, ?, ?, ?)",
        (summary.event, summary.round, summary.digest, notes, digest, data, digest_of(digest, "state", data)),
    )


def _header_digest(event: int, round: int, previous: bytes, notes: bytes) -> bytes:
    return digest_of(as_bytes(previous), f"{event} {round}", as_bytes(notes))


# Rows that are no longer kept


def trim(db: Connection) -> bool:
    """Deletes some rows from before the summary, and adds their turns to the totals; returns whether any are left."""
    summary = read_summary(db)
    if not summary.event:
        return False
    events = delete_oldest(db, "events", "seq", summary.event)
    masks = delete_oldest(db, "masks", "seq", summary.event)
    oldest = _oldest(db, "turns", "round")
    if oldest is not None and oldest <= summary.round:
        limit = min(_end_of_batch(db, oldest), summary.round)
        _add_to_totals(db, [turn_from_row(row)[0] for row in _turns_until(db, limit)])
        db.execute("DELETE FROM turns WHERE round <= ?", (limit,))
    # The offers of rounds whose turns are gone; those of other rounds before the summary follow with their turns.
    kept_from = _oldest(db, "turns", "round")
    last = summary.round if kept_from is None else min(kept_from - 1, summary.round)
    offers = delete_oldest(db, "offers", "round", last)
    is_turn_left = kept_from is not None and kept_from <= summary.round
    return events or masks or offers or is_turn_left


def _end_of_batch(db: Connection, oldest: int) -> int:
    """Returns the last round up to which one transaction deletes turns."""
    beyond = db.execute(f"SELECT round FROM turns ORDER BY round LIMIT 1 OFFSET {TURNS}").fetchone()
    enough = oldest + BATCH - 1 if beyond is None else int(beyond[0]) - 1
    return min(max(enough, oldest + 1), oldest + BATCH - 1)


def _turns_until(db: Connection, round: int) -> Iterable[tuple[Any, ...]]:
    return db.execute("SELECT * FROM turns WHERE round <= ?", (round,))


def _oldest(db: Connection, table: str, key: str) -> int | None:
    (oldest,) = db.execute(f"SELECT MIN({key}) FROM {table}").fetchone()
    return None if oldest is None else int(oldest)


def delete_oldest(db: Connection, table: str, key: str, last: int) -> bool:
    """Deletes some rows up to `last`; returns whether any are left."""
    oldest = _oldest(db, table, key)
    if oldest is None or oldest > last:
        return False
    end = min(oldest + BATCH - 1, last)
    db.execute(f"DELETE FROM {table} WHERE {key} <= ?", (end,))
    oldest = _oldest(db, table, key)
    return oldest is not None and oldest <= last


def _add_to_totals(db: Connection, turns: Iterable[Turn]) -> None:
    totals: dict[int, ClientTotals] = {}
    for turn in turns:
        before = totals.get(turn.row) or read_client_totals(db, turn.row) or ClientTotals(turn.row)
        totals[turn.row] = _with_turn(before, turn)
    db.executemany("DELETE FROM totals WHERE row = ?", [(row,) for row in totals])
    db.executemany(
        "INSERT INTO totals VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [(*astuple(entry), entry.checksum) for entry in totals.values()],
    )


def _with_turn(totals: ClientTotals, turn: Turn) -> ClientTotals:
    if turn.kind is None:  # every client of a closed round has an outcome
        raise StoreError(f"the turn of row {turn.row} in round {turn.round} has no outcome: restore a backup")
    count: dict[str, Any] = {turn.kind: getattr(totals, turn.kind) + 1}
    seconds = turn.seconds if turn.kind in KINDS[:2] and turn.seconds is not None else 0.0
    last = max(totals.last_round, turn.round)
    return replace(totals, **count, seconds=totals.seconds + seconds, last_round=last)


def read_client_totals(db: Connection, row: int) -> ClientTotals | None:
    """Returns the totals of one client; None if all its turns are kept."""
    stored = db.execute("SELECT * FROM totals WHERE row = ?", (row,)).fetchone()
    return None if stored is None else _checked(stored)


def read_totals(db: Connection, clients: int | None = None) -> FleetTotals:
    """Returns the turns before the summary, whether their rows are deleted already or not.

    Args:
        db: A connection to the file.
        clients: The number of clients; by default of those that have joined, without new ones of the open round.
    """
    clients = int(single_value(db, "SELECT COUNT(*) FROM clients")) if clients is None else clients
    counts = {kind: np.zeros(clients, dtype=np.int64) for kind in KINDS}
    seconds, last_round = np.zeros(clients), np.zeros(clients, dtype=np.int64)
    summary = read_summary(db)
    if not summary.event:
        return FleetTotals(counts, seconds, last_round)
    by_row = {totals.row: totals for totals in map(_checked, db.execute("SELECT * FROM totals"))}
    for turn, _ in map(turn_from_row, _turns_until(db, summary.round)):
        if turn.kind is not None:
            by_row[turn.row] = _with_turn(by_row.get(turn.row) or ClientTotals(turn.row), turn)
    for row, totals in by_row.items():
        for kind in KINDS:
            counts[kind][row] = getattr(totals, kind)
        seconds[row], last_round[row] = totals.seconds, totals.last_round
    return FleetTotals(counts, seconds, last_round)


def forget_totals(db: Connection, row: int) -> None:
    """Removes the times of a client from its totals; the number of its turns is part of the certificate."""
    totals = read_client_totals(db, row)
    if totals is not None:
        erased = replace(totals, seconds=0.0)
        db.execute("UPDATE totals SET seconds = 0.0, seal = ? WHERE row = ?", (erased.checksum, row))


def _checked(stored: tuple[Any, ...]) -> ClientTotals:
    *values, seal = stored
    totals = ClientTotals(*values)
    if totals.checksum != seal:
        raise StoreError(f"the totals of row {totals.row} do not match their checksum: restore the file from a backup")
    return totals
