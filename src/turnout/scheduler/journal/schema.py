"""The tables of a fleet's file.

meta         the settings and their digest, and those at creation once they were amended; the current writer (the epoch
             grows whenever the file is opened to write); the digest of the last event; the number of the last closed
             round; the number of commits; what is left to do of the redaction of forgotten clients
clients      the ids of the clients, by row; all are different, which the scheduler ensures: an index would make it slow
             to register many
events       the events that the state is computed from: join, close, retire, forget, amend; the digest of each covers
             all events before it
masks        the clients that were available in a closed round, as packed bits, by the number of its event
offers       the offer from which each cohort was selected: the contexts of all available clients, if the fleet is
             small enough
open_round   the open round, if any
turns        the clients that were invited in each round, and their outcomes; reports are written here
snapshot     the state after an event, so that opening the file need not replay all events
"""

from __future__ import annotations

from dataclasses import replace

from turnout.store.database import FileKind

#: Files of format 1 and early files of format 2 lack this table; it is created when a scheduler opens them to write.
OFFERS = """
CREATE TABLE IF NOT EXISTS offers (
    round INTEGER PRIMARY KEY, volunteers BLOB NOT NULL, data BLOB NOT NULL, digest BLOB NOT NULL
)"""
FLEET = FileKind(
    "fleet",
    0x7475666C,  # "tufl", in ASCII
    3,
    f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE clients (row INTEGER PRIMARY KEY, id TEXT NOT NULL);
CREATE TABLE events (seq INTEGER PRIMARY KEY, kind TEXT NOT NULL, data BLOB NOT NULL, digest BLOB NOT NULL);
CREATE TABLE masks (seq INTEGER PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE open_round (round INTEGER PRIMARY KEY, data BLOB NOT NULL, digest BLOB NOT NULL);
CREATE TABLE turns (
    round INTEGER NOT NULL,
    row INTEGER NOT NULL,
    id TEXT NOT NULL,
    kind TEXT,
    seconds REAL,
    why TEXT,
    at TEXT,
    late_seconds REAL,
    late_at TEXT,
    folded INTEGER,
    seal INTEGER NOT NULL,
    loss REAL,
    PRIMARY KEY (round, row)
) WITHOUT ROWID;
CREATE INDEX turns_by_id ON turns (id, round);
CREATE TABLE snapshot (seq INTEGER PRIMARY KEY, data BLOB NOT NULL, digest BLOB NOT NULL);
{OFFERS};
""",
)
#: Still readable: files of format 2 do not count their commits and have no amendments; in format 1, turns have no
#: losses either. A scheduler that opens such a file to write upgrades it.
FORMAT_1, FORMAT_2 = replace(FLEET, format=1), replace(FLEET, format=2)
READABLE = (FLEET, FORMAT_2, FORMAT_1)
#: The statements that upgrade a file, by its format.
UPGRADES = {1: ("ALTER TABLE turns ADD COLUMN loss REAL", OFFERS), 2: (OFFERS,)}
#: The keys in `meta` of the settings with which an amended fleet was created, and of their digest.
INITIAL, INITIAL_DIGEST = "initial_settings", "initial_seal"
#: Fleets of up to this many clients keep the availability of every round; larger ones keep it since the last snapshot.
KEEP_AVAILABILITY_UP_TO = 10_000
