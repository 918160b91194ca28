"""What a look at a fleet's file came to, and what several looks read."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from turnout.scheduler.records import Turn, turn_from_row

TOLD = 5
RESTORE = "restore the file from a backup"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a look at one part of the file came to; `sound` is None for what is told and not judged."""

    part: str
    sound: bool | None
    words: str
    remedy: str = ""


@dataclass(slots=True)
class Look:
    """What a check saw: in a word, and what is wrong."""

    words: str = ""
    wrong: list[str] = field(default_factory=list)


def finding_of(part: str, check: Callable[[], Look], remedy: str = RESTORE) -> Finding:
    """What a check comes to, also where it breaks down."""
    try:
        look = check()
    except Exception as damage:  # damaged bytes can lead to anything
        return Finding(part, False, f"cannot be read ({' '.join(str(damage).split())})", remedy)
    if not look.wrong:
        return Finding(part, True, look.words)
    more = f"; and {len(look.wrong) - TOLD:,} more" if len(look.wrong) > TOLD else ""
    return Finding(part, False, "; ".join(look.wrong[:TOLD]) + more, remedy)


def meta(db: sqlite3.Connection, key: str) -> str:
    """What stands under this key."""
    return str(db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()[0])


def data_of(db: sqlite3.Connection, kind: str) -> Iterator[tuple[bytes]]:
    """The events of a kind."""
    yield from db.execute("SELECT data FROM events WHERE kind = ? ORDER BY seq", (kind,))


def closes(db: sqlite3.Connection) -> Iterator[tuple[int, bytes]]:
    """Numbers and data of the events that closed a round."""
    yield from db.execute("SELECT seq, data FROM events WHERE kind = 'close' ORDER BY seq")


def turns_of(db: sqlite3.Connection, round_: int) -> dict[int, Turn]:
    """Everyone who was invited in a round, by row."""
    found = db.execute("SELECT * FROM turns WHERE round = ?", (round_,))
    return {turn.row: turn for turn, _ in map(turn_from_row, found)}


def forgotten_rows(db: sqlite3.Connection) -> set[int]:
    """Who was forgotten."""
    return {int(json.loads(data)["row"]) for (data,) in data_of(db, "forget")}


def snapshot_gaps(db: sqlite3.Connection) -> str:
    """Why the snapshot cannot be done without, if it cannot."""
    if forgotten_rows(db):
        return "clients were forgotten"
    masks, closed = db.execute("SELECT (SELECT COUNT(*) FROM masks), SUM(kind = 'close') FROM events").fetchone()
    return "who was available was dropped" if masks < (closed or 0) else ""


def snapshot_seq(db: sqlite3.Connection) -> int:
    """The event after which the last snapshot was taken, or 0."""
    return int(db.execute("SELECT COALESCE(MAX(seq), 0) FROM snapshot").fetchone()[0])
