"""Copies of fleets, between files and databases, and the restoration of a copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from turnout.counting import pluralize
from turnout.errors import StoreError
from turnout.kernel.certificate import TimeUnit
from turnout.live.journal.answers import TOKENS, TOKENS_BY_CLIENT, has_tokens
from turnout.live.journal.schema import FLEET, meta_count
from turnout.live.journal.turns import read_unit
from turnout.storage.files.database import new_counters, translate_sqlite_errors
from turnout.storage.files.identify import application_id
from turnout.storage.files.lock import WriterLock
from turnout.storage.files.storefile import StoreFile, back_up
from turnout.storage.opening import create_store, open_store, store_exists
from turnout.storage.store import Connection, Location, single_value

Progress = Callable[[int, int], None]
#: The tables of a fleet with their primary keys, which are also their first columns.
KEYS = {"meta": "key", "turns": "round, row", "answers": "number", "tokens": "id"}
KEYS |= dict.fromkeys(("clients", "totals"), "row") | dict.fromkeys(("offers", "open_round"), "round")
KEYS |= dict.fromkeys(("events", "masks", "snapshot", "summary"), "seq")
#: The number of rows that are copied at a time, from tables with small rows and from others.
PART = dict.fromkeys(("clients", "turns", "totals", "tokens"), 5000)
LARGE_ROWS = 50


def is_fleet(path: Location) -> bool:
    """Returns whether the application id of a file is that of a fleet; databases contain nothing else."""
    if not isinstance(path, Path):
        return True
    if not path.is_file():
        raise StoreError(f"there is no file {path}: check the path")
    with translate_sqlite_errors(path):
        return application_id(path) == FLEET.application_id


def copy_fleet(source: Location, copy: Location, progress: Progress = lambda *_: None) -> str:
    """Writes a complete copy of a fleet, also while its scheduler is running; returns what it contains.

    The copy has one state of the fleet: all tables are read in one transaction.

    Args:
        source: The fleet.
        copy: Where to write it; nothing must exist there.
        progress: Called with the number of pages or rows that were copied, and of all.

    Raises:
        StoreError: If the fleet does not exist or has lost commits, or the copy cannot be written.
    """
    if not store_exists(source):
        raise StoreError(f"there is no fleet at {source}: check the path")
    content: list[str] = []
    if isinstance(source, Path) and isinstance(copy, Path):
        back_up(source, copy, FLEET, progress, lambda db: content.append(_describe(db)))
        return content[0]
    # The copy is looked at first, because creating it again would do nothing.
    if store_exists(copy):
        raise StoreError(f"{copy} exists already: choose another name, or move it away")
    with closing(open_store(source, FLEET, "read")) as store, store.reading() as db:

        def fill(target: Connection) -> None:
            _copy_tables(db, target, progress)
            content.append(_describe(target))

        create_store(copy, FLEET, fill)
    if not content:
        raise StoreError(f"another process has created {copy} in the meantime: choose another name")
    return content[0]


def _copy_tables(db: Connection, target: Connection, progress: Progress) -> None:
    """Copies the rows of all tables, a part of each at a time; answers get new numbers, in the same order."""
    if has_tokens(db):
        target.execute(TOKENS)
        target.execute(TOKENS_BY_CLIENT)
    keys = {table: key for table, key in KEYS.items() if table != "tokens" or has_tokens(db)}
    total = sum(int(single_value(db, f"SELECT COUNT(*) FROM {table}")) for table in keys)
    done, own = 0, new_counters().keys()  # in `meta`: they count the commits of a file, and not of its copy
    for table, key in keys.items():
        columns = key.split(", ")
        after: Sequence[Any] = ()
        while True:
            where = f"WHERE ({key}) > ({', '.join('?' * len(after))})" if after else ""
            query = f"SELECT * FROM {table} {where} ORDER BY {key} LIMIT {PART.get(table, LARGE_ROWS)}"
            rows = db.execute(query, after).fetchall()
            if not rows:
                break
            after = rows[-1][: len(columns)]  # they come first in every table
            done += len(rows)
            names = ""
            if table == "meta":
                rows = [row for row in rows if row[0] not in own]
            elif table == "answers":
                rows, names = [row[1:] for row in rows], " (key, request, answer, at, seal)"
            target.executemany(f"INSERT INTO {table}{names} VALUES ({', '.join('?' * len(rows[0]))})", rows)
            progress(done, total)


def restore_fleet(backup: Path, fleet: Location, progress: Progress = lambda *_: None) -> tuple[str, Location | None]:
    """Puts a backup in the place of a fleet, which no process may write; what was there is set aside.

    Args:
        backup: The file that `copy_fleet` wrote.
        fleet: The fleet, which may be missing or damaged.
        progress: Called with the number of pages or rows that were copied, and of all.

    Returns:
        What the fleet contains now, and where that is which was there; None if nothing was.

    Raises:
        StoreError: If the backup is no fleet or is damaged, or the fleet is in use; then nothing is changed.
    """
    with closing(StoreFile(backup, FLEET, "read")):
        pass  # what is no backup is refused before anything is moved
    if isinstance(fleet, Path):
        return _restore_file(backup, fleet, progress)
    from turnout.storage.postgres.connection import rename, set_aside

    aside = set_aside(fleet)
    try:
        return copy_fleet(backup, fleet, progress), aside
    except BaseException:
        if aside is not None:
            rename(aside, fleet)
        raise


def _restore_file(backup: Path, path: Path, progress: Progress) -> tuple[str, Path | None]:
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
            content = copy_fleet(backup, path, progress)
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
