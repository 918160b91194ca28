"""Copies of a store, also while it is written."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from turnout.errors import StoreError
from turnout.storage.files.database import StoreConnection, temporary_database, translate_sqlite_errors
from turnout.storage.files.storefile import StoreFile
from turnout.storage.store import StoreKind

#: The number of pages that are copied at a time.
PAGES = 2000


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
        temporary_database(copy) as temporary,
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
        with translate_sqlite_errors(copy):
            raise
    except OSError:
        with translate_sqlite_errors(copy):
            raise
