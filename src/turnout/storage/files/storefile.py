"""One connection to the file of a store: opened with all checks, changed in counted transactions."""

from __future__ import annotations

import os
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from turnout.errors import StoreError
from turnout.log import get_log
from turnout.storage.files.acknowledged import Acknowledged, acknowledge, lock_path
from turnout.storage.files.database import (
    TAKEOVER_WAIT_SECONDS,
    WAIT_SECONDS,
    FileKind,
    StoreConnection,
    check_integrity,
    connect,
    is_current,
    log_path,
    single_value,
    transaction,
    translate_sqlite_errors,
)
from turnout.storage.files.identity import FileIdentity, counters, find_lost_commits, newest_commit
from turnout.storage.files.lock import WriterLock
from turnout.storage.files.system import sync_file, sync_folder

log = get_log("turnout.lab")

Access = Literal["read", "report", "write"]
#: The number of times of commits that are kept.
KEPT_TIMES = 1000
#: How long closing waits for other processes, in seconds.
CLOSE_WAIT_SECONDS = 1.0


class StoreFile:
    """A connection to a file that counts its commits.

    Every write transaction increases a counter in the file. When it is committed, the lock file beside the store
    states the counter. A file with a smaller counter has lost commits, for example because its log is missing or
    damaged, and is refused by every kind of access. So is a file that was in use and has no lock file that states a
    commit: it is a copy of a running store without its log.

    Args:
        path: The file, which must exist. Symbolic links are resolved once, when it is opened.
        kind: The kind of file to accept.
        access: "read"; "report": to write beside the only writer; "write": as the only writer.
        takeover: Whether to write although another process, which hangs, holds the lock of the writer.
        accept_older: Whether a file that has lost commits is opened in its older state.
        thoroughly: Whether the indexes are compared with their tables too.
        claim: Called by the only writer in its first transaction; a takeover counts only if that is committed.
    """

    def __init__(
        self,
        path: Path,
        kind: FileKind,
        access: Access,
        *,
        takeover: bool = False,
        accept_older: bool = False,
        thoroughly: bool = False,
        claim: Callable[[sqlite3.Connection], None] = lambda _: None,
    ) -> None:
        path = path.resolve()
        self.path, self.access, self._kind = path, access, kind
        self._claim = claim
        #: Called in every write transaction; it raises an error if this process must not write any more.
        self.guard: Callable[[], None] = lambda: None
        self._process = os.getpid()
        self._lock: WriterLock | None = None
        self._connection: StoreConnection | None = None
        self._identity: FileIdentity | None = None  # of a file that is written
        self._is_marked = self._clears_mark = False
        self._group: object = None  # the token of the transaction that a group shares
        self._part: object = None  # the `writing` block of a group that has begun and not ended
        #: The seconds that the newest commits of this process took.
        self.commit_times: deque[float] = deque(maxlen=KEPT_TIMES)
        try:
            with translate_sqlite_errors(path):
                self._open(takeover, accept_older, thoroughly)
        except BaseException:
            self.close()
            raise

    # Transactions

    @property
    def connection(self) -> StoreConnection:
        """The connection; raises StoreError if the file was closed, or opened by another process."""
        if self._connection is None:
            raise StoreError(f"{self.path} was closed: open it again")
        if os.getpid() != self._process:
            raise StoreError(f"{self.path} was opened by process {self._process}: open it again in this process")
        db = self._connection
        if not db.in_transaction and not is_current(db, self.path):
            db.close()  # the file system can be written elsewhere
            self._connection = connect(self.path, self._kind, "read")
        return self._connection

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Opens a read transaction, in which all queries see one state of the file; it may be nested."""
        with translate_sqlite_errors(self.path):
            db = self.connection
            if db.in_transaction:
                yield db
                return
            token = db.begin("BEGIN")
            try:
                yield db
            finally:
                if db.owns(token):
                    db.execute("ROLLBACK")

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Opens a write transaction; when the block ends, its changes are on disk and acknowledged.

        Inside a group, it is a part of the transaction of the group: if the block fails, only this part is undone.
        """
        with translate_sqlite_errors(self.path):
            db = self._writable()
            if self._group is not None:
                with self._writing_part(db):
                    yield db
                return
            with self._committing(db):
                yield db

    @contextmanager
    def grouping(self) -> Iterator[None]:
        """Opens a write transaction that all `writing` blocks inside share: it is committed when this block ends.

        If this block is left by an exception, or the commit fails, nothing of it is stored. A block without changes
        costs no flush to disk.
        """
        if self._group is not None:
            raise StoreError(f"a group of changes of {self.path} is open already: end it first")
        with translate_sqlite_errors(self.path):
            db = self._writable()
            with self._committing(db, unless_empty=True):
                self._group, self._part = db.token, None
                try:
                    yield
                    self._check_group(db)
                finally:
                    self._group = None

    @contextmanager
    def _committing(self, db: StoreConnection, *, unless_empty: bool = False) -> Iterator[None]:
        """Opens a write transaction, counts its commit and acknowledges it; with `unless_empty` only if it changes."""
        newest, before = None, db.total_changes
        with transaction(db):
            self._check_same_file(db)
            self.guard()
            yield
            if not unless_empty or db.total_changes != before:
                self._check_same_file(db)  # again: a commit may move the log into the file
                newest = self._count_commit(db)
            start = time.perf_counter()
        if newest is not None:
            self._acknowledge(db, newest)
            self.commit_times.append(time.perf_counter() - start)

    @contextmanager
    def _writing_part(self, db: StoreConnection) -> Iterator[None]:
        self._check_group(db)
        part = self._part = object()
        db.execute("SAVEPOINT part")
        try:
            yield
        except BaseException:
            if db.owns(self._group):  # a full disk makes SQLite undo the whole transaction
                db.execute("ROLLBACK TO part")
                db.execute("RELEASE part")
                self._part = None
            raise
        if self._part is not part or not db.owns(self._group):
            raise self._lost_group()
        db.execute("RELEASE part")
        self._part = None

    def _check_group(self, db: StoreConnection) -> None:
        """Raises StoreError if a part was neither stored nor undone, or if SQLite has undone the transaction."""
        if self._part is not None or not db.owns(self._group):
            raise self._lost_group()

    def _lost_group(self) -> StoreError:
        return StoreError(f"a group of changes of {self.path} was interrupted, and nothing of it was stored: retry")

    @property
    def is_in_place(self) -> bool:
        """Whether the file that is written still has its name.

        If another file has the name, no connection of this process may open it: both would share the log, and closing
        one would release the locks of the other.
        """
        return self._identity is None or self._identity.is_in_place

    @property
    def commits(self) -> int:
        """The number of commits since the file was created."""
        with self.reading() as db:
            return newest_commit(db).commits

    @property
    def log_bytes(self) -> int:
        """The size of the write-ahead log."""
        log_file = log_path(self.path)
        return log_file.stat().st_size if log_file.exists() else 0

    @property
    def changes(self) -> int:
        """A number that changes whenever another connection has written to the file."""
        with translate_sqlite_errors(self.path):
            return int(single_value(self.connection, "PRAGMA data_version"))

    def vacuum(self) -> None:
        """Rewrites the file without unused space; this temporarily needs as much disk space again."""
        with translate_sqlite_errors(self.path):
            self._writable().execute("VACUUM")
        self.checkpoint()  # VACUUM leaves the new content in the write-ahead log

    def checkpoint(self) -> None:
        """Moves the write-ahead log into the file and truncates it, so that no deleted data remains in the log."""
        with translate_sqlite_errors(self.path):
            self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _writable(self) -> StoreConnection:
        if self.access == "read":
            raise StoreError(f"{self.path} was opened read-only: open it without read_only=True to write")
        return self.connection

    def roll_back(self) -> None:
        """Ends a transaction that an interrupted call has left open; a group goes on, and undoes its failed parts."""
        db = self.connection
        if db.in_transaction and self._group is None:
            db.execute("ROLLBACK")

    def close(self) -> None:
        """Closes the file and releases the lock; a second call has no effect."""
        db, self._connection = self._connection, None
        try:
            if db is not None and self._clears_mark and os.getpid() == self._process:
                self._clear_mark(db)
        finally:
            if db is not None:
                db.close()
            if self._lock is not None:
                self._lock.release()
                self._lock = None

    # Opening

    def _open(self, takeover: bool, accept_older: bool, thoroughly: bool) -> None:
        if self.access != "read" and self.path.is_file() and (names := self.path.stat().st_nlink) > 1:
            raise StoreError(
                f"{self.path} has {names} names (hard links), and those who write it by another name would not be "
                "noticed: delete the other name, or write a copy"
            )
        # Before anything is written, not even a lock file, and without a connection that could change the log.
        self._connection = connect(self.path, self._kind, "check")
        if self.access == "write":
            self._lock = WriterLock(self.path, takeover=takeover)
        problem = find_lost_commits(self.path, self._connection)
        if problem and not is_current(self._connection, self.path):
            self._connection.close()  # another process has opened the file meanwhile: its commits are in the log
            self._connection = connect(self.path, self._kind, "read")
            problem = find_lost_commits(self.path, self._connection)
        if problem and not accept_older:
            raise StoreError(
                f"{problem}. Restore all files or a backup; accept_older=True continues from the older state",
                argument="accept_older",
                damaged=self.path,
            )
        if problem and self.access == "read":
            log.info("%s. The older state is read", problem)
        elif problem:
            log.warning("%s. The older state was accepted", problem)
        if self.access != "read" or self._connection.stamp is not None:
            self._connection.close()
            self._connection = connect(self.path, self._kind, "read" if self.access == "read" else "write")
        check_integrity(self._connection, self.path, thoroughly=thoroughly)
        if self.access == "write":
            wait = TAKEOVER_WAIT_SECONDS if takeover else WAIT_SECONDS
            self._connection.execute(f"PRAGMA busy_timeout = {wait * 1000:.0f}")
            self._start_counting(self._connection, accept_older)
            self._connection.execute(f"PRAGMA busy_timeout = {WAIT_SECONDS * 1000:.0f}")
            if self._lock is not None:
                self._lock.confirm_takeover()
        elif self.access == "report":
            self._identity = FileIdentity(self.path)

    def _start_counting(self, db: StoreConnection, accept_older: bool) -> None:
        """Marks the file as in use, in the file itself, before anything else is written."""
        db.execute("PRAGMA journal_mode = WAL")  # a copy made by VACUUM INTO has lost this mode
        acknowledge(self.path, newest_commit(db), lower=accept_older)
        self._identity = FileIdentity(self.path)
        # A marked file whose lock file states no commit is refused, after a power failure too.
        with lock_path(self.path).open("r+b") as lock_file:
            sync_file(lock_file.fileno())
        sync_folder(self.path.parent)
        with transaction(db):
            newest = self._count_commit(db)
            self._claim(db)
        self._acknowledge(db, newest)
        self._clears_mark = True

    # Counting

    def _count_commit(self, db: sqlite3.Connection) -> Acknowledged:
        """Increases the counter in the open transaction, and marks the file as in use."""
        stored = counters(db)
        commits = int(stored["commits"]) + 1
        db.execute("UPDATE meta SET value = ? WHERE key = 'commits'", (str(commits),))
        if stored["in_use"] != "1":
            db.execute("UPDATE meta SET value = '1' WHERE key = 'in_use'")
            self._is_marked, self._clears_mark = False, True
        return Acknowledged(stored["file_id"], commits)

    def _acknowledge(self, db: sqlite3.Connection, newest: Acknowledged) -> None:
        """States the commit in the lock file; before the first one, the mark is moved from the log into the file."""
        self._check_same_file(db)
        if not self._is_marked:
            _, frames, moved = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            self._is_marked = frames == moved
        acknowledge(self.path, newest)

    def _clear_mark(self, db: StoreConnection) -> None:
        """Moves the log into the file and clears the mark, unless other processes prevent it or have taken over."""
        try:
            db.execute(f"PRAGMA busy_timeout = {CLOSE_WAIT_SECONDS * 1000:.0f}")
            with transaction(db):
                self._check_same_file(db)
                self._connection = db  # for the guard
                self.guard()
                newest = self._count_commit(db)
                db.execute("UPDATE meta SET value = '0' WHERE key = 'in_use'")
            self._acknowledge(db, newest)
            db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except (sqlite3.Error, OSError, StoreError) as error:
            log.debug("%s stays marked as in use: %s", self.path, error)
        finally:
            self._connection = None

    def _check_same_file(self, db: sqlite3.Connection) -> None:
        """Raises StoreError if nobody would find the changes of a connection."""
        if self._identity is not None:
            self._identity.check(db)
