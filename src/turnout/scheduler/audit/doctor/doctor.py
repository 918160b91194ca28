"""What can be checked of a fleet's file, and what was found, in plain words."""

from __future__ import annotations

import json
import shlex
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from turnout.errors import StoreError
from turnout.scheduler.audit.doctor import tables
from turnout.scheduler.audit.doctor.findings import RESTORE, Finding, Look, finding_of, snapshot_gaps
from turnout.scheduler.audit.doctor.memory import from_memory
from turnout.scheduler.journal.journal import FLEET, FORMAT_1
from turnout.scheduler.journal.replay import stored_features
from turnout.scheduler.records import digest_of
from turnout.scheduler.settings import SchedulerSettings
from turnout.store.database import connect, translate_sqlite_errors
from turnout.store.lock import Writer, lock_line
from turnout.store.wal import lost_commits
from turnout.version import __version__

__all__ = ["Finding", "examine"]

FOLD_AGAIN = (
    "with the scheduler ended, `sqlite3 FILE 'DELETE FROM snapshot'` lets the next opening fold all events anew"
)
DO_WITHOUT = (
    "with the scheduler ended, `sqlite3 FILE 'DELETE FROM offers WHERE round = N'` takes the offer of round N out; all "
    "but explaining that round goes on without it"
)


def examine(path: Path) -> list[Finding]:
    """Check everything that can be checked, and change nothing; a file that is not a fleet is refused."""
    _refuse_strangers(path)
    address = f"{path.absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(address, uri=True, timeout=60, isolation_level=None)) as db:
        db.execute("BEGIN")  # one view, also while a scheduler is at work
        readable = finding_of("format", lambda: _format(db), "install the turnout that wrote it")
        pages = finding_of(
            "pages", lambda: _pages(db, path), f"{RESTORE}; `sqlite3 FILE .recover` saves what can still be read"
        )
        if not readable.sound:
            return [readable, pages]
        checks: dict[str, Callable[[], Look]] = {
            "log": lambda: _log(path),
            "settings": lambda: _settings(db),
            "events": lambda: tables.events_look(db),
            "masks": lambda: tables.masks_look(db),
            "clients": lambda: tables.clients_look(db),
            "turns": lambda: tables.turns_look(db),
            "rounds": lambda: tables.rounds_look(db),
            "open round": lambda: tables.open_round_look(db),
        }
        found = [readable, pages, *(finding_of(part, check) for part, check in checks.items())]
        foldable = all(one.sound for one in found) and not snapshot_gaps(db)
        found.extend(from_memory(path, FOLD_AGAIN if foldable else RESTORE))
        spare = all(one.sound for one in found)
        found.append(finding_of("offers", lambda: tables.offers_look(db), DO_WITHOUT if spare else RESTORE))
        told = (finding_of("writer", lambda: _writer(db, path)), finding_of("size", lambda: _size(db, path)))
        named = (replace(one, remedy=one.remedy.replace("FILE", shlex.quote(str(path)))) for one in found)
        return [*named, *(Finding(one.part, None, one.words) for one in told)]


def _refuse_strangers(path: Path) -> None:
    """A fleet is known by its mark, in whatever state the rest is."""
    if not path.is_file():
        raise StoreError(f"there is no fleet at {path}: check the path")
    with translate_sqlite_errors(path):
        with path.open("rb") as file:
            mark = file.read(72)[68:]
        if mark != FLEET.application_id.to_bytes(4, "big"):
            connect(path, FLEET, read_only=True).close()


# The file


def _format(db: sqlite3.Connection) -> Look:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    look = Look(f"fleet format {version}, read by turnout {__version__} with SQLite {sqlite3.sqlite_version}")
    if version not in (FORMAT_1.format, FLEET.format):
        look.wrong.append(f"it is of fleet format {version}, and turnout {__version__} reads up to {FLEET.format}")
    return look


def _pages(db: sqlite3.Connection, path: Path) -> Look:
    look = Look()
    (pages,), (page_size,) = (db.execute(f"PRAGMA {word}").fetchone() for word in ("page_count", "page_size"))
    size = path.stat().st_size
    if size < pages * page_size and not _size_of(path, "-wal"):
        look.wrong.append(f"{size:,} of {pages * page_size:,} bytes are there")
    for (complaint,) in db.execute("PRAGMA integrity_check"):
        if complaint != "ok":
            look.wrong.append(" ".join(complaint.split()))
    look.words = f"{pages:,} pages of {page_size:,} bytes are as SQLite wrote them"
    return look


def _log(path: Path) -> Look:
    lost = lost_commits(path)
    wrong = [f"{path.name}-wal is damaged, and {lost:,} or more changes behind the damage are lost"] if lost else []
    return Look("all that was committed can be read", wrong)


def _settings(db: sqlite3.Connection) -> Look:
    meta = dict(db.execute("SELECT key, value FROM meta"))
    told = json.loads(meta["settings"])
    settings, features = SchedulerSettings.from_dict(told), stored_features(told["features"])
    look = Look(f"policy {settings.policy}, {features.outputs} features")
    if digest_of(b"", "settings", meta["settings"].encode()).hex() != meta["seal"]:
        look.wrong.append("they are not what was written")
    return look


# Told, not judged


def _writer(db: sqlite3.Connection, path: Path) -> Look:
    """By what processes say of themselves: taking the lock, even for a moment, could turn a scheduler away."""
    meta = dict(db.execute("SELECT key, value FROM meta WHERE key IN ('writer', 'epoch')"))
    holder = lock_line(path)
    last = f"writer number {meta['epoch']} was {meta['writer'] or 'nobody'}"
    if not holder:
        return Look(f"{last}; nobody holds the file now")
    writer = Writer.parse(holder)
    if writer is not None and writer.is_dead:
        return Look(f"{last}; {holder} was killed or broke down: open the file again to go on, nothing is lost")
    return Look(f"{last}; {holder} holds the file now")


def _size(db: sqlite3.Connection, path: Path) -> Look:
    (free,), (page_size,) = (db.execute(f"PRAGMA {word}").fetchone() for word in ("freelist_count", "page_size"))
    return Look(
        f"{path.stat().st_size / 2**20:,.1f} MiB, {free * page_size / 2**20:,.1f} of them free for use, and "
        f"{_size_of(path, '-wal') / 2**20:,.1f} MiB in the log"
    )


def _size_of(path: Path, suffix: str) -> int:
    beside = path.with_name(path.name + suffix)
    return beside.stat().st_size if beside.exists() else 0
