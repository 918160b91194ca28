"""Queries of turns, offers and what is open, and the removal of a forgotten client from everything that was written.

The queries take a connection inside a transaction, so that one transaction can make several of them.

A client is removed in short transactions. Its id is replaced and a forget event is written first. Then the turns, the
offers and the events are redacted from the oldest on, some at a time, so that other processes can write in between; a
process that is killed continues when the file is opened again. Queries redact what is left by themselves.

Because the digest of an event covers all events before it, the digests of all later events change. While the redaction
is running, the events up to a boundary have new digests. The event after the boundary still has the digest that
follows from the old one, which is kept until then.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from turnout.kernel.certificate import TimeUnit
from turnout.live.journal.schema import corruption, meta_value, put_meta, update_turns
from turnout.live.journal.summary import forget_totals, last_event, trim
from turnout.live.turns import records
from turnout.live.turns.rounds.records import OpenRound, unpack_open
from turnout.live.turns.slots.records import RunningTurnRecord, unpack_running_turn
from turnout.storage.encoding.packing import pack, parse_stored, unpack
from turnout.storage.store import Connection, single_value

#: What clients reported in each kind of event: the arrays of values, by the array of the rows to which they belong.
REPORTED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "close": {"rows": ("contexts", "seconds", "losses", "signals"), "late_rows": ("late_seconds",)},
    "fill": {
        "rows": ("contexts",),
        "ended_rows": ("ended_seconds", "losses", "signals"),
        "late_rows": ("late_seconds",),
    },
}
#: The number of turns, offers or events that one transaction redacts.
BATCH = 200
#: The key in `meta` of a mark: SQLite leaves bytes of changed rows in unused parts of its pages, so the file may still
#: contain data of forgotten clients, which no query returns. Rewriting the whole file removes them.
NEEDS_VACUUM = "unclean"
#: The bytes of events after which a transaction redacts no more: one that many clients joined with is large.
MAX_EVENT_BYTES = 1 << 20
#: The columns of a turn; whether it is open; and the clients that are being forgotten, so that this needs no query.
_TURNS = (
    "SELECT t.*, EXISTS (SELECT 1 FROM open_round o WHERE o.round = t.round), "
    "(SELECT value FROM meta WHERE key = 'redactions') FROM turns t"
)


def redact_event(kind: str, data: bytes, row: int, client: str, name: str) -> bytes:
    """Returns the data of an event without anything that a client reported; replays start from a later snapshot.

    Args:
        kind: The kind of the event.
        data: The data of the event.
        row: The row of the client.
        client: The id of the client.
        name: The name that replaces the id.
    """
    if kind == "join":
        ids = parse_stored(data)
        return json.dumps([name if joined == client else joined for joined in ids], ensure_ascii=False).encode()
    if kind not in REPORTED:
        return data
    header, arrays = unpack(data)
    if not any(row in arrays[rows] for rows in REPORTED[kind]):
        return data
    for rows, values in REPORTED[kind].items():
        own = arrays[rows] == row
        for value in values:
            if value in arrays:
                arrays[value] = arrays[value].copy()
                arrays[value][own] = np.nan if value in ("losses", "signals") else 0.0
    return pack(header, arrays)


@dataclass(frozen=True, slots=True)
class Redaction:
    """How far the redaction of a client has come.

    Attributes:
        row: The row of the client.
        client: Its id.
        name: The name that replaces its id.
        offers: The last round whose offer was checked.
        boundary: The last event that was redacted.
        digest: The digest, in hexadecimal, that this event had before.
        is_turn_left: Whether there may be turns under the old id.
        is_offer_left: Whether there may be offers that were not checked.
    """

    row: int
    client: str
    name: str
    offers: int = 0
    boundary: int = 0
    digest: str = ""
    is_turn_left: bool = True
    is_offer_left: bool = True


def pending_redactions(db: Connection) -> list[Redaction]:
    """Returns the redactions that are not complete, in the order in which they were started."""
    stored = db.execute("SELECT value FROM meta WHERE key = 'redactions'").fetchone()
    return [] if stored is None else [Redaction(**entry) for entry in json.loads(stored[0])]


def redact_pending_event(pending: Sequence[Redaction], seq: int, kind: str, data: bytes) -> bytes:
    """Returns the data of an event without forgotten clients, also if it is not redacted in the file yet."""
    for redaction in pending:
        if seq > redaction.boundary:
            data = redact_event(kind, data, redaction.row, redaction.client, redaction.name)
    return data


def redact_pending_turn(pending: Sequence[Redaction], turn: records.Turn) -> records.Turn:
    """Returns a turn without what a forgotten client reported, also if it is not redacted in the file yet."""
    for redaction in pending:
        if turn.id == redaction.client:
            return _redacted(turn, redaction.name)
    return turn


def is_offer_dropped(pending: Sequence[Redaction], round: int, availability: bytes) -> bool:
    """Returns whether an offer contains a forgotten client, although it is still in the file."""
    return any(
        redaction.is_offer_left and round > redaction.offers and records.was_available(availability, redaction.row)
        for redaction in pending
    )


def needs_vacuum(db: Connection) -> bool:
    """Returns whether unused parts of the file may contain data of forgotten clients."""
    return db.execute("SELECT 1 FROM meta WHERE key = ?", (NEEDS_VACUUM,)).fetchone() is not None


def start_redaction(db: Connection, redaction: Redaction, since: int) -> None:
    """Replaces the id of the client, and redacts its turns after round `since`."""
    db.execute(db.dialect.ERASE)
    db.execute("UPDATE clients SET id = ? WHERE row = ?", (redaction.name, redaction.row))
    forget_totals(db, redaction.row)
    _redact_turns(db, redaction, "AND round > ?", since)
    _store(db, [*pending_redactions(db), redaction])


def continue_redaction(db: Connection) -> bool:
    """Redacts the next turns, offers or events; returns whether anything is left to do."""
    pending = pending_redactions(db)
    if not pending:
        return False
    first, *others = pending
    db.execute(db.dialect.ERASE)
    updated: Redaction | None = first
    is_trimmed = not trim(db)  # rows that are no longer kept need not be redacted
    forget_totals(db, first.row)
    if not is_trimmed:
        pass
    elif first.is_turn_left:
        updated = replace(first, is_turn_left=_redact_turns(db, first, f"LIMIT {BATCH}") == BATCH)
    elif first.is_offer_left:
        updated = _drop_offers(db, first)
    else:
        updated = _redact_events(db, first)
    _store(db, [*([] if updated is None else [updated]), *others])
    db.execute(db.dialect.ERASE_LESS)
    return updated is not None or bool(others)


def _store(db: Connection, redactions: Sequence[Redaction]) -> None:
    text = json.dumps([asdict(redaction) for redaction in redactions])
    db.execute("DELETE FROM meta WHERE key = 'redactions'")
    if redactions:
        db.execute("INSERT INTO meta VALUES ('redactions', ?)", (text,))


def _redact_turns(db: Connection, redaction: Redaction, which: str, *values: int) -> int:
    """Redacts some turns that have the old id; returns their number."""
    stored = db.execute(f"SELECT * FROM turns WHERE id = ? {which}", (redaction.client, *values)).fetchall()
    turns = [records.turn_from_row(row)[0] for row in stored]
    update_turns(db, [_redacted(turn, redaction.name) for turn in turns])
    return len(turns)


def _redacted(turn: records.Turn, name: str) -> records.Turn:
    return replace(
        turn,
        id=name,
        seconds=None if turn.seconds is None else 0.0,
        why=None,
        at=None,
        late_seconds=None,
        late_at=None,
        folded=turn.folded or turn.round,
        loss=None,
        signals=None,
    )


def _drop_offers(db: Connection, redaction: Redaction) -> Redaction:
    """Deletes offers that contain the client: a selection cannot be repeated without its context."""
    query = "SELECT round, available FROM offers WHERE round > ? ORDER BY round LIMIT ?"
    stored = db.execute(query, (redaction.offers, BATCH)).fetchall()
    contained = [(round_,) for round_, available in stored if records.was_available(available, redaction.row)]
    db.executemany("DELETE FROM offers WHERE round = ?", contained)
    last = stored[-1][0] if stored else redaction.offers
    return replace(redaction, offers=last, is_offer_left=len(stored) == BATCH)


def _redact_events(db: Connection, redaction: Redaction) -> Redaction | None:
    """Redacts the next events and computes their digests again; returns None after the last event."""
    boundary, old = redaction.boundary, bytes.fromhex(redaction.digest)
    query = "SELECT seq, kind, data, digest FROM events WHERE seq > ? ORDER BY seq LIMIT ?"
    stored = db.execute(query, (boundary, BATCH))
    before = db.execute("SELECT digest FROM events WHERE seq = ?", (boundary,)).fetchone()
    new = old if before is None else records.as_bytes(before[0])
    size, changed = 0, []
    for seq, kind, data, digest in stored:
        redacted = redact_event(kind, data, redaction.row, redaction.client, redaction.name)
        new, old, boundary = records.digest_of(new, kind, redacted), records.as_bytes(digest), seq
        if new != old:
            changed.append((redacted, new, seq))
        size += len(data)
        if size >= MAX_EVENT_BYTES:
            break
    db.executemany("UPDATE events SET data = ?, digest = ? WHERE seq = ?", changed)
    if boundary < last_event(db)[0]:
        return replace(redaction, boundary=boundary, digest=old.hex())
    db.execute("UPDATE meta SET value = ? WHERE key = 'head'", (new.hex(),))
    put_meta(db, NEEDS_VACUUM, "1")
    return None


def read_unit(db: Connection) -> TimeUnit:
    """Returns what the numbers of turns count."""
    return TimeUnit.of(parse_stored(meta_value(db, "settings")).get("concurrency"))


def turns_where(db: Connection, condition: str, *values: Any) -> list[records.Turn]:
    """Returns the turns that fulfil a condition in SQL, without what forgotten clients reported.

    Raises:
        StoreError: If one of them does not match its checksum.
    """
    return [turn for turn, _ in _decoded(db, db.execute(f"{_TURNS} WHERE {condition}", values))]


def find_turn(db: Connection, client: str, round: int | None = None) -> tuple[records.Turn, bool] | None:
    """Returns the turn of a client in a round, by default its newest, and whether it is open; None without one."""
    if round is None:
        stored = db.execute(f"{_TURNS} WHERE t.id = ? ORDER BY t.round DESC LIMIT 1", (client,))
    else:
        stored = db.execute(f"{_TURNS} WHERE t.id = ? AND t.round = ?", (client, round))
    return next(iter(_decoded(db, stored)), None)


def open_turns_of(db: Connection, clients: Sequence[str]) -> dict[str, records.Turn]:
    """Returns the turns of these clients in the open round, by id; clients without one are missing."""
    opened = "(SELECT MIN(round) FROM open_round)"
    query = f"{_TURNS} {db.dialect.BY_ID} WHERE t.round = {opened} AND t.id {db.dialect.IN_LIST}"
    stored = db.execute(query, (json.dumps(clients, ensure_ascii=False),))
    return {turn.id: turn for turn, _ in _decoded(db, stored)}


def turns_since(db: Connection, round: int) -> list[records.Turn]:
    """Returns all turns after a round, and checks that the index by id contains each of them."""
    indexed = (
        f"SELECT COUNT(*) FROM turns t WHERE round > ? AND EXISTS (SELECT 1 FROM turns u {db.dialect.BY_ID} "
        "WHERE u.id = t.id AND u.round = t.round AND u.row = t.row)"
    )
    turns = turns_where(db, "t.round > ? ORDER BY t.round, t.row", round)
    if single_value(db, indexed, round) != len(turns):
        raise corruption(db, "the index of turns by id is incomplete")
    return turns


def _decoded(db: Connection, stored: Any) -> list[tuple[records.Turn, bool]]:
    turns: list[tuple[records.Turn, bool]] = []
    pending: list[Redaction] = []
    for *row, is_open, redactions in stored.fetchall():
        turn, is_intact = records.turn_from_row(row)
        if not is_intact:
            where = f"{read_unit(db)} {turn.round}"
            raise corruption(db, f"the turn of {turn.id!r} in {where} does not match its checksum")
        if redactions is not None:
            pending = pending or pending_redactions(db)
            turn = redact_pending_turn(pending, turn)
        turns.append((turn, bool(is_open)))
    return turns


# What is open


def read_open_round(db: Connection) -> OpenRound | None:
    """Returns the open round, or None if no round is open."""
    stored = db.execute("SELECT round, data, digest FROM open_round").fetchone()
    if stored is None:
        return None
    number, data, digest = stored
    if digest != records.digest_of(b"", str(number), data):
        raise corruption(db, f"the open round {number} does not match its digest")
    return unpack_open(data)


def read_running_turns(db: Connection) -> dict[int, RunningTurnRecord]:
    """Returns the running turns of a fleet without rounds, by decision."""
    running_turns = {}
    for number, data, digest in db.execute("SELECT round, data, digest FROM open_round ORDER BY round").fetchall():
        if digest != records.digest_of(b"", str(number), data):
            raise corruption(db, f"the turn {number} that is running does not match its digest")
        running_turns[int(number)] = unpack_running_turn(data)
    return running_turns


# Offers


def read_offer(db: Connection, round: int) -> records.RecordedOffer | None:
    """Returns the offer from which the cohort of a round was selected, or None if it is not recorded."""
    stored = db.execute("SELECT available, data, digest FROM offers WHERE round = ?", (round,)).fetchone()
    if stored is None or is_offer_dropped(pending_redactions(db), round, stored[0]):
        return None
    available, data, digest = stored
    if digest != records.offer_digest(round, available, data):
        raise corruption(db, f"the offer of {read_unit(db)} {round} does not match its digest")
    return records.unpack_offer(data, available)


def read_offer_of_decision(db: Connection, decision: int) -> records.RecordedOffer | None:
    """Returns the offer of a decision about one slot, or None if it is not recorded.

    Several slots may be filled at once: only the offer of the first is recorded, and those that were given a turn
    before this decision were not available any more. The reasons of the other decisions are not recorded.
    """
    first = db.execute("SELECT MAX(round) FROM offers WHERE round <= ?", (decision,)).fetchone()[0]
    recorded = None if first is None else read_offer(db, first)
    if recorded is None or first == decision:
        return recorded
    turns = turns_where(db, "t.round BETWEEN ? AND ? ORDER BY t.round, t.row", first, decision)
    if any(turn.round == decision for turn in turns) and len(turns) == decision - first + 1:
        given = np.array([turn.row for turn in turns if turn.round < decision], dtype=np.int64)
        own = np.array([turn.row for turn in turns if turn.round == decision], dtype=np.int64)
        left = recorded.available.copy()
        left[given] = False
        contexts = None if recorded.contexts is None else recorded.contexts[left[recorded.available]]
        return records.RecordedOffer(decision, own, {}, left, contexts)
    return None
