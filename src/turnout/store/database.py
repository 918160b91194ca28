"""The SQLite file under a store: made whole, opened with care, and its refusals in plain words."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from turnout.errors import StoreError

WAIT_SECONDS = 60.0
LARGEST_CHECKED = 64 * 2**20
#: SQLite takes anything shorter for a new file, whatever stands in it.
SMALLEST_DATABASE = 512


@dataclass(frozen=True, slots=True)
class FileKind:
    """What a file of ours is: its mark among SQLite files, the format that is written, and its tables."""

    name: str
    application_id: int
    format: int
    schema: str


RUNS = FileKind(
    "store",
    0x7475726E,  # "turn", in ASCII
    1,
    """
CREATE TABLE runs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT NOT NULL UNIQUE,
    plan TEXT NOT NULL,
    clients INTEGER NOT NULL,
    code_version TEXT NOT NULL,
    started TEXT NOT NULL,
    finished INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE chunks (
    run INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE,
    last INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (run, last)
);
CREATE TABLE snapshots (
    run INTEGER PRIMARY KEY REFERENCES runs(id) ON DELETE CASCADE,
    round INTEGER NOT NULL,
    data BLOB NOT NULL
);
""",
)


def create(path: Path, kind: FileKind = RUNS, fill: Callable[[sqlite3.Connection], None] | None = None) -> None:
    """Make a new file beside its place, `fill` it, and move it there: a file of this name is always whole."""
    if _holds_anything(stray := _beside(path, "-wal")):
        raise StoreError(f"{path} is gone but {stray} is still there: bring the store back, or move that file away")
    unborn = _beside(path, ".new")
    for leftover in (unborn, *(_beside(unborn, suffix) for suffix in ("-wal", "-shm", "-journal"))):
        leftover.unlink(missing_ok=True)
    connection = _connect(unborn, mode="rwc")
    try:
        if connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
            raise StoreError(
                f"{path.parent} cannot hold a {kind.name} (is it a network folder?): choose a local folder"
            )
        connection.execute("PRAGMA synchronous = FULL")
        marks = f"PRAGMA application_id = {kind.application_id}; PRAGMA user_version = {kind.format};"
        connection.executescript(f"BEGIN; {marks} {kind.schema} COMMIT;")
        if fill is not None:
            with transaction(connection):
                fill(connection)
    finally:
        connection.close()
    unborn.rename(path)
    _sync_folder(path.parent)


def connect(path: Path, kind: FileKind = RUNS, *, read_only: bool) -> sqlite3.Connection:
    """A connection to a file that is known to be one of ours."""
    connection = _connect(path, mode="ro" if read_only else "rw")
    try:
        _check_ours(connection, path, kind)
        if not read_only:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def check_integrity(connection: sqlite3.Connection, path: Path, *, thoroughly: bool = False) -> None:
    """Refuse a damaged file early: one that is too short, and one with a fault where looking at all of it is quick.

    `thoroughly`: also hold the indexes against their tables, which takes about five times as long.
    """
    (pages,), (page_size,) = (connection.execute(f"PRAGMA {word}").fetchone() for word in ("page_count", "page_size"))
    size = path.stat().st_size
    if size < pages * page_size and not _holds_anything(_beside(path, "-wal")):
        raise _damaged(path, f"{size} of {pages * page_size} bytes are there")
    if size >= LARGEST_CHECKED:
        return
    (finding,) = connection.execute(f"PRAGMA {'integrity' if thoroughly else 'quick'}_check(1)").fetchone()
    if finding != "ok":
        raise _damaged(path, finding)


@contextmanager
def translate_sqlite_errors(path: Path) -> Iterator[None]:
    """Turn what SQLite and the file system complain about into a StoreError that says what to do."""
    try:
        yield
    except sqlite3.Error as error:
        raise _translated(path, error) from error
    except UnicodeDecodeError as error:
        raise _damaged(path, str(error)) from error
    except OSError as error:
        raise StoreError(
            f"{path} cannot be used ({error.strerror or error}): check the folder and its rights"
        ) from error


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All of it or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # the first error is the one to tell; SQLite may have rolled back already
            connection.execute("ROLLBACK")
        raise


def _connect(path: Path, *, mode: str) -> sqlite3.Connection:
    address = f"{path.absolute().as_uri()}?mode={mode}"
    return sqlite3.connect(address, uri=True, timeout=WAIT_SECONDS, isolation_level=None, check_same_thread=False)


def _check_ours(connection: sqlite3.Connection, path: Path, kind: FileKind) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if (size := path.stat().st_size) < SMALLEST_DATABASE:
        raise StoreError(
            f"{path} holds {size} bytes, too few for a turnout {kind.name}: restore it from a backup, or delete it to "
            "begin a new one"
        )
    if application != kind.application_id:
        raise StoreError(f"{path} is a SQLite file, but not a turnout {kind.name}: choose another path")
    if version != kind.format:
        raise StoreError(
            f"{path} is of {kind.name} format {version}, but this turnout reads format {kind.format}: install a newer "
            "turnout"
        )


def _translated(path: Path, error: sqlite3.Error) -> StoreError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_NOTADB:
        return StoreError(f"{path} is not a SQLite file, or its beginning is damaged: choose another path")
    if code == sqlite3.SQLITE_CORRUPT:
        return _damaged(path, str(error))
    advice = {
        sqlite3.SQLITE_CANTOPEN: "check that it is a file and that its folder may be written to, or copy it elsewhere",
        sqlite3.SQLITE_READONLY: "check the rights of the file and its folder, or open it with read_only=True",
        sqlite3.SQLITE_FULL: "free some space and repeat; nothing of what was interrupted is stored",
        sqlite3.SQLITE_BUSY: "another program holds it; end that one and repeat",
        sqlite3.SQLITE_TOOBIG: "append fewer rounds at a time",
    }.get(code, "check the disk, and that no other program changes the file")
    return StoreError(f"{path} cannot be used ({error}): {advice}")


def _damaged(path: Path, finding: str) -> StoreError:
    one_line = " ".join(finding.split())
    return StoreError(
        f"{path} is truncated or damaged ({one_line}): restore it from a backup, or save what can be saved with "
        f"`sqlite3 {path.name} .recover`"
    )


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _holds_anything(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _sync_folder(folder: Path) -> None:
    """Make a new name in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
