"""Changes the files of fleets together with their digests, as a bug in turnout might."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from postgres import tables
from turnout.live.journal.summary import read_summary
from turnout.live.turns.records import digest_of, turn_from_row
from turnout.storage.encoding.packing import pack, pack_snapshot, unpack, unpack_snapshot
from turnout.storage.store import Connection

#: Changes the header and the arrays of an event in place.
Change = Callable[[dict[str, Any], dict[str, Any]], object]


def alter(path: Path, change: str | Callable[[Connection], object]) -> None:
    """Changes a file by a function, or by a statement that finds what it changes."""
    with tables(path) as db:
        if isinstance(change, str):
            assert db.execute(change).rowcount
        else:
            change(db)


def fetch_row(db: Connection, query: str, *values: object) -> tuple[Any, ...]:
    """Returns the first row of a query."""
    row: tuple[Any, ...] = db.execute(query, values).fetchone()
    return row


def forge_turn(db: Connection, where: str, change: str) -> None:
    """Changes the first turn of those, and its checksum."""
    key = fetch_row(db, f"SELECT round, row FROM turns WHERE {where} ORDER BY round LIMIT 1")
    db.execute(f"UPDATE turns SET {change} WHERE round = ? AND row = ?", key)
    turn, _ = turn_from_row(fetch_row(db, "SELECT * FROM turns WHERE round = ? AND row = ?", *key))
    db.execute("UPDATE turns SET seal = ? WHERE round = ? AND row = ?", (turn.checksum, *key))


def forge_event(db: Connection, number: int, change: Change) -> None:
    """Changes a close or fill event, and the digests of all events."""
    header, arrays = unpack(fetch_row(db, "SELECT data FROM events WHERE seq = ?", number)[0])
    arrays = {name: array.copy() for name, array in arrays.items()}
    change(header, arrays)
    db.execute("UPDATE events SET data = ? WHERE seq = ?", (pack(header, arrays), number))
    chain_events(db)


def chain_events(db: Connection) -> None:
    """Computes the digests of all events that are kept again."""
    summary = read_summary(db)
    digest = summary.digest
    query = "SELECT seq, kind, data FROM events WHERE seq > ? ORDER BY seq"
    for seq, kind, data in db.execute(query, (summary.event,)).fetchall():
        digest = digest_of(digest, kind, data)
        db.execute("UPDATE events SET digest = ? WHERE seq = ?", (digest, seq))
    db.execute("UPDATE meta SET value = ? WHERE key = 'head'", (digest.hex(),))


def forge_snapshot(db: Connection, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes the state in the only snapshot, and its digest."""
    seq, data = fetch_row(db, "SELECT seq, data FROM snapshot")
    state = unpack_snapshot(data)
    change(state)
    data = pack_snapshot(state)
    db.execute("UPDATE snapshot SET data = ?, digest = ?", (data, digest_of(b"", str(seq), data)))


def forge_summary_state(db: Connection, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes the state in the summary, and its digest."""
    data, digest = fetch_row(db, "SELECT data, digest FROM summary")
    state = unpack_snapshot(data)
    change(state)
    data = pack_snapshot(state)
    db.execute("UPDATE summary SET data = ?, data_digest = ?", (data, digest_of(digest, "state", data)))


def swap_running_turns(db: Connection) -> None:
    """Stores the newest running turn as the oldest one, with the digest that belongs there."""
    first, last = fetch_row(db, "SELECT MIN(round), MAX(round) FROM open_round")
    (data,) = fetch_row(db, "SELECT data FROM open_round WHERE round = ?", last)
    values = (data, digest_of(b"", str(first), data), first)
    assert first < last
    db.execute("UPDATE open_round SET data = ?, digest = ? WHERE round = ?", values)
