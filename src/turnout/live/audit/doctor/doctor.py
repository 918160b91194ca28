"""Checks a fleet and reports what is damaged and what to do."""

from __future__ import annotations

import shlex
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from turnout.errors import StoreError
from turnout.kernel.certificate import TimeUnit
from turnout.live.audit.doctor import tables
from turnout.live.audit.doctor.findings import RESTORE, CheckResult, Finding, run_check
from turnout.live.audit.doctor.memory import can_replay, check_state
from turnout.live.journal.journal import Journal
from turnout.live.journal.schema import FLEET
from turnout.live.journal.turns import read_unit
from turnout.storage.address import DatabaseAddress, as_location
from turnout.storage.files.database import (
    StoreConnection,
    connect,
    connect_to_check,
    connect_to_read,
    is_current,
    translate_sqlite_errors,
)
from turnout.storage.files.identify import application_id
from turnout.storage.files.identity import find_lost_commits, newest_commit
from turnout.storage.files.lock import Writer, lock_line
from turnout.storage.store import Connection, Location
from turnout.version import __version__

__all__ = ["Finding", "examine"]

DELETE_SNAPSHOT = (
    "stop the scheduler and run {statement}: when the fleet is opened again, its state is rebuilt from all events"
)
ACCEPT_OLDER = (
    f"{RESTORE}; if none is newer than the file, open the file with accept_older=True to continue without the rest"
)
DELETE_OFFER = (
    "stop the scheduler and run {statement} for each damaged {unit} N: only the explanation of that {unit} is lost"
)


def examine(location: str | Path | DatabaseAddress) -> list[Finding]:
    """Checks everything in a fleet, without changing it.

    Raises:
        StoreError: There is no fleet, or the database cannot be reached.
    """
    place = as_location(location)
    return _examine_file(place.resolve()) if isinstance(place, Path) else _examine_schema(place)


def _examine_schema(address: DatabaseAddress) -> list[Finding]:
    with closing(Journal(address, read_only=True)) as journal, journal.reading() as db:
        version = Finding("format", True, f"fleet format {FLEET.format}, read by turnout {__version__}")
        holder, size = journal.file.writer or "no process", journal.file.bytes
        information = (
            Finding("writer", None, f"{holder} holds the fleet now"),
            Finding("size", None, f"{size / 2**20:,.1f} MiB"),
        )
        return [*_check_tables(db, address, [version]), *information]


def _examine_file(path: Path) -> list[Finding]:
    _require_fleet(path)
    with translate_sqlite_errors(path), closing(_connect(path)) as db:
        db.execute("BEGIN")  # all checks must see one state of the file, even while a scheduler writes it
        readable = run_check("format", lambda: _check_format(db), "install the version of turnout that wrote the file")
        recover = f"{RESTORE}; `sqlite3 {shlex.quote(str(path))} .recover` saves what can still be read"
        pages = run_check("pages", lambda: _check_pages(db, path), recover)
        if not readable.ok or not _has_schema(db):
            return [readable, pages]
        commits = run_check("log", lambda: _check_log(db, path), ACCEPT_OLDER)
        information = (
            run_check("writer", lambda: _describe_writer(db, path)),
            run_check("size", lambda: _describe_size(db, path)),
        )
        findings = _check_tables(db, path, [readable, pages, commits])
        return [*findings, *(Finding(finding.part, None, finding.message) for finding in information)]


def _check_tables(db: Connection, location: Location, before: Sequence[Finding]) -> list[Finding]:
    """Checks the tables; returns these findings after those of earlier checks."""
    with _undoing_failed_queries(db):
        unit = _unit(db)
    findings, checks = (
        [*before],
        {
            "summary": lambda: tables.check_summary(db, unit),
            "events": lambda: tables.check_events(db),
            "turns": lambda: tables.check_turns(db, unit),
            "answers": lambda: tables.check_answers(db),
        },
    )
    for part, check in checks.items():
        with _undoing_failed_queries(db):
            findings.append(run_check(part, check))
    for finding in check_state(location, db):
        is_snapshot_wrong = finding.part == "state" and finding.ok is False and can_replay(location, db)
        remedy = DELETE_SNAPSHOT.format(statement=_command(location, "DELETE FROM snapshot"))
        findings.append(replace(finding, remedy=remedy) if is_snapshot_wrong else finding)
    statement = _command(location, "DELETE FROM offers WHERE round = N")
    remedy = DELETE_OFFER.format(unit=unit, statement=statement) if _is_intact(findings) else RESTORE
    return [*findings, run_check("offers", lambda: tables.check_offers(db, unit), remedy)]


@contextmanager
def _undoing_failed_queries(db: Connection) -> Iterator[None]:
    """Opens a block whose failed queries leave the transaction usable, which PostgreSQL ends otherwise."""
    db.execute("SAVEPOINT checking")
    yield
    db.execute("ROLLBACK TO checking")


def _command(location: Location, statement: str) -> str:
    """Returns the command that executes a statement in a fleet."""
    if isinstance(location, Path):
        return f"`sqlite3 {shlex.quote(str(location))} '{statement}'`"
    return f'`SET search_path = "{location.schema}"; {statement}` in the database'


def _connect(path: Path) -> StoreConnection:
    """Opens a connection that leaves nothing behind beside a copy without its log."""
    db = connect_to_check(path)
    if db.stamp is None or (run_check("log", lambda: _check_log(db, path)).ok is False and is_current(db, path)):
        return db
    db.close()
    return connect_to_read(path)


def _has_schema(db: Connection) -> bool:
    """Returns whether SQLite can read the schema; without it only the check of the pages is possible, and fails."""
    try:
        db.execute("SELECT COUNT(*) FROM sqlite_master")
    except sqlite3.DatabaseError:
        return False
    return True


def _unit(db: Connection) -> TimeUnit:
    """Returns what the numbers of turns count; the check of the state names settings that cannot be read."""
    try:
        return read_unit(db)
    except Exception:  # damaged data can raise any exception
        return TimeUnit.ROUND


def _is_intact(findings: Sequence[Finding]) -> bool:
    return all(finding.ok is not False for finding in findings)


def _require_fleet(path: Path) -> None:
    """Raises StoreError unless the application id is that of a fleet; the rest of the file may be damaged."""
    if not path.is_file():
        raise StoreError(f"there is no fleet at {path}: check the path")
    with translate_sqlite_errors(path):
        if application_id(path) != FLEET.application_id:
            connect(path, FLEET, "check").close()


# Checks of the file as a whole


def _check_format(db: Connection) -> CheckResult:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    result = CheckResult(f"fleet format {version}, read by turnout {__version__} with SQLite {sqlite3.sqlite_version}")
    if version != FLEET.format:
        result.problems.append(
            f"the file has fleet format {version}, but turnout {__version__} reads only format {FLEET.format}"
        )
    return result


def _check_pages(db: Connection, path: Path) -> CheckResult:
    result = CheckResult()
    (pages,), (page_size,) = (db.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size"))
    size = path.stat().st_size
    if size < pages * page_size and not _size_beside(path, "-wal"):
        result.problems.append(f"the file is truncated: it has {size:,} of {pages * page_size:,} bytes")
    for (message,) in db.execute("PRAGMA integrity_check"):
        if message != "ok":
            result.problems.append(" ".join(message.split()))
    result.summary = f"SQLite finds no error in {pages:,} pages of {page_size:,} bytes"
    return result


def _check_log(db: StoreConnection, path: Path) -> CheckResult:
    """Checks that the file has all commits that were acknowledged, as far as the lock file states them."""
    lost = find_lost_commits(path, db)
    commits = newest_commit(db).commits
    return CheckResult(f"all {commits:,} commits that were acknowledged are there", [lost] if lost else [])


# Information that is neither right nor wrong


def _describe_writer(db: Connection, path: Path) -> CheckResult:
    """Describes the current and the last writer.

    The lock file is only read: taking the lock, even for a moment, could make a starting scheduler fail.
    """
    meta = dict(db.execute("SELECT key, value FROM meta WHERE key IN ('writer', 'epoch')"))
    holder = lock_line(path)
    last = f"last opened for writing by {meta['writer'] or 'no process'} (epoch {meta['epoch']})"
    if not holder:
        return CheckResult(f"{last}; no process holds the file now")
    writer = Writer.parse(holder)
    if writer is not None and writer.has_ended(path):
        return CheckResult(
            f"{last}; {holder} was killed or crashed: open the file again to continue, no committed data is lost"
        )
    return CheckResult(f"{last}; {holder} holds the file now")


def _describe_size(db: Connection, path: Path) -> CheckResult:
    (free,), (page_size,) = (db.execute(f"PRAGMA {name}").fetchone() for name in ("freelist_count", "page_size"))
    return CheckResult(
        f"{path.stat().st_size / 2**20:,.1f} MiB, of which {free * page_size / 2**20:,.1f} MiB are unused, and "
        f"{_size_beside(path, '-wal') / 2**20:,.1f} MiB in the write-ahead log"
    )


def _size_beside(path: Path, suffix: str) -> int:
    """Returns the size of a file beside the database, such as its log; 0 if it does not exist."""
    beside = path.with_name(path.name + suffix)
    return beside.stat().st_size if beside.exists() else 0
