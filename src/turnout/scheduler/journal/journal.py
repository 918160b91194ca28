"""The journal of a fleet: one SQLite file, in which every change is one transaction.

meta         the settings and their digest; the current writer (the epoch grows whenever the file is opened to write);
             the digest of the last event; the number of the last closed round
clients      the ids of the clients, by row
events       the events that the state is computed from: join, close, retire, forget; the digest of each covers all
             events before it
masks        the clients that were available in a closed round, as packed bits, by the number of its event
offers       the offer from which each cohort was selected: the contexts of all available clients, if the fleet is
             small enough
open_round   the open round, if any
turns        the clients that were invited in each round, and their outcomes; reports are written here
snapshot     the state after an event, so that opening the file need not replay all events
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from turnout.errors import StoreError
from turnout.scheduler.records import (
    OpenRound,
    RecordedOffer,
    Turn,
    as_bytes,
    digest_of,
    pack_offer,
    pack_open,
    redact_event,
    turn_from_row,
    unpack_offer,
    unpack_open,
    was_available,
)
from turnout.store.database import FileKind, check_integrity, connect, create, transaction, translate_sqlite_errors
from turnout.store.lock import Writer, WriterLock, lock_path
from turnout.store.packing import pack_snapshot, parse_stored, unpack_snapshot
from turnout.store.wal import lost_commits

#: Files of format 1 and early files of format 2 lack this table; it is created when a scheduler opens them to write.
OFFERS = """
CREATE TABLE IF NOT EXISTS offers (
    round INTEGER PRIMARY KEY, volunteers BLOB NOT NULL, data BLOB NOT NULL, digest BLOB NOT NULL
)"""
FLEET = FileKind(
    "fleet",
    0x7475666C,  # "tufl", in ASCII
    2,
    f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE clients (row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE);
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
#: Still readable: its turns have no losses. A scheduler that opens such a file to write upgrades it.
FORMAT_1 = replace(FLEET, format=1)
TO_FORMAT_2 = ("ALTER TABLE turns ADD COLUMN loss REAL", "PRAGMA user_version = 2")
#: Fleets of up to this many clients keep the availability of every round; larger ones keep it since the last snapshot.
KEEP_AVAILABILITY_UP_TO = 10_000


class Journal:
    """Reads and writes the file of a fleet. It knows nothing about policies; all its errors are StoreErrors.

    Args:
        path: The file, which must exist.
        read_only: Whether the file is only read.
        reporting: Whether only outcomes are written, by a process beside the scheduler.
        takeover: Whether to replace a process that holds the file but hangs; it can no longer write afterwards.
    """

    def __init__(self, path: Path, *, read_only: bool = False, reporting: bool = False, takeover: bool = False) -> None:
        self.path, self.read_only = path, read_only
        self._lock: WriterLock | None = None
        self._process = os.getpid()
        self._epoch: int | None = None
        if not path.exists():
            raise StoreError(f"there is no fleet at {path}: check the path, or create one with Scheduler.open(path)")
        schedules = not read_only and not reporting
        try:
            with translate_sqlite_errors(path):
                if takeover:
                    # Unlinking leaves the hung process with the lock on the old inode; a new process locks a new file.
                    lock_path(path).unlink(missing_ok=True)
                if schedules:
                    self._lock = WriterLock(path)
                    self._refuse_lost_commits()
                self.db = _connect(path, read_only=read_only)
                if reporting and self._format < FLEET.format:
                    raise StoreError(
                        f"{path} has fleet format {self._format}: open it once with Scheduler.open to upgrade it"
                    )
                check_integrity(self.db, path, thoroughly=schedules)
                if schedules:
                    self.db.execute("PRAGMA journal_mode = WAL")  # a copy made by VACUUM INTO has lost this mode
            if schedules:
                self._claim_epoch()
        except BaseException:
            self.close()
            raise

    @classmethod
    def make(cls, path: Path, settings: Mapping[str, Any]) -> None:
        """Creates the file of a new fleet atomically; a file that already exists is left as it is."""
        if not path.parent.is_dir():
            raise StoreError(f"there is no folder {path.parent}: create it, or choose another path")

        text = json.dumps(settings, sort_keys=True)
        meta = {"settings": text, "seal": settings_digest(text), "epoch": "0", "writer": "", "head": "", "round": "0"}

        def fill(db: sqlite3.Connection) -> None:
            db.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())

        with translate_sqlite_errors(path):
            lock = WriterLock(path)
            try:
                if not path.exists():
                    create(path, FLEET, fill)
            finally:
                lock.release()

    @property
    def settings(self) -> dict[str, Any]:
        """The settings with which the file was created."""
        with self.reading():
            text = self._meta("settings")
            if settings_digest(text) != self._meta("seal"):
                raise self.corruption("the settings do not match their digest")
            return dict(parse_stored(text))

    def close(self) -> None:
        """Closes the file and releases the lock; a second call has no effect."""
        if getattr(self, "db", None) is not None:
            self.db.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Opens a read transaction, in which all queries see one state of the file; it may be nested."""
        with translate_sqlite_errors(self.path):
            self._check_process()
            if self.db.in_transaction:
                yield self.db
                return
            self.db.execute("BEGIN")
            try:
                yield self.db
            finally:
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Opens a write transaction; refused once another process has taken over the file."""
        with translate_sqlite_errors(self.path):
            self._check_process()
            if self.read_only:
                raise StoreError(f"{self.path} was opened for reading: open it without read_only=True to write")
            with transaction(self.db):
                if self._epoch is not None:
                    self._check_epoch()
                yield self.db

    def check_writer(self) -> None:
        """Raises StoreError if another process has taken over the file."""
        with self.reading():
            if self._epoch is not None:
                self._check_epoch()

    # Queries

    def ids(self) -> list[str]:
        """Returns the ids of all clients, by row."""
        with self.reading() as db:
            return [str(client) for (client,) in db.execute("SELECT id FROM clients ORDER BY row")]

    def snapshot(self) -> tuple[int, dict[str, Any]] | None:
        """Returns the last snapshot: the number of the event after which it was taken, and the state."""
        with self.reading() as db:
            stored = db.execute("SELECT seq, data, digest FROM snapshot ORDER BY seq DESC LIMIT 1").fetchone()
        if stored is None:
            return None
        seq, data, digest = stored
        if digest != digest_of(b"", str(seq), data):
            raise self.corruption("the snapshot does not match its digest")
        return int(seq), unpack_snapshot(data)

    def events(self, after: int = 0, limit: int = -1) -> Iterator[tuple[int, str, bytes, bytes | None]]:
        """Yields (number, kind, data, packed availability) of the events after event `after`, checking each digest.

        At most `limit` events are read; −1 stands for all.
        """
        with self.reading() as db:
            previous = b"" if not after else _single_value(db, "SELECT digest FROM events WHERE seq = ?", after)
            stored = db.execute(
                "SELECT e.seq, e.kind, e.data, e.digest, m.data FROM events e LEFT JOIN masks m ON m.seq = e.seq "
                "WHERE e.seq > ? ORDER BY e.seq LIMIT ?",
                (after, limit),
            )
            expected = after
            for seq, kind, data, digest, availability in stored:
                expected += 1
                if seq != expected or digest != digest_of(previous, kind, data):
                    raise self.corruption(f"event {expected} is missing or does not match its digest")
                previous = digest
                yield seq, kind, data, availability

    def last_event(self) -> int:
        """Returns the number of the newest event; 0 before the first."""
        with self.reading() as db:
            return int(_single_value(db, "SELECT COALESCE(MAX(seq), 0) FROM events"))

    def has_all_availability(self) -> bool:
        """Returns whether the availability of clients is stored for every closed round."""
        with self.reading() as db:
            closed = _single_value(db, "SELECT COUNT(*) FROM events WHERE kind = 'close'")
            return bool(closed == _single_value(db, "SELECT COUNT(*) FROM masks"))

    def open_round(self) -> OpenRound | None:
        """Returns the open round, or None if no round is open."""
        with self.reading() as db:
            stored = db.execute("SELECT round, data, digest FROM open_round").fetchone()
        if stored is None:
            return None
        number, data, digest = stored
        if digest != digest_of(b"", str(number), data):
            raise self.corruption(f"the open round {number} does not match its digest")
        return unpack_open(data)

    def count_joined(self, event: int) -> int:
        """Returns how many clients had joined by this event, inclusive."""
        with self.reading() as db:
            stored = db.execute("SELECT data FROM events WHERE kind = 'join' AND seq <= ?", (event,))
            return sum(len(parse_stored(data)) for (data,) in stored)

    def rounds_with_offers(self) -> list[int]:
        """Returns the rounds whose offers are recorded."""
        with self.reading() as db:
            if not has_offers(db):
                return []
            return [int(number) for (number,) in db.execute("SELECT round FROM offers ORDER BY round")]

    def offer(self, round: int) -> RecordedOffer | None:
        """Returns the offer from which the cohort of a round was selected, or None if it is not recorded."""
        with self.reading() as db:
            if not has_offers(db):
                return None
            stored = db.execute("SELECT volunteers, data, digest FROM offers WHERE round = ?", (round,)).fetchone()
        if stored is None:
            return None
        volunteers, data, digest = stored
        if digest != offer_digest(round, volunteers, data):
            raise self.corruption(f"the offer of round {round} does not match its digest")
        return unpack_offer(data, volunteers)

    def head(self) -> str:
        """Returns the digest of the newest event, which covers all events."""
        with self.reading():
            return self._meta("head")

    def turns_of(self, round: int) -> list[Turn]:
        """Returns the turns of all clients that were invited in a round, by row."""
        with self.reading() as db:
            stored = db.execute("SELECT * FROM turns WHERE round = ? ORDER BY row", (round,)).fetchall()
        return [self._decode_turn(row) for row in stored]

    def turns_of_client(self, client: str) -> list[Turn]:
        """Returns all turns of a client, in order."""
        with self.reading() as db:
            stored = db.execute("SELECT * FROM turns WHERE id = ? ORDER BY round", (client,)).fetchall()
        return [self._decode_turn(row) for row in stored]

    def turn(self, client: str, round: int | None = None) -> Turn | None:
        """Returns the turn of a client in a round, by default its newest; None if there is none."""
        query, values = "SELECT * FROM turns WHERE id = ? ORDER BY round DESC LIMIT 1", (client,)
        if round is not None:
            query, values = "SELECT * FROM turns WHERE id = ? AND round = ?", (client, round)  # type: ignore[assignment]
        with self.reading() as db:
            stored = db.execute(query, values).fetchone()
        return None if stored is None else self._decode_turn(stored)

    @property
    def changes(self) -> int:
        """A number that changes whenever another connection has written to the file."""
        with translate_sqlite_errors(self.path):
            self._check_process()
            return int(_single_value(self.db, "PRAGMA data_version"))

    def open_round_number(self) -> int | None:
        """Returns the number of the open round, or None if no round is open."""
        with self.reading() as db:
            stored = db.execute("SELECT round FROM open_round").fetchone()
        return None if stored is None else int(stored[0])

    def turns_since(self, round: int) -> list[Turn]:
        """Returns all turns after a round, and checks that the index by id contains each of them."""
        indexed = (
            "SELECT COUNT(*) FROM turns t WHERE round > ? AND EXISTS (SELECT 1 FROM turns u INDEXED BY turns_by_id "
            "WHERE u.id = t.id AND u.round = t.round AND u.row = t.row)"
        )
        with self.reading() as db:
            stored = db.execute("SELECT * FROM turns WHERE round > ? ORDER BY round, row", (round,)).fetchall()
            if _single_value(db, indexed, round) != len(stored):
                raise self.corruption("the index of turns by id is incomplete")
        return [self._decode_turn(row) for row in stored]

    def last_closed_round(self) -> int:
        """Returns the number of the last closed round; 0 before the first."""
        with self.reading():
            return self._meta_count("round")

    def check_head(self) -> None:
        """Raises StoreError if the newest events are missing."""
        with self.reading() as db:
            last = db.execute("SELECT digest FROM events ORDER BY seq DESC LIMIT 1").fetchone()
            if (b"" if last is None else as_bytes(last[0])).hex() != self._meta("head"):
                raise self.corruption("the newest events are missing")

    def pending_late_turns(self) -> list[Turn]:
        """Returns the turns of late clients whose true times were reported but are not yet part of a closed round."""
        query = "SELECT * FROM turns WHERE late_seconds IS NOT NULL AND folded IS NULL ORDER BY round, row"
        with self.reading() as db:
            stored = db.execute(query).fetchall()
        return [self._decode_turn(row) for row in stored]

    # Changes, each inside a write transaction of the caller

    def add_clients(self, db: sqlite3.Connection, first: int, ids: Sequence[str]) -> None:
        """Adds clients from row `first` on, with a join event."""
        if ids:
            db.executemany("INSERT INTO clients VALUES (?, ?)", enumerate(ids, start=first))
            self.add_event(db, "join", json.dumps(list(ids), ensure_ascii=False).encode())

    def add_event(self, db: sqlite3.Connection, kind: str, data: bytes, availability: bytes | None = None) -> int:
        """Appends an event whose digest covers all events before it; returns its number."""
        last = db.execute("SELECT seq, digest FROM events ORDER BY seq DESC LIMIT 1").fetchone()
        seq, previous = (1, b"") if last is None else (int(last[0]) + 1, last[1])
        digest = digest_of(previous, kind, data)
        db.execute("INSERT INTO events VALUES (?, ?, ?, ?)", (seq, kind, data, digest))
        db.execute("UPDATE meta SET value = ? WHERE key = 'head'", (digest.hex(),))
        if availability is not None:
            db.execute("INSERT INTO masks VALUES (?, ?)", (seq, availability))
        return seq

    def put_open_round(self, db: sqlite3.Connection, opened: OpenRound, ids: Sequence[str]) -> None:
        """Writes the open round and the turns of its cohort, before the cohort is returned to the server."""
        data = pack_open(opened)
        digest = digest_of(b"", str(opened.round), data)
        db.execute("INSERT INTO open_round VALUES (?, ?, ?)", (opened.round, data, digest))
        turns = [Turn(opened.round, int(row), client) for row, client in zip(opened.rows, ids, strict=True)]
        db.executemany(
            "INSERT INTO turns (round, row, id, seal) VALUES (?, ?, ?, ?)",
            [(turn.round, turn.row, turn.id, turn.checksum) for turn in turns],
        )

    def put_offer(self, db: sqlite3.Connection, offer: RecordedOffer) -> None:
        """Writes the offer from which the cohort of the open round was selected."""
        data, volunteers = pack_offer(offer)
        values = (offer.round, volunteers, data, offer_digest(offer.round, volunteers, data))
        db.execute("INSERT INTO offers VALUES (?, ?, ?, ?)", values)

    def drop_offer(self, db: sqlite3.Connection, round: int) -> None:
        """Deletes the offer of a round."""
        db.execute("DELETE FROM offers WHERE round = ?", (round,))

    def put_turns(self, db: sqlite3.Connection, turns: Sequence[Turn]) -> None:
        """Updates turns with their outcomes."""
        db.executemany(
            "UPDATE turns SET id = ?, kind = ?, seconds = ?, why = ?, at = ?, late_seconds = ?, late_at = ?, "
            "folded = ?, loss = ?, seal = ? WHERE round = ? AND row = ?",
            [
                (
                    *(t.id, t.kind, t.seconds, t.why, t.at, t.late_seconds, t.late_at, t.folded, t.loss, t.checksum),
                    *(t.round, t.row),
                )
                for t in turns
            ],
        )

    def put_closed_round(self, db: sqlite3.Connection, round: int) -> None:
        """Writes the number of the last closed round, which reporting processes read without replaying events."""
        db.execute("UPDATE meta SET value = ? WHERE key = 'round'", (str(round),))

    def drop_open_round(self, db: sqlite3.Connection) -> None:
        """Deletes the open round after it was closed or abandoned."""
        db.execute("DELETE FROM open_round")

    def put_snapshot(self, db: sqlite3.Connection, seq: int, state: Mapping[str, Any]) -> None:
        """Writes the state after event `seq`, and deletes older snapshots.

        In a large fleet the availability of earlier rounds is deleted as well, because the snapshot replaces it.
        """
        db.execute("DELETE FROM snapshot")
        data = pack_snapshot(state)
        db.execute("INSERT INTO snapshot VALUES (?, ?, ?)", (seq, data, digest_of(b"", str(seq), data)))
        if int(state["clients"]) > KEEP_AVAILABILITY_UP_TO:
            db.execute("DELETE FROM masks WHERE seq <= ?", (seq,))

    def forget(self, db: sqlite3.Connection, row: int, client: str, name: str) -> int:
        """Removes a client from everything that was written, and returns the number of the forget event.

        The digests of all events are computed again.

        Args:
            db: The connection, inside a write transaction.
            row: The row of the client.
            client: Its id.
            name: The name that replaces its id.
        """
        db.execute("PRAGMA secure_delete = ON")
        db.execute("UPDATE clients SET id = ? WHERE row = ?", (name, row))
        turns = [
            replace(
                turn,
                id=name,
                seconds=None if turn.seconds is None else 0.0,
                why=None,
                at=None,
                late_seconds=None,
                late_at=None,
                folded=turn.folded or turn.round,
                loss=None,
            )
            for turn in self.turns_of_client(client)
        ]
        self.put_turns(db, turns)
        for round_, volunteers in db.execute("SELECT round, volunteers FROM offers").fetchall():
            if was_available(volunteers, row):  # a selection cannot be repeated without this client's context
                self.drop_offer(db, round_)
        previous = b""
        for seq, kind, data in db.execute("SELECT seq, kind, data FROM events ORDER BY seq").fetchall():
            scrubbed = redact_event(kind, data, row, client, name)
            digest = digest_of(previous, kind, scrubbed)
            db.execute("UPDATE events SET data = ?, digest = ? WHERE seq = ?", (scrubbed, digest, seq))
            previous = digest
        return self.add_event(db, "forget", json.dumps({"row": row, "name": name}).encode())

    def _decode_turn(self, stored: tuple[Any, ...]) -> Turn:
        turn, checksum = turn_from_row(stored)
        if turn.checksum != checksum:
            raise self.corruption(f"the turn of {turn.id!r} in round {turn.round} does not match its checksum")
        return turn

    @property
    def _format(self) -> int:
        return int(_single_value(self.db, "PRAGMA user_version"))

    def _claim_epoch(self) -> None:
        """Upgrades the file if necessary, and makes this process its writer."""
        with translate_sqlite_errors(self.path), transaction(self.db):
            if self._format < FLEET.format:
                for statement in TO_FORMAT_2:
                    self.db.execute(statement)
            self.db.execute(OFFERS)
            epoch = self._meta_count("epoch") + 1
            self.db.execute("UPDATE meta SET value = ? WHERE key = 'epoch'", (str(epoch),))
            self.db.execute("UPDATE meta SET value = ? WHERE key = 'writer'", (str(Writer.current()),))
        self._epoch = epoch

    def _check_epoch(self) -> None:
        if self._meta_count("epoch") != self._epoch:
            writer = self._meta("writer")
            raise StoreError(
                f"{self.path} was taken over by {writer}: this scheduler can no longer write, so stop its process"
            )

    def _meta(self, key: str) -> str:
        return str(_single_value(self.db, "SELECT value FROM meta WHERE key = ?", key))

    def _meta_count(self, key: str) -> int:
        value = self._meta(key)
        if not value.isdecimal():
            raise self.corruption(f"{key} is {value!r} instead of a number")
        return int(value)

    def _refuse_lost_commits(self) -> None:
        """Raises StoreError if SQLite would silently skip commits after damage in the write-ahead log.

        Another process may be writing a report, which looks like damage until it is complete: hence the retries.
        """
        for _ in range(3):
            lost = lost_commits(self.path)
            if not lost:
                return
            time.sleep(0.05)
        raise self.corruption(f"{lost} commits in its -wal file cannot be read")

    def checkpoint_wal(self) -> None:
        """Moves the write-ahead log into the file and truncates it, so that no deleted data remains in the log."""
        with translate_sqlite_errors(self.path):
            self.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise StoreError(f"{self.path} was opened by process {self._process}: open it again in this process")

    def corruption(self, problem: str) -> StoreError:
        """Returns the error that reports a damaged file."""
        return StoreError(f"{self.path} is damaged ({problem}): restore it from a backup", damaged=self.path)


def is_fleet(path: Path) -> bool:
    """Returns whether the application id of a file is that of a fleet."""
    if not path.is_file():
        raise StoreError(f"there is no file {path}: check the path")
    with translate_sqlite_errors(path), path.open("rb") as file:
        return file.read(72)[68:] == FLEET.application_id.to_bytes(4, "big")


def has_offers(db: sqlite3.Connection) -> bool:
    """Returns whether the file has the table of offers, which older versions did not create."""
    return bool(_single_value(db, "SELECT COUNT(*) FROM sqlite_master WHERE name = 'offers'"))


def offer_digest(round: int, volunteers: bytes, data: bytes) -> bytes:
    """Returns the digest of a stored offer."""
    return digest_of(as_bytes(volunteers), str(round), data)


def settings_digest(text: str) -> str:
    """Returns the digest of the stored settings, in hexadecimal."""
    return digest_of(b"", "settings", text.encode()).hex()


def _connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    try:
        return connect(path, FLEET, read_only=read_only)
    except StoreError:
        with suppress(StoreError):
            return connect(path, FORMAT_1, read_only=read_only)
        raise


def _single_value(db: sqlite3.Connection, query: str, *values: Any) -> Any:
    row = db.execute(query, values).fetchone()
    if row is None:
        raise StoreError(f"the file is damaged ({query} finds nothing): restore it from a backup")
    return row[0]
