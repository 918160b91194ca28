"""Creation, opening and checking of the SQLite file of a store, with helpful error messages."""

from __future__ import annotations

import errno
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Literal

from turnout.closing import close_on_error
from turnout.errors import StoreError
from turnout.storage.files.identify import KINDS, SQLITE_MAGIC, describe_file
from turnout.storage.files.lock import Acknowledged, acknowledge, writing_processes
from turnout.storage.files.system import sync_file, sync_folder
from turnout.storage.store import META, StoreKind, transaction

#: Begins a transaction that writes.
BEGIN = "BEGIN IMMEDIATE"
#: How long a transaction waits for other processes, and how long a takeover does, in seconds.
WAIT_SECONDS, TAKEOVER_WAIT_SECONDS = 60.0, 5.0
MAX_CHECKED = 64 * 2**20
#: SQLite calls a quota or a limit of file sizes that is reached a disk I/O error.
NO_SPACE = (
    "free some disk space, or raise the quota or the limit of file sizes, and retry; if there is space, check the disk"
)
NO_SPACE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
#: SQLite treats any shorter file as a new database, whatever it contains.
MIN_DATABASE = 512
#: The offset of the byte in the header that is 2 if the database has a log.
READER_VERSION = 19


class SQLite:
    """The parts of queries as SQLite has them; `storage.store.Dialect` says what they do."""

    ADD_CLIENTS = "INSERT INTO clients SELECT ? + key, value FROM json_each(?)"
    JOINED_IDS = "GROUP_CONCAT(id, '\x1f')"  # a constant, because SQLite takes twice as long with a parameter
    IN_LIST = "IN (SELECT value FROM json_each(?))"
    BY_ID = "INDEXED BY turns_by_id"
    COUNT_TABLES = "SELECT COUNT(*) FROM sqlite_master WHERE name = ?"
    ERASE, ERASE_LESS = "PRAGMA secure_delete = ON", "PRAGMA secure_delete = FAST"


RUNS = StoreKind(
    "store",
    0x7475726E,  # "turn", in ASCII
    1,
    """
CREATE TABLE runs (
    id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE, plan TEXT NOT NULL, clients INTEGER NOT NULL,
    code_version TEXT NOT NULL, started TEXT NOT NULL, finished INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE chunks (
    run INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE, last INTEGER NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (run, last)
);
CREATE TABLE snapshots (
    run INTEGER PRIMARY KEY REFERENCES runs(id) ON DELETE CASCADE, round INTEGER NOT NULL, data BLOB NOT NULL
);
""",
)


def new_counters() -> dict[str, str]:
    """Returns the values of `meta` with which a new file counts its commits.

    file_id: a random id, which the file keeps. commits: the number of write transactions. in_use: "1" from the first
    commit of a process until it closes the file, and after a crash: the log may then contain commits that the file
    itself does not.
    """
    return {"file_id": secrets.token_hex(8), "commits": "0", "in_use": "0"}


def create(path: Path, kind: StoreKind, fill: Callable[[StoreConnection], None]) -> None:
    """Creates a file under a temporary name, calls `fill` on it and renames it, so that `path` is always complete.

    The caller holds the lock of the writer.
    """
    if log_size(path):
        raise StoreError(
            f"{path} does not exist, but its log {log_path(path)} does: restore the database, or move the log away"
        )
    counters = new_counters()
    with temporary_database(path) as temporary, closing(_connect(temporary, mode="rwc")) as connection:
        if connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
            raise StoreError(
                f"{path.parent} cannot hold a {kind.name} (is it a network folder?): choose a local folder"
            )
        _sync_every_commit(connection)
        pragmas = f"PRAGMA application_id = {kind.application_id}; PRAGMA user_version = {kind.format};"
        connection.executescript(f"BEGIN; {pragmas} {kind.schema} COMMIT;")
        with transaction(connection, BEGIN):
            connection.execute(META)
            connection.executemany("INSERT INTO meta VALUES (?, ?)", counters.items())
            fill(connection)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # closing would not say that there is no space
    acknowledge(path, Acknowledged(counters["file_id"], 0), lower=True)
    sync_folder(path.parent)


@contextmanager
def temporary_database(path: Path) -> Iterator[Path]:
    """Yields the path of a database to write, which is renamed to `path`; if the block fails, nothing is left of it."""
    temporary = _with_suffix(path, ".new")

    def remove() -> None:
        for suffix in ("", "-wal", "-shm", "-journal"):
            _with_suffix(temporary, suffix).unlink(missing_ok=True)

    remove()
    try:
        yield temporary
        with temporary.open("r+b") as file:  # Windows flushes only files that are open for writing
            sync_file(file.fileno())
        temporary.rename(path)
        sync_folder(path.parent)
    finally:
        remove()


def connect(path: Path, kind: StoreKind, mode: Literal["check", "read", "write"]) -> StoreConnection:
    """Opens a connection and checks that the file is of this kind and format."""
    if mode == "write":
        connection = _connect(path, mode="rw")
    else:
        connection = connect_to_check(path) if mode == "check" else connect_to_read(path)
    with close_on_error(connection):
        _check_kind(connection, path, kind)
        if mode == "write":
            _sync_every_commit(connection)
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA secure_delete = FAST")  # deleted data is zeroed where that costs nothing
    return connection


def connect_to_read(path: Path) -> StoreConnection:
    """Opens a connection that only reads.

    On a read-only file system SQLite cannot create the log and the shared memory of a database that nobody has open. A
    file with an empty log is complete without them.
    """
    connection = _connect(path, mode="ro")
    try:
        connection.execute("PRAGMA schema_version")
    except BaseException as error:
        connection.close()
        is_missing = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_CANTOPEN
        if not is_missing or os.access(path.parent, os.W_OK) or log_size(path):
            raise
        return _connect_without_log(path)
    return connection


def connect_to_check(path: Path) -> StoreConnection:
    """Opens a connection that only reads, for a short time, and that leaves no file behind.

    SQLite would create a log for a copy without its log, and leave it. Nobody has such a file open: at its only name,
    it would have a log. So its first bytes can be read directly.
    """
    if path.is_file() and path.stat().st_nlink == 1 and not log_path(path).exists():
        with path.open("rb") as file:
            header = file.read(READER_VERSION + 1)
        if header.startswith(SQLITE_MAGIC) and header[READER_VERSION:] == b"\x02":  # it had a log
            return _connect_without_log(path)
    return connect_to_read(path)


def _connect_without_log(path: Path) -> StoreConnection:
    stamp = file_stamp(path)
    connection = _connect(path, mode="ro&immutable=1")
    connection.stamp = stamp
    return connection


def is_current(connection: StoreConnection, path: Path) -> bool:
    """Returns whether nobody has opened or written a file since it is read without its log; True for all others."""
    return connection.stamp is None or (connection.stamp == file_stamp(path) and not log_path(path).exists())


def check_integrity(connection: sqlite3.Connection, path: Path, *, thoroughly: bool = False) -> None:
    """Raises StoreError if the file is truncated or, for files below 64 MiB, if SQLite's integrity check fails.

    With `thoroughly` the indexes are compared with their tables too, which takes about five times as long.
    """
    (pages,), (page_size,) = (connection.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size"))
    size = path.stat().st_size
    if size < pages * page_size and not log_size(path):
        raise _damaged(path, f"it has {size} of {pages * page_size} bytes")
    if size >= MAX_CHECKED:
        return
    (finding,) = connection.execute(f"PRAGMA {'integrity' if thoroughly else 'quick'}_check(1)").fetchone()
    if finding != "ok":
        raise _damaged(path, finding)


@contextmanager
def translate_sqlite_errors(path: Path) -> Iterator[None]:
    """Converts errors of SQLite and of the file system into a StoreError that states what to do."""
    try:
        yield
    except sqlite3.Error as error:
        raise _translate(path, error) from error
    except UnicodeDecodeError as error:
        raise _damaged(path, str(error)) from error
    except OSError as error:
        advice = NO_SPACE if error.errno in NO_SPACE_ERRORS else "check the folder and its permissions"
        raise StoreError(f"{path} cannot be used ({error.strerror or error}): {advice}") from error


class StoreConnection(sqlite3.Connection):
    """A connection that knows which block began its newest transaction.

    An interruption can leave a `with` block behind that was entered but never left. Python ends it when it collects
    garbage, at any time: it must not roll back the transaction of another block then.

    Attributes:
        token: Stands for the newest transaction.
        stamp: That of a file which is read without its log, and so must not change; None for all others.
    """

    dialect = SQLite()
    token: object = None
    stamp: tuple[int, ...] | None = None

    @property
    def location(self) -> Path:
        """The file."""
        return Path(self.execute("PRAGMA database_list").fetchone()[2])

    def begin(self, statement: str) -> object:
        """Begins a transaction with a statement; returns its token."""
        self.token = token = object()
        self.execute(statement)
        return token

    def owns(self, token: object) -> bool:
        """Returns whether the present transaction is the one of this token."""
        return self.token is token and self.in_transaction


def _connect(path: Path, *, mode: str) -> StoreConnection:
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    return sqlite3.connect(
        uri, uri=True, timeout=WAIT_SECONDS, isolation_level=None, check_same_thread=False, factory=StoreConnection
    )


def _sync_every_commit(connection: sqlite3.Connection) -> None:
    """Flushes every commit to disk; on macOS, where fsync leaves data in the cache of the disk, with F_FULLFSYNC."""
    for setting in ("synchronous = FULL", "fullfsync = ON", "checkpoint_fullfsync = ON"):
        connection.execute(f"PRAGMA {setting}")


def _check_kind(connection: sqlite3.Connection, path: Path, kind: StoreKind) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if (size := path.stat().st_size) < MIN_DATABASE:
        raise StoreError(
            f"{path} has {size} bytes, too few for a turnout {kind.name}: restore it from a backup, or delete it to "
            "create a new one"
        )
    if application != kind.application_id:
        other = describe_file(path) or "a SQLite file"
        raise StoreError(f"{path} is {other}, not {KINDS[kind.application_id]}: choose another path")
    if version != kind.format:
        raise StoreError(
            f"{path} has {kind.name} format {version}, but this version of turnout reads format {kind.format}: install "
            "a newer version of turnout"
        )


def _translate(path: Path, error: sqlite3.Error) -> StoreError:
    extended = getattr(error, "sqlite_errorcode", 0)
    code = extended & 0xFF
    if code == sqlite3.SQLITE_NOTADB:
        description = describe_file(path)
        if description is None or "SQLite" in description or description in KINDS.values():
            description = "not a SQLite file, or its header is damaged, so it is"
        else:
            description = f"{description},"
        return StoreError(f"{path} is {description} neither a fleet nor a store of runs: choose another path")
    if path.is_dir():
        return StoreError(f"{path} is a folder, not a file: choose another path")
    if code == sqlite3.SQLITE_CORRUPT:
        return _damaged(path, str(error))
    advices = {
        sqlite3.SQLITE_CANTOPEN: "check that it is a file and that its folder is writable, or copy it elsewhere",
        sqlite3.SQLITE_READONLY: "check the permissions of the file and its folder, or open it with read_only=True",
        sqlite3.SQLITE_FULL: "free some disk space and retry; nothing of the interrupted operation was stored",
        sqlite3.SQLITE_BUSY: f"{_holder(path)}; end that process and retry",
        sqlite3.SQLITE_IOERR_WRITE: NO_SPACE,
        sqlite3.SQLITE_IOERR_SHMSIZE: NO_SPACE,
        sqlite3.SQLITE_TOOBIG: "append fewer rounds at a time",
    }
    advice = advices.get(extended, advices.get(code, "check the disk, and that no other program changes the file"))
    return StoreError(f"{path} cannot be used ({error}): {advice}")


def _holder(path: Path) -> str:
    processes = [str(process) for process in writing_processes(path) if process != os.getpid()]
    if not processes:
        return "another process is inside a transaction"
    return f"process {' and '.join(processes)} is inside a transaction, and may be stopped or hang"


def _damaged(path: Path, finding: str) -> StoreError:
    one_line = " ".join(finding.split())
    return StoreError(
        f"{path} is truncated or damaged ({one_line}): restore it from a backup, or recover what is readable with "
        f"`sqlite3 {path.name} .recover`"
    )


def log_path(path: Path) -> Path:
    """Returns the path of the write-ahead log of a database."""
    return _with_suffix(path, "-wal")


def log_size(path: Path) -> int:
    """Returns the number of bytes of the write-ahead log; 0 if it does not exist."""
    log = log_path(path)
    return log.stat().st_size if log.exists() else 0


def file_stamp(path: Path) -> tuple[int, ...]:
    """Returns numbers that change when a file is written."""
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _with_suffix(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)
