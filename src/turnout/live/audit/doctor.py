"""Checks a fleet and reports what is damaged and what to do."""

from __future__ import annotations

import shlex
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from turnout.counting import pluralize
from turnout.errors import PluginError, StoreError, TurnoutError
from turnout.kernel.certificate import TimeUnit
from turnout.live.audit import tables
from turnout.live.audit.tables import RESTORE, CheckResult, Finding, run_check, snapshot_event, why_not_replayed
from turnout.live.journal.journal import Journal
from turnout.live.journal.replay import FleetState, load
from turnout.live.journal.schema import FLEET
from turnout.live.journal.summary import read_summary, read_totals
from turnout.live.journal.turns import read_unit
from turnout.live.turns.records import KINDS
from turnout.live.turns.slots.state import SlotFleet
from turnout.live.turns.state import Fleet
from turnout.storage.address import DatabaseAddress, as_location
from turnout.storage.files import database
from turnout.storage.files.database import StoreConnection
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
    with closing(Journal(address, "read")) as journal, journal.reading() as db:
        version = Finding("format", True, f"fleet format {FLEET.format}, read by turnout {__version__}")
        holder, size = journal.file.writer or "no process", journal.file.bytes
        information = (
            Finding("writer", None, f"{holder} holds the fleet now"),
            Finding("size", None, f"{size / 2**20:,.1f} MiB"),
        )
        return [*_check_tables(db, address, [version]), *information]


def _examine_file(path: Path) -> list[Finding]:
    _require_fleet(path)
    with database.translate_sqlite_errors(path), closing(_connect(path)) as db:
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
    findings = [*before]
    checks = {
        "summary": lambda: tables.check_summary(db, unit),
        "events": lambda: tables.check_events(db),
        "turns": lambda: tables.check_turns(db, unit),
        "answers": lambda: tables.check_answers(db),
    }
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
    db = database.connect_to_check(path)
    if db.stamp is None or (
        run_check("log", lambda: _check_log(db, path)).ok is False and database.is_current(db, path)
    ):
        return db
    db.close()
    return database.connect_to_read(path)


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
    with database.translate_sqlite_errors(path):
        if application_id(path) != FLEET.application_id:
            database.connect(path, FLEET, "check").close()


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
    if size < pages * page_size and not database.log_size(path):
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
        f"{database.log_size(path) / 2**20:,.1f} MiB in the write-ahead log"
    )


def check_state(location: Location, db: Connection) -> Iterator[Finding]:
    """Loads the file as a scheduler does, and checks the snapshot and the counters of the state.

    Loading compares the settings with their amendments, the ids of the clients with the join events, and the open round
    or the running turns with the turns.
    """
    try:
        with closing(Journal(location, "read")) as journal, journal.reading():
            state = load(journal)
            yield run_check("state", lambda: _check_snapshot(journal, db, state))
            yield run_check("books", lambda: _check_counters(db, state.fleet))
            # A broken promise is no damage: the file is intact and says truthfully that clients got too few turns.
            yield replace(run_check("promise", lambda: _describe_promise(state.fleet)), ok=None, remedy="")
    except PluginError as error:  # the file may be intact: nobody without the policy can tell
        yield Finding("state", None, f"not checked, because its policy is missing here: {error}", "")
    except Exception as error:  # damaged data can raise any exception
        problem = str(error) if isinstance(error, TurnoutError) else f"{type(error).__name__}: {error}"
        yield Finding("state", False, f"a scheduler cannot open this fleet: {problem}", RESTORE)


def can_replay(location: Location, db: Connection) -> bool:
    """Returns whether the state can be computed from all events, without a snapshot."""
    try:
        with closing(Journal(location, "read")) as journal:
            load(journal, from_snapshot=False)
            return not why_not_replayed(journal, db)
    except Exception:  # whatever else is damaged, only a backup helps
        return False


def _check_snapshot(journal: Journal, db: Connection, state: FleetState) -> CheckResult:
    """Checks that the snapshot and the events after it give the same state as all events.

    Args:
        journal: The journal of the fleet.
        db: Its connection, inside a transaction.
        state: The state that was loaded from the snapshot and the events after it.
    """
    last = snapshot_event(db)
    if not last:
        return CheckResult("built from all events; no snapshot was taken yet")
    if reason := why_not_replayed(journal, db):
        return CheckResult(
            f"built from the snapshot after event {last} and the events after it; earlier events cannot be compared "
            f"with it, because {reason}"
        )
    loaded, replayed = state.state(), load(journal, from_snapshot=False).state()
    different = [key for key in {**loaded, **replayed} if not _equal(loaded.get(key), replayed.get(key))]
    result = CheckResult(f"the snapshot after event {last} and the events after it give the same state as all events")
    if different:
        result.problems.append(
            f"the snapshot after event {last} gives another {', '.join(different)} than all events do"
        )
    return result


def _check_counters(db: Connection, fleet: Fleet) -> CheckResult:
    """Checks that the turns that the state counts are those that are recorded, and that the books balance."""
    result = CheckResult("this policy guarantees nothing")
    counts = {kind: np.zeros(len(fleet.ids), np.int64) for kind in KINDS}
    kept = (
        "SELECT row, kind, COUNT(*) FROM turns WHERE round > ? AND round <= ? AND round NOT IN (SELECT round FROM "
        "open_round) GROUP BY row, kind"
    )
    for row, kind, count in db.execute(kept, (read_summary(db).round, fleet.round)):
        counts[kind][row] = count
    dropped = read_totals(db, len(fleet.ids))
    counts = {kind: count + dropped.counts[kind] for kind, count in counts.items()}
    guarantee = fleet.policy.guarantee if fleet.ids else None
    certificate = fleet.policy.certificate() if fleet.ids else None
    if guarantee is not None and certificate is not None:
        paid = counts["arrived"] if guarantee.counts == "completed" else np.sum(list(counts.values()), axis=0)
        if isinstance(fleet, SlotFleet) and guarantee.counts == "selected":
            paid[fleet.running.rows] += 1  # turns count when they are given
        result.problems.extend(
            f"{fleet.ids[row]!r} was paid {certificate.turns[row]} turns according to the state, but {paid[row]} "
            "according to its turns"
            for row in np.flatnonzero(certificate.turns != paid).tolist()
        )
        if not certificate.books_balance:
            unbalanced = pluralize(int((~certificate.balanced).sum()), "client")
            result.problems.append(f"the books of {unbalanced} do not balance")
        result.summary = f"the books balance for {len(fleet.ids):,} clients and agree with the recorded turns"
    return result


def _describe_promise(fleet: Fleet) -> CheckResult:
    certificate = fleet.certificate() if fleet.ids else None
    if certificate is None:
        return CheckResult("nothing is promised" if fleet.ids else "there are no clients yet")
    return CheckResult(certificate.summary().sentence(fleet.ids.__getitem__))


def _equal(left: Any, right: Any) -> bool:
    """Returns whether two values are equal; floats may differ in the last digits, as machines round differently."""
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray) and left.dtype.kind == "f":
        return left.shape == right.shape and bool(np.allclose(left, right, rtol=1e-9, atol=1e-12, equal_nan=True))
    return type(left) is type(right) and bool(np.array_equal(left, right))
