"""One connection to the file of a store: opened with all checks, changed in counted transactions, and copied."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Literal

from turnout.closing import close_on_error
from turnout.errors import StoreError
from turnout.log import get_log
from turnout.storage.files import database
from turnout.storage.files.database import BEGIN, StoreConnection
from turnout.storage.files.identity import FileIdentity, counters, find_lost_commits, newest_commit
from turnout.storage.files.lock import Acknowledged, Writer, WriterLock, acknowledge, lock_path, running_writer
from turnout.storage.files.system import sync_file, sync_folder
from turnout.storage.store import Access, Store, StoreKind, roll_back, single_value, transaction

log = get_log("turnout.lab")

#: How long closing waits for other processes, in seconds.
CLOSE_WAIT_SECONDS = 1.0
#: The number of pages that are copied at a time.
PAGES = 2000


class StoreFile(Store[StoreConnection]):
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
    """

    def __init__(
        self,
        path: Path,
        kind: StoreKind,
        access: Access,
        *,
        takeover: bool = False,
        accept_older: bool = False,
        thoroughly: bool = False,
    ) -> None:
        path = path.resolve()
        super().__init__(path, access)
        self.path, self._kind = path, kind
        self._epoch: int | None = None  # of the writer, in a kind of store that names it
        self._lock: WriterLock | None = None
        self._identity: FileIdentity | None = None  # of a file that is written
        self._is_marked = self._clears_mark = False
        with close_on_error(self), self.translating():
            self._open(takeover, accept_older, thoroughly)

    @property
    def connection(self) -> StoreConnection:
        """The connection; raises StoreError if the file was closed, or opened by another process."""
        db = super().connection
        if not db.in_transaction and not database.is_current(db, self.path):
            db.close()  # the file system can be written elsewhere
            db = self._connection = database.connect(self.path, self._kind, "read")
        return db

    def translating(self) -> AbstractContextManager[None]:
        """Opens a block in which errors of SQLite and of the file system become StoreErrors that state what to do."""
        return database.translate_sqlite_errors(self.path)

    def _begin(self, access: Literal["read", "write"]) -> tuple[StoreConnection, object]:
        db = self.connection
        if access == "read":
            return db, db.begin("BEGIN")
        roll_back(db)  # what an interrupted call has left open
        token = db.begin(BEGIN)
        try:
            self._check_same_file(db)
            self._check_epoch(db)
        except BaseException:
            db.execute("ROLLBACK")
            raise
        return db, token

    def _commit(self, db: StoreConnection) -> None:
        self._check_same_file(db)  # again: a commit may move the log into the file
        newest = self._count_commit(db)
        db.execute("COMMIT")
        self._acknowledge(db, newest)

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
    def bytes(self) -> int:
        """The size of the file."""
        return self.path.stat().st_size

    @property
    def log_bytes(self) -> int:
        """The size of the write-ahead log."""
        return database.log_size(self.path)

    @property
    def changes(self) -> int:
        """A number that changes whenever another connection has written to the file."""
        with self.translating():
            return int(single_value(self.connection, "PRAGMA data_version"))

    @property
    def writer(self) -> str | None:
        """The process that writes the file now; None if there is none, or it was killed."""
        return running_writer(self.path)

    def wait_at_most(self, seconds: float) -> None:
        """Sets how long a transaction waits for other processes."""
        self.connection.execute(f"PRAGMA busy_timeout = {seconds * 1000:.0f}")

    def vacuum(self) -> bool:
        """Rewrites the file without unused space; this temporarily needs as much disk space again."""
        with self.translating():
            self._require_writable()
            self.connection.execute("VACUUM")
        self.checkpoint()  # VACUUM leaves the new content in the write-ahead log
        return True

    def checkpoint(self) -> None:
        """Moves the write-ahead log into the file and truncates it, so that no deleted data remains in the log."""
        with self.translating():
            self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

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
        self._connection = database.connect(self.path, self._kind, "check")
        if self.access == "write":
            self._lock = WriterLock(self.path, takeover=takeover)
        problem = find_lost_commits(self.path, self._connection)
        if problem and not database.is_current(self._connection, self.path):
            self._connection.close()  # another process has opened the file meanwhile: its commits are in the log
            self._connection = database.connect(self.path, self._kind, "read")
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
            self._connection = database.connect(self.path, self._kind, "read" if self.access == "read" else "write")
        database.check_integrity(self._connection, self.path, thoroughly=thoroughly)
        if self.access == "write":
            self.wait_at_most(database.TAKEOVER_WAIT_SECONDS if takeover else database.WAIT_SECONDS)
            self._start_counting(self._connection, accept_older)
            self.wait_at_most(database.WAIT_SECONDS)
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
        with transaction(db, BEGIN):
            newest = self._count_commit(db)
            self._claim(db)  # a takeover counts only if this is committed
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
            with transaction(db, BEGIN):
                self._check_same_file(db)
                self._check_epoch(db)
                newest = self._count_commit(db)
                db.execute("UPDATE meta SET value = '0' WHERE key = 'in_use'")
            self._acknowledge(db, newest)
            db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except (sqlite3.Error, OSError, StoreError) as error:
            log.debug("%s stays marked as in use: %s", self.path, error)

    # The writer

    def check_writer(self) -> None:
        """Raises StoreError if another process has taken over the file."""
        with self.reading() as db:
            self._check_epoch(db)

    def _check_epoch(self, db: sqlite3.Connection) -> None:
        if self._epoch is not None and self._stored_epoch(db) != self._epoch:
            (writer,) = db.execute("SELECT value FROM meta WHERE key = 'writer'").fetchone()
            raise StoreError(
                f"{self.path} was taken over by {writer}: this scheduler can no longer write, so stop its process"
            )

    def _claim(self, db: sqlite3.Connection) -> None:
        """Makes this process the writer, in a kind of store that names it."""
        stored = self._stored_epoch(db)
        if stored is not None:
            values = [(str(stored + 1), "epoch"), (str(Writer.current()), "writer")]
            db.executemany("UPDATE meta SET value = ? WHERE key = ?", values)
            self._epoch = stored + 1

    def _stored_epoch(self, db: sqlite3.Connection) -> int | None:
        row = db.execute("SELECT value FROM meta WHERE key = 'epoch'").fetchone()
        if row is not None and not str(row[0]).isdecimal():
            raise StoreError(
                f"{self.path} is damaged (epoch is {row[0]!r} instead of a number): restore it from a backup",
                damaged=self.path,
            )
        return row and int(row[0])

    def _check_same_file(self, db: sqlite3.Connection) -> None:
        """Raises StoreError if nobody would find the changes of a connection."""
        if self._identity is not None:
            self._identity.check(db)


def back_up(
    path: Path,
    copy: Path,
    kind: StoreKind,
    progress: Callable[[int, int], None] = lambda *_: None,
    check: Callable[[StoreConnection], None] = lambda _: None,
) -> None:
    """Writes a complete copy of a store, with everything that is still in its log; other processes may go on writing.

    If that fails, nothing is left of the copy.

    Args:
        path: The file to copy. If it has lost commits it is refused, like at any other opening.
        copy: The file to write, which must not exist.
        kind: The kind of file to accept.
        progress: Called with the number of pages that were copied, and of all pages.
        check: Called with a connection to the copy, before it has its name.
    """
    if copy.exists():
        raise StoreError(f"{copy} exists already: choose another path, or move it away")
    if not copy.parent.is_dir():
        raise StoreError(f"there is no folder {copy.parent}: create it, or choose another path")
    # In a read transaction all steps copy the same state, whatever is written in the meantime.
    with (
        closing(StoreFile(path, kind, "read")) as source,
        source.reading() as db,
        _naming(copy),
        database.temporary_database(copy) as temporary,
        closing(sqlite3.connect(temporary, isolation_level=None, factory=StoreConnection)) as target,
    ):
        db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
        db.backup(target, pages=PAGES, progress=lambda _, left, total: progress(total - left, total))
        target.execute("UPDATE meta SET value = '0' WHERE key = 'in_use'")
        check(target)
        target.execute("PRAGMA wal_checkpoint(TRUNCATE)")


@contextmanager
def _naming(copy: Path) -> Iterator[None]:
    """Converts errors into a StoreError about the copy, except those about damage, which is in the source."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_CORRUPT:
            raise
        with database.translate_sqlite_errors(copy):
            raise
    except OSError:
        with database.translate_sqlite_errors(copy):
            raise
