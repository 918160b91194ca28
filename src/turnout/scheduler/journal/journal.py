"""The file of a fleet: one SQLite file, in which every change is one transaction.

meta         the settings and their seal; who may write (the epoch rises with every opening); the digest of the last
             event; the last closed round
clients      ids by row
events       what memory is the fold of: join, close, retire, forget; each with a digest over all before it
masks        who was available in a closed round, by event
offers       what each choice was made from: the contexts of all who volunteered, in fleets that are small enough
open_round   the round that is open, if any
turns        who was invited in which round and what became of it; reports land here
snapshot     memory after an event, so that opening need not begin at the first
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
from turnout.store.packing import pack_snapshot, unpack_snapshot
from turnout.store.wal import lost_commits

#: Not of format 1 nor of every file of format 2: made when a scheduler opens the file to write.
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
#: What is still read: its turns have no losses. A scheduler that opens it to write brings it up to date.
FORMAT_1 = replace(FLEET, format=1)
TO_FORMAT_2 = ("ALTER TABLE turns ADD COLUMN loss REAL", "PRAGMA user_version = 2")
#: Fleets up to this size keep who was available in every round; larger ones only since the last snapshot.
KEEP_MASKS = 10_000


class Journal:
    """Reads and writes the file; knows nothing of policies. Errors are StoreErrors that say what to do."""

    def __init__(self, path: Path, *, read_only: bool = False, reporting: bool = False, takeover: bool = False) -> None:
        self.path, self.read_only = path, read_only
        self._lock: WriterLock | None = None
        self._process = os.getpid()
        self._epoch: int | None = None
        if not path.exists():
            raise StoreError(f"there is no fleet at {path}: check the path, or create one with Scheduler.open(path)")
        writes = not read_only and not reporting
        try:
            with translate_sqlite_errors(path):
                if takeover:
                    # Unlinking leaves the hung process with the lock on the old inode; a new process locks a new file.
                    lock_path(path).unlink(missing_ok=True)
                if writes:
                    self._lock = WriterLock(path)
                    self._refuse_lost_commits()
                self.db = _connected(path, read_only=read_only)
                if reporting and self._format < FLEET.format:
                    raise StoreError(
                        f"{path} is of fleet format {self._format}: open it once with Scheduler.open, which brings it "
                        "up to date"
                    )
                check_integrity(self.db, path, thoroughly=writes)
                if writes:
                    self.db.execute("PRAGMA journal_mode = WAL")  # which a copy by VACUUM INTO has lost
            if writes:
                self._claim_epoch()
        except BaseException:
            self.close()
            raise

    @classmethod
    def make(cls, path: Path, settings: Mapping[str, Any]) -> None:
        """A new file with these settings, whole from its first moment."""
        if not path.parent.is_dir():
            raise StoreError(f"there is no folder {path.parent}: create it, or choose another path")

        words = json.dumps(settings, sort_keys=True)
        first = {"settings": words, "seal": _seal(words), "epoch": "0", "writer": "", "head": "", "round": "0"}

        def fill(db: sqlite3.Connection) -> None:
            db.executemany("INSERT INTO meta VALUES (?, ?)", first.items())

        with translate_sqlite_errors(path):
            lock = WriterLock(path)
            try:
                if not path.exists():
                    create(path, FLEET, fill)
            finally:
                lock.release()

    @property
    def settings(self) -> dict[str, Any]:
        """As they were given when the file was made."""
        with self.reading():
            words = self._meta("settings")
            if _seal(words) != self._meta("seal"):
                raise self.damage("the settings are not what was written")
            return dict(json.loads(words))

    def close(self) -> None:
        """Let go of the file; a second time does nothing."""
        if getattr(self, "db", None) is not None:
            self.db.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """One consistent view."""
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
        """All of it or nothing, and only as long as nobody has taken over."""
        with translate_sqlite_errors(self.path):
            self._check_process()
            if self.read_only:
                raise StoreError(f"{self.path} was opened to read: open it without read_only=True to write")
            with transaction(self.db):
                if self._epoch is not None:
                    self._check_epoch()
                yield self.db

    def check_writer(self) -> None:
        """Refuse to go on if another has taken over."""
        with self.reading():
            if self._epoch is not None:
                self._check_epoch()

    # What memory is made of

    def ids(self) -> list[str]:
        """All clients, by row."""
        with self.reading() as db:
            return [str(client) for (client,) in db.execute("SELECT id FROM clients ORDER BY row")]

    def snapshot(self) -> tuple[int, dict[str, Any]] | None:
        """The event it was taken after, and memory then."""
        with self.reading() as db:
            found = db.execute("SELECT seq, data, digest FROM snapshot ORDER BY seq DESC LIMIT 1").fetchone()
        if found is None:
            return None
        seq, data, digest = found
        if digest != digest_of(b"", str(seq), data):
            raise self.damage("the snapshot is not what was written")
        return int(seq), unpack_snapshot(data)

    def events(self, after: int = 0, most: int = -1) -> Iterator[tuple[int, str, bytes, bytes | None]]:
        """(number, kind, data, mask) of the events after this one, each held against its digest."""
        with self.reading() as db:
            before = b"" if not after else _one(db, "SELECT digest FROM events WHERE seq = ?", after)
            found = db.execute(
                "SELECT e.seq, e.kind, e.data, e.digest, m.data FROM events e LEFT JOIN masks m ON m.seq = e.seq "
                "WHERE e.seq > ? ORDER BY e.seq LIMIT ?",
                (after, most),
            )
            expected = after
            for seq, kind, data, digest, mask in found:
                expected += 1
                if seq != expected or digest != digest_of(before, kind, data):
                    raise self.damage(f"event {expected} is missing or not what was written")
                before = digest
                yield seq, kind, data, mask

    def last_event(self) -> int:
        """The number of the newest event, or 0."""
        with self.reading() as db:
            return int(_one(db, "SELECT COALESCE(MAX(seq), 0) FROM events"))

    def has_all_masks(self) -> bool:
        """Whether it is on record of every closed round who volunteered."""
        with self.reading() as db:
            closed = "SELECT COUNT(*) FROM events WHERE kind = 'close'"
            return bool(_one(db, closed) == _one(db, "SELECT COUNT(*) FROM masks"))

    def open_round(self) -> OpenRound | None:
        """The round that is open."""
        with self.reading() as db:
            found = db.execute("SELECT round, data, digest FROM open_round").fetchone()
        if found is None:
            return None
        number, data, digest = found
        if digest != digest_of(b"", str(number), data):
            raise self.damage(f"the open round {number} is not what was written")
        return unpack_open(data)

    def joined_by(self, event: int) -> int:
        """How many clients had joined when this event was written."""
        with self.reading() as db:
            found = db.execute("SELECT data FROM events WHERE kind = 'join' AND seq <= ?", (event,))
            return sum(len(json.loads(data)) for (data,) in found)

    def offered_rounds(self) -> list[int]:
        """The rounds whose offers are on record."""
        with self.reading() as db:
            if not _has_offers(db):
                return []
            return [int(round_) for (round_,) in db.execute("SELECT round FROM offers ORDER BY round")]

    def offered(self, round: int) -> RecordedOffer | None:
        """What the choice of this round was made from, if that is on record."""
        with self.reading() as db:
            if not _has_offers(db):
                return None
            found = db.execute("SELECT volunteers, data, digest FROM offers WHERE round = ?", (round,)).fetchone()
        if found is None:
            return None
        volunteers, data, digest = found
        if digest != _offer_digest(round, volunteers, data):
            raise self.damage(f"what was offered in round {round} is not what was written")
        return unpack_offer(data, volunteers)

    def head(self) -> str:
        """The digest of the newest event, and so of all of them."""
        with self.reading():
            return self._meta("head")

    def turns_of(self, round: int) -> list[Turn]:
        """Everyone who was invited in this round."""
        with self.reading() as db:
            found = db.execute("SELECT * FROM turns WHERE round = ? ORDER BY row", (round,)).fetchall()
        return [self._as_turn(one) for one in found]

    def turns_of_client(self, client: str) -> list[Turn]:
        """All its turns, first to last."""
        with self.reading() as db:
            found = db.execute("SELECT * FROM turns WHERE id = ? ORDER BY round", (client,)).fetchall()
        return [self._as_turn(one) for one in found]

    def turn(self, client: str, round: int | None = None) -> Turn | None:
        """Its turn in this round, or its newest."""
        words, values = "SELECT * FROM turns WHERE id = ? ORDER BY round DESC LIMIT 1", (client,)
        if round is not None:
            words, values = "SELECT * FROM turns WHERE id = ? AND round = ?", (client, round)  # type: ignore[assignment]
        with self.reading() as db:
            found = db.execute(words, values).fetchone()
        return None if found is None else self._as_turn(found)

    @property
    def changes(self) -> int:
        """Another number whenever somebody else has written to the file."""
        with translate_sqlite_errors(self.path):
            self._check_process()
            return int(_one(self.db, "PRAGMA data_version"))

    def open_number(self) -> int | None:
        """The number of the open round."""
        with self.reading() as db:
            found = db.execute("SELECT round FROM open_round").fetchone()
        return None if found is None else int(found[0])

    def turns_since(self, round: int) -> list[Turn]:
        """Everyone who was invited after this round; each must also be found by its id."""
        by_id = (
            "SELECT COUNT(*) FROM turns t WHERE round > ? AND EXISTS (SELECT 1 FROM turns u INDEXED BY turns_by_id "
            "WHERE u.id = t.id AND u.round = t.round AND u.row = t.row)"
        )
        with self.reading() as db:
            found = db.execute("SELECT * FROM turns WHERE round > ? ORDER BY round, row", (round,)).fetchall()
            if _one(db, by_id, round) != len(found):
                raise self.damage("some turns cannot be found by their ids")
        return [self._as_turn(one) for one in found]

    def closed_round(self) -> int:
        """The newest round that was closed, or 0."""
        with self.reading():
            return self._count("round")

    def check_head(self) -> None:
        """Refuse a file whose newest events are gone."""
        with self.reading() as db:
            last = db.execute("SELECT digest FROM events ORDER BY seq DESC LIMIT 1").fetchone()
            if (b"" if last is None else as_bytes(last[0])).hex() != self._meta("head"):
                raise self.damage("the newest events are gone")

    def waiting(self) -> list[Turn]:
        """Late clients whose true time has come since the last round was closed."""
        words = "SELECT * FROM turns WHERE late_seconds IS NOT NULL AND folded IS NULL ORDER BY round, row"
        with self.reading() as db:
            found = db.execute(words).fetchall()
        return [self._as_turn(one) for one in found]

    # Changes, each in a transaction of the caller

    def add_clients(self, db: sqlite3.Connection, first: int, ids: Sequence[str]) -> None:
        """They joined, and that is an event."""
        if ids:
            db.executemany("INSERT INTO clients VALUES (?, ?)", enumerate(ids, start=first))
            self.add_event(db, "join", json.dumps(list(ids), ensure_ascii=False).encode())

    def add_event(self, db: sqlite3.Connection, kind: str, data: bytes, mask: bytes | None = None) -> int:
        """Append one, sealed with all before it."""
        last = db.execute("SELECT seq, digest FROM events ORDER BY seq DESC LIMIT 1").fetchone()
        seq, before = (1, b"") if last is None else (int(last[0]) + 1, last[1])
        digest = digest_of(before, kind, data)
        db.execute("INSERT INTO events VALUES (?, ?, ?, ?)", (seq, kind, data, digest))
        db.execute("UPDATE meta SET value = ? WHERE key = 'head'", (digest.hex(),))
        if mask is not None:
            db.execute("INSERT INTO masks VALUES (?, ?)", (seq, mask))
        return seq

    def put_open_round(self, db: sqlite3.Connection, opened: OpenRound, names: Sequence[str]) -> None:
        """The choice, before it is handed out."""
        data = pack_open(opened)
        digest = digest_of(b"", str(opened.round), data)
        db.execute("INSERT INTO open_round VALUES (?, ?, ?)", (opened.round, data, digest))
        invited = [Turn(opened.round, int(row), name) for row, name in zip(opened.rows, names, strict=True)]
        db.executemany(
            "INSERT INTO turns (round, row, id, seal) VALUES (?, ?, ?, ?)",
            [(one.round, one.row, one.id, one.checksum) for one in invited],
        )

    def put_offered(self, db: sqlite3.Connection, offered: RecordedOffer) -> None:
        """What the choice was made from, with the choice."""
        data, volunteers = pack_offer(offered)
        row = (offered.round, volunteers, data, _offer_digest(offered.round, volunteers, data))
        db.execute("INSERT INTO offers VALUES (?, ?, ?, ?)", row)

    def drop_offered(self, db: sqlite3.Connection, round: int) -> None:
        """It was never made."""
        db.execute("DELETE FROM offers WHERE round = ?", (round,))

    def put_turns(self, db: sqlite3.Connection, turns: Sequence[Turn]) -> None:
        """Write what is now known of them."""
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
        """For whoever must know how long ago a round was, without memory."""
        db.execute("UPDATE meta SET value = ? WHERE key = 'round'", (str(round),))

    def drop_open_round(self, db: sqlite3.Connection) -> None:
        """It is over."""
        db.execute("DELETE FROM open_round")

    def put_snapshot(self, db: sqlite3.Connection, seq: int, state: Mapping[str, Any]) -> None:
        """Memory as it is after this event; older ones, and masks that a large fleet no longer needs, go."""
        db.execute("DELETE FROM snapshot")
        data = pack_snapshot(state)
        db.execute("INSERT INTO snapshot VALUES (?, ?, ?)", (seq, data, digest_of(b"", str(seq), data)))
        if int(state["clients"]) > KEEP_MASKS:
            db.execute("DELETE FROM masks WHERE seq <= ?", (seq,))

    def forget(self, db: sqlite3.Connection, row: int, client: str, name: str) -> int:
        """Take a client out of everything that was written, and seal the events anew; the number of the last event."""
        db.execute("PRAGMA secure_delete = ON")
        db.execute("UPDATE clients SET id = ? WHERE row = ?", (name, row))
        blank = [
            replace(turn, id=name, why=None, at=None, late_seconds=None, late_at=None, folded=turn.folded or turn.round)
            for turn in self.turns_of_client(client)
        ]
        blank = [replace(turn, seconds=None if turn.seconds is None else 0.0, loss=None) for turn in blank]
        self.put_turns(db, blank)
        for round_, volunteers in db.execute("SELECT round, volunteers FROM offers").fetchall():
            if was_available(volunteers, row):  # without it no choice it stood for can be repeated
                self.drop_offered(db, round_)
        before = b""
        for seq, kind, data in db.execute("SELECT seq, kind, data FROM events ORDER BY seq").fetchall():
            scrubbed = redact_event(kind, data, row, client, name)
            digest = digest_of(before, kind, scrubbed)
            db.execute("UPDATE events SET data = ?, digest = ? WHERE seq = ?", (scrubbed, digest, seq))
            before = digest
        return self.add_event(db, "forget", json.dumps({"row": row, "name": name}).encode())

    def _as_turn(self, found: tuple[Any, ...]) -> Turn:
        turn, seal = turn_from_row(found)
        if turn.checksum != seal:
            raise self.damage(f"what {turn.id} reported in round {turn.round} is not what was written")
        return turn

    @property
    def _format(self) -> int:
        return int(_one(self.db, "PRAGMA user_version"))

    def _claim_epoch(self) -> None:
        with translate_sqlite_errors(self.path), transaction(self.db):
            if self._format < FLEET.format:
                for change in TO_FORMAT_2:
                    self.db.execute(change)
            self.db.execute(OFFERS)
            epoch = self._count("epoch") + 1
            self.db.execute("UPDATE meta SET value = ? WHERE key = 'epoch'", (str(epoch),))
            self.db.execute("UPDATE meta SET value = ? WHERE key = 'writer'", (str(Writer.current()),))
        self._epoch = epoch

    def _check_epoch(self) -> None:
        if self._count("epoch") != self._epoch:
            writer = self._meta("writer")
            raise StoreError(f"{self.path} was taken over by {writer}: this scheduler can no longer write")

    def _meta(self, key: str) -> str:
        return str(_one(self.db, "SELECT value FROM meta WHERE key = ?", key))

    def _count(self, key: str) -> int:
        value = self._meta(key)
        if not value.isdecimal():
            raise self.damage(f"its {key} is {value!r}")
        return int(value)

    def _refuse_lost_commits(self) -> None:
        """Before SQLite passes over commits behind damage in the log; a report may be under way, so look again."""
        for _ in range(3):
            lost = lost_commits(self.path)
            if not lost:
                return
            time.sleep(0.05)
        raise self.damage(f"{lost} commits in its -wal file cannot be read")

    def checkpoint_wal(self) -> None:
        """Bring everything into the file itself, so that nothing deleted stays behind in the log."""
        with translate_sqlite_errors(self.path):
            self.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise StoreError(f"{self.path} was opened by process {self._process}: open it anew in this one")

    def damage(self, finding: str) -> StoreError:
        """How to say that the file is not what was written."""
        return StoreError(f"{self.path} is damaged ({finding}): restore it from a backup", damaged=self.path)


def is_fleet(path: Path) -> bool:
    """By its mark, is this the file of a live fleet? Anything else is opened as a store, which says what is wrong."""
    if not path.is_file():
        raise StoreError(f"there is no file {path}: check the path")
    with translate_sqlite_errors(path), path.open("rb") as file:
        return file.read(72)[68:] == FLEET.application_id.to_bytes(4, "big")


def _connected(path: Path, *, read_only: bool) -> sqlite3.Connection:
    try:
        return connect(path, FLEET, read_only=read_only)
    except StoreError:
        with suppress(StoreError):
            return connect(path, FORMAT_1, read_only=read_only)
        raise


def _has_offers(db: sqlite3.Connection) -> bool:
    """Whether the file has the table of offers, which older versions did not write."""
    return bool(_one(db, "SELECT COUNT(*) FROM sqlite_master WHERE name = 'offers'"))


def _offer_digest(round_: int, volunteers: bytes, data: bytes) -> bytes:
    return digest_of(as_bytes(volunteers), str(round_), data)


def _seal(words: str) -> str:
    return digest_of(b"", "settings", words.encode()).hex()


def _one(db: sqlite3.Connection, words: str, *values: Any) -> Any:
    found = db.execute(words, values).fetchone()
    if found is None:
        raise StoreError(f"the file lacks what it must have ({words}): restore it from a backup")
    return found[0]
