"""The tables of a fleet's file.

meta         the settings and their digest, and those at creation once they were amended; the current writer (the epoch
             grows whenever the file is opened to write); the digest of the last event; the number of the last closed
             round; the number of commits; figures about the writer (commit latency, refused reports); what is left to
             do of the redaction of forgotten clients, and whether unused parts of the file may contain their data;
             the snapshot (base) of which later ones are the differences
clients      the ids of the clients, by row; all are different, which the scheduler ensures: an index would make it slow
             to register many
events       the events that the state is computed from: join, close, retire, forget, amend; the digest of each covers
             all events before it
masks        the clients that were available in a closed round, as packed bits, by the number of its event
offers       the offer from which each cohort was selected: the contexts of all available clients, if the fleet is
             small enough
open_round   the open round, if any
turns        the clients that were invited in each round, and their outcomes; reports are written here
snapshot     the state after an event, so that opening the file need not replay all events; in large fleets what differs
             from an earlier one; with retention, some earlier ones too, from which the summary is taken
summary      with retention: the state after the last event that is no longer kept, which takes the place of all events
             up to it
totals       with retention: the number of turns of each client, by outcome, that are no longer in `turns`
answers      answers to requests of a service, stored in the transaction of what the request changed
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from turnout.errors import StoreError
from turnout.live.turns.records import Turn
from turnout.storage.store import Connection, StoreKind, single_value

FLEET = StoreKind(
    "fleet",
    0x7475666C,  # "tufl", in ASCII
    1,
    """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE clients (row INTEGER PRIMARY KEY, id TEXT NOT NULL);
CREATE TABLE events (seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, data BLOB NOT NULL, digest BLOB NOT NULL);
CREATE TABLE masks (seq INTEGER PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE offers (
    round INTEGER PRIMARY KEY, available BLOB NOT NULL, data BLOB NOT NULL, digest BLOB NOT NULL, at TEXT NOT NULL
);
CREATE TABLE open_round (round INTEGER PRIMARY KEY, data BLOB NOT NULL, digest BLOB NOT NULL);
CREATE TABLE turns (
    round INTEGER NOT NULL, row INTEGER NOT NULL, id TEXT NOT NULL, kind TEXT, seconds REAL, why TEXT, at TEXT,
    late_seconds REAL, late_at TEXT, folded INTEGER, loss REAL, signals TEXT, seal INTEGER NOT NULL,
    PRIMARY KEY (round, row)
) WITHOUT ROWID;
CREATE INDEX turns_by_id ON turns (id, round);
CREATE TABLE snapshot (
    seq INTEGER PRIMARY KEY, data BLOB NOT NULL, digest BLOB NOT NULL, round INTEGER NOT NULL, at TEXT NOT NULL
);
CREATE TABLE summary (
    seq INTEGER PRIMARY KEY, round INTEGER NOT NULL, previous BLOB NOT NULL, notes BLOB NOT NULL,
    digest BLOB NOT NULL, data BLOB NOT NULL, data_digest BLOB NOT NULL
);
CREATE TABLE totals (
    row INTEGER PRIMARY KEY, arrived INTEGER NOT NULL, redundant INTEGER NOT NULL, cut_off INTEGER NOT NULL,
    late INTEGER NOT NULL, failed INTEGER NOT NULL, seconds REAL NOT NULL, last_round INTEGER NOT NULL,
    seal INTEGER NOT NULL
);
CREATE TABLE answers (
    number INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, request BLOB NOT NULL, answer TEXT NOT NULL,
    at REAL NOT NULL, seal INTEGER NOT NULL
);
""",
)
#: The keys in `meta` of the settings with which an amended fleet was created, and of their digest.
INITIAL, INITIAL_DIGEST = "initial_settings", "initial_seal"
#: Fleets of up to this many clients keep the availability of every round; larger ones keep it since the last snapshot.
KEEP_AVAILABILITY_UP_TO = 10_000


def update_turns(db: Connection, turns: Sequence[Turn]) -> None:
    """Writes these turns in place of those of the same clients and rounds."""
    db.executemany(
        "UPDATE turns SET id = ?, kind = ?, seconds = ?, why = ?, at = ?, late_seconds = ?, late_at = ?, "
        "folded = ?, loss = ?, signals = ?, seal = ? WHERE round = ? AND row = ?",
        [
            (
                *(t.id, t.kind, t.seconds, t.why, t.at, t.late_seconds, t.late_at, t.folded, t.loss),
                *(t.stored_signals, t.checksum, t.round, t.row),
            )
            for t in turns
        ],
    )


def meta_value(db: Connection, key: str) -> str:
    """Returns the value of a key in the table `meta`."""
    return str(single_value(db, "SELECT value FROM meta WHERE key = ?", key))


def meta_count(db: Connection, key: str) -> int:
    """Returns the number under a key in the table `meta`."""
    value = meta_value(db, key)
    if not value.isdecimal():
        raise corruption(db, f"{key} is {value!r} instead of a number")
    return int(value)


def put_meta(db: Connection, key: str, value: str) -> None:
    """Writes the value of a key in the table `meta`, whether it has one or not."""
    db.execute("INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", (key, value))


def corruption(db: Connection, problem: str) -> StoreError:
    """Returns the error that reports a damaged file."""
    file = db.location if isinstance(db.location, Path) else None
    return StoreError(f"{db.location} is damaged ({problem}): restore it from a backup", damaged=file)
