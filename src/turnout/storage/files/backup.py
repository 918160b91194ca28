"""Copies of a store, also while it is written."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from turnout.errors import StoreError
from turnout.storage.files.database import FileKind, translate_sqlite_errors
from turnout.storage.files.storefile import StoreFile
from turnout.storage.files.system import sync_file, sync_folder

#: The number of pages that are copied at a time.
PAGES = 2000


def back_up(path: Path, copy: Path, kind: FileKind, progress: Callable[[int, int], None] = lambda *_: None) -> None:
    """Writes a complete copy of a store, with everything that is still in its log; other processes may go on writing.

    Args:
        path: The file to copy. If it has lost commits it is refused, like at any other opening.
        copy: The file to write, which must not exist.
        kind: The kind of file to accept.
        progress: Called with the number of pages that were copied, and of all pages.
    """
    if copy.exists():
        raise StoreError(f"{copy} exists already: choose another path, or move it away")
    if not copy.parent.is_dir():
        raise StoreError(f"there is no folder {copy.parent}: create it, or choose another path")
    temporary = copy.with_name(f"{copy.name}.new")
    temporary.unlink(missing_ok=True)
    with closing(StoreFile(path, kind, "read")) as source, translate_sqlite_errors(copy):
        # In a read transaction all steps copy the same state, whatever is written in the meantime.
        with source.reading() as db, closing(sqlite3.connect(temporary, isolation_level=None)) as target:
            db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
            db.backup(target, pages=PAGES, progress=lambda _, left, total: progress(total - left, total))
            target.execute("UPDATE meta SET value = '0' WHERE key = 'in_use'")
            target.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        for suffix in ("-wal", "-shm"):
            temporary.with_name(temporary.name + suffix).unlink(missing_ok=True)
        with temporary.open("r+b") as file:  # Windows flushes only files that are open for writing
            sync_file(file.fileno())
        temporary.rename(copy)
        sync_folder(copy.parent)
