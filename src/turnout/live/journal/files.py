"""Files of fleets: which files are some, backups of them, and their restoration."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from turnout.counting import pluralize
from turnout.errors import StoreError
from turnout.kernel.certificate import TimeUnit
from turnout.live.journal.schema import FLEET, meta_count
from turnout.live.journal.turns import read_unit
from turnout.storage.files.backup import back_up
from turnout.storage.files.database import translate_sqlite_errors
from turnout.storage.files.identify import application_id
from turnout.storage.files.lock import WriterLock
from turnout.storage.files.storefile import StoreFile
from turnout.storage.store import Connection, single_value


def is_fleet(path: Path) -> bool:
    """Returns whether the application id of a file is that of a fleet."""
    if not path.is_file():
        raise StoreError(f"there is no file {path}: check the path")
    with translate_sqlite_errors(path):
        return application_id(path) == FLEET.application_id


def back_up_fleet(path: Path, copy: Path, progress: Callable[[int, int], None] = lambda *_: None) -> str:
    """Writes a complete copy of a fleet's file, also while its scheduler is running; returns what it contains.

    Args:
        path: The file of the fleet.
        copy: The file to write, which must not exist.
        progress: Called with the number of pages that were copied, and of all pages.

    Raises:
        StoreError: If the fleet does not exist or has lost commits, or the copy cannot be written.
    """
    if not path.exists():
        raise StoreError(f"there is no fleet at {path}: check the path")
    content: list[str] = []
    back_up(path, copy, FLEET, progress, lambda db: content.append(_describe(db)))
    return content[0]


def restore_fleet(
    backup: Path, path: Path, progress: Callable[[int, int], None] = lambda *_: None
) -> tuple[str, Path | None]:
    """Puts a backup in the place of a fleet's file, which no process may write; the file that was there is set aside.

    Args:
        backup: The file that `back_up_fleet` wrote.
        path: The file of the fleet, which may be missing or damaged.
        progress: Called with the number of pages that were copied, and of all pages.

    Returns:
        What the file contains now, and where the file is that was there; None if there was none.

    Raises:
        StoreError: If the backup is no fleet or is damaged, or the fleet is in use; then nothing is changed.
    """
    with closing(StoreFile(backup, FLEET, "read")):
        pass  # what is no backup is refused before anything is moved
    if path.exists() and path.samefile(backup):
        raise StoreError(f"{path} is the backup itself: name the file of the fleet")
    lock, aside = WriterLock(path.resolve()), path.with_name(f"{path.name}.replaced")
    moved: list[tuple[Path, Path]] = []
    try:
        if aside.exists():
            raise StoreError(f"{aside} exists already, from an earlier restoration: move it away")
        try:
            for suffix in ("", "-wal", "-shm"):
                old, new = path.with_name(f"{path.name}{suffix}"), aside.with_name(f"{aside.name}{suffix}")
                if old.exists():
                    old.replace(new)
                    moved.append((old, new))
            content = back_up_fleet(backup, path, progress)
        except BaseException:
            for old, new in moved:
                new.replace(old)
            raise
    finally:
        lock.release()
    return content, aside if moved else None


def _describe(db: Connection) -> str:
    turns = "closed rounds" if read_unit(db) is TimeUnit.ROUND else "turns"
    clients = pluralize(single_value(db, "SELECT COUNT(*) FROM clients"), "client")
    return f"{meta_count(db, 'round'):,} {turns} of {clients}"
