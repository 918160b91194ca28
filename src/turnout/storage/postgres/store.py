"""A store in a schema of a PostgreSQL database, with a lease that fences its writer.

The table `control` has one row: the format, the number of commits, and the lease of the writer. Every transaction that
writes locks this row first, so that one process writes at a time. The writer renews its lease in the same statement,
under the condition that its epoch is the present one: a process that another one has replaced can no longer write,
whenever it wakes up. Only the clock of the database decides whether a lease has expired.

Each process that writes has a row in `sessions` with the number of its own commits. If the connection is lost while a
transaction is committed, that row says whether it was. If it has a smaller number than this process was told, the
database has lost commits, for example because an asynchronous replica has taken the place of the primary.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, suppress
from typing import Literal

import psycopg
from psycopg import sql

from turnout.errors import InterruptedCallError, StoreError
from turnout.log import get_log
from turnout.storage.address import DatabaseAddress
from turnout.storage.files.lock import Writer
from turnout.storage.postgres.connection import (
    PostgresConnection,
    identifier,
    is_lost,
    translate_postgres_errors,
    translated,
)
from turnout.storage.postgres.lease import IDLE_SECONDS, LEASE_SECONDS, RENEW, LeaseKeeper
from turnout.storage.store import META, Access, Connection, Store, StoreKind, single_value

log = get_log("turnout.live")
#: How long a transaction waits for other processes and for the database, in seconds; how long a takeover does.
WAIT_SECONDS, TAKEOVER_WAIT_SECONDS = 60.0, 5.0
#: The first and the longest pause between two attempts to connect, and that of a standby, in seconds.
PAUSE, MAX_PAUSE, STANDBY_PAUSE = 0.05, 1.0, 0.25
#: Sessions of processes that were killed are deleted after so many days.
KEPT_DAYS = 7
CONTROL = """CREATE TABLE control (
    kind TEXT NOT NULL, format INTEGER NOT NULL, commits INTEGER NOT NULL, epoch INTEGER NOT NULL, writer TEXT NOT NULL,
    expires TIMESTAMPTZ NOT NULL
)"""
SESSIONS = "CREATE TABLE sessions (id TEXT PRIMARY KEY, commits INTEGER NOT NULL, at TIMESTAMPTZ NOT NULL)"
LOCK = "SELECT commits FROM control FOR UPDATE"
COUNT = """WITH counted AS (UPDATE control SET commits = commits + 1 RETURNING commits)
INSERT INTO sessions SELECT ?, ?, clock_timestamp() FROM counted
ON CONFLICT (id) DO UPDATE SET commits = excluded.commits, at = excluded.at RETURNING (SELECT commits FROM counted)"""
TAKE = f"""UPDATE control SET epoch = epoch + 1, writer = ?,
expires = clock_timestamp() + make_interval(secs => {LEASE_SECONDS})
WHERE ? OR expires < clock_timestamp() RETURNING epoch"""
#: Statements that bring a schema of a format to the next one.
MIGRATIONS: dict[int, tuple[str, ...]] = {}


class PostgresStore(Store[PostgresConnection]):
    """An open store in a database.

    Args:
        address: The store, which must exist.
        kind: The kind of store to accept.
        access: "read"; "report": to write beside the only writer; "write": as the only writer.
        takeover: Whether to write although the lease of another process has not expired.
        accept_older: Whether a store that has lost commits, as far as this process knows, is used in its older state.
        standby: Whether to wait until the lease of the writer has expired.
        claim: Called by the only writer in the transaction in which it takes the lease.
    """

    has_fence = True

    def __init__(
        self,
        address: DatabaseAddress,
        kind: StoreKind,
        access: Access,
        *,
        takeover: bool = False,
        accept_older: bool = False,
        standby: bool = False,
        claim: Callable[[Connection], None] = lambda _: None,
    ) -> None:
        super().__init__(address, access)
        self.address, self._kind, self._claim = address, kind, claim
        self._wait = WAIT_SECONDS
        self._session, self._own = secrets.token_hex(8), 0  # the own commits that were acknowledged
        self._seen = 0  # the largest number of commits that this process has seen
        self._accepts_older, self._epoch = accept_older, 0
        self._keeper: LeaseKeeper | None = None
        try:
            with self.translating():
                self._connection = self._connect()
                if access == "write":
                    self._take_lease(takeover=takeover, standby=standby)
                self._check_format(self.connection)
        except BaseException:
            self.close()
            raise

    def translating(self) -> AbstractContextManager[None]:
        """Opens a block in which errors of PostgreSQL become StoreErrors that state what to do."""
        return translate_postgres_errors(self.address)

    # Connections

    def _connect(self) -> PostgresConnection:
        is_reading = self.access == "read"
        options = {} if is_reading else {"target_session_attrs": "read-write"}
        idle = None if is_reading else IDLE_SECONDS
        db = PostgresConnection(self.address, seconds=self._wait, idle_seconds=idle, **options)
        try:
            self._check_commits(db)
        except BaseException:
            db.close()
            raise
        return db

    def _begin(self, access: Literal["read", "lock", "write"]) -> tuple[PostgresConnection, object]:
        until, pause = time.monotonic() + self._wait, PAUSE
        while True:
            try:
                db = self.connection
                if not db.is_usable:
                    db = self._connection = self._connect()
                if access == "read":
                    return db, db.begin("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                return db, self._begin_to_write(db, must_be_writer=access == "write" and self._epoch > 0)
            except psycopg.Error as error:
                if not is_lost(error) or time.monotonic() > until:
                    raise
                self.connection.close()
                time.sleep(pause)
                pause = min(2 * pause, MAX_PAUSE)

    def _begin_to_write(self, db: PostgresConnection, *, must_be_writer: bool) -> object:
        if db.in_transaction:  # an interrupted call has left it open
            db.execute("ROLLBACK")
        token = db.begin("BEGIN")
        try:
            if must_be_writer:
                if db.execute(RENEW, (self._epoch,)).fetchone() is None:
                    raise self._replaced(db)
            else:
                db.execute(LOCK)
        except BaseException:
            if db.owns(token):
                db.execute("ROLLBACK")
            raise
        return token

    def _commit(self, db: PostgresConnection) -> None:
        number = self._own + 1
        seen = int(single_value(db, COUNT, self._session, number))
        try:
            db.execute("COMMIT")
        except psycopg.Error as error:
            if not is_lost(error) or not self._was_committed(number):
                raise
        self._own, self._seen = number, max(self._seen, seen)

    def _was_committed(self, number: int) -> bool:
        """Returns whether the own commit with this number is stored, after its connection was lost."""
        self.connection.close()
        db, token = self._begin("lock")  # the lost connection may still be committing, and has locked the row then
        try:
            return self._stored_commits(db) == number
        finally:
            if db.owns(token):
                db.execute("ROLLBACK")

    def _stored_commits(self, db: PostgresConnection) -> int:
        return int(single_value(db, "SELECT COALESCE(MAX(commits), 0) FROM sessions WHERE id = ?", self._session))

    def _check_commits(self, db: PostgresConnection) -> None:
        """Raises StoreError if the database has lost commits of which this process knows."""
        if not self._seen:
            return
        commits, own = int(single_value(db, "SELECT commits FROM control")), self._stored_commits(db)
        lost = max(self._seen - commits, self._own - own)
        if lost <= 0:
            return
        problem = (
            f"{self.address} has lost {lost:,} of {self._seen:,} commits that were acknowledged: perhaps a replica "
            "without them has taken the place of the database"
        )
        if not self._accepts_older:
            raise StoreError(
                f"{problem}. Restore the database; accept_older=True continues from the older state when it is opened "
                "again",
                argument="accept_older",
            )
        log.warning("%s. The older state was accepted", problem)
        self._own, self._seen = own, commits

    def _check_format(self, db: PostgresConnection) -> None:
        kind, version = db.execute("SELECT kind, format FROM control").fetchone()
        if kind != self._kind.name:
            raise StoreError(f"{self.address} is a {kind}, not a {self._kind.name}: choose another name")
        while version < self._kind.format and self.access == "write" and version in MIGRATIONS:
            with self.writing() as writable:
                for statement in MIGRATIONS[version]:
                    writable.execute(statement)
                version += 1
                writable.execute("UPDATE control SET format = ?", (version,))
        if version != self._kind.format:
            newer = "install a newer version of turnout" if version > self._kind.format else "open it to write once"
            raise StoreError(
                f"{self.address} has {self._kind.name} format {version}, but this version of turnout reads format "
                f"{self._kind.format}: {newer}"
            )

    # The lease

    def _take_lease(self, *, takeover: bool, standby: bool) -> None:
        """Makes this process the writer."""
        self.wait_at_most(TAKEOVER_WAIT_SECONDS if takeover else LEASE_SECONDS)
        is_waiting = False
        while True:
            commits, writer, left = self._read_lease()
            self._seen = max(self._seen, commits)
            if (takeover or not left) and self._try_to_take(takeover):
                break
            if not standby:
                raise StoreError(
                    f"{self.address} is being written by {writer}, whose lease ends in {left:.1f} s unless it is "
                    "renewed: wait until it ends, open it as a standby, or open it to read it"
                )
            if not is_waiting:
                log.info("%s is being written by %s: this process waits as its standby", self.address, writer)
            is_waiting = True
            time.sleep(STANDBY_PAUSE)
        self.wait_at_most(WAIT_SECONDS)
        self._keeper = LeaseKeeper(self.address, self._epoch)
        log.event(logging.INFO, "lease", fleet=self.address.name, epoch=self._epoch, writer=str(Writer.current()))

    def _try_to_take(self, takeover: bool) -> bool:
        try:
            with self.writing() as db:
                row = db.execute(TAKE, (str(Writer.current()), takeover)).fetchone()
                if row is None:
                    raise _HeldError
                self._claim(db)
                db.execute(f"DELETE FROM sessions WHERE at < clock_timestamp() - interval '{KEPT_DAYS} days'")
            self._epoch = int(row[0])
            return True
        except _HeldError:
            return False
        except psycopg.errors.LockNotAvailable:  # its holder is ended after a while, if it hangs
            if takeover:
                raise
            return False
        except (psycopg.Error, InterruptedCallError) as error:
            if takeover or (isinstance(error, psycopg.Error) and not is_lost(error)):
                raise
            return False

    def _read_lease(self) -> tuple[int, str, float]:
        """Returns the number of commits, the writer, and the seconds until its lease expires."""
        query = (
            "SELECT commits, writer, GREATEST(EXTRACT(EPOCH FROM expires - clock_timestamp()), 0)::float FROM control"
        )
        with self.reading() as db:
            commits, writer, left = db.execute(query).fetchone()
        return int(commits), writer, float(left)

    def _replaced(self, db: PostgresConnection) -> StoreError:
        (writer,) = db.execute("SELECT writer FROM control").fetchone()
        return StoreError(
            f"{self.address} was taken over by {writer}: this scheduler can no longer write, so stop its process"
        )

    # What a store tells about itself

    @property
    def commits(self) -> int:
        """The number of commits since the store was created."""
        with self.reading() as db:
            return int(single_value(db, "SELECT commits FROM control"))

    @property
    def changes(self) -> int:
        """A number that changes whenever this or another connection has written to the store."""
        return self.commits

    @property
    def bytes(self) -> int:
        """The size of all tables and indexes."""
        query = "SELECT COALESCE(SUM(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c " + (
            "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = ? AND c.relkind = 'r'"
        )
        with self.reading() as db:
            return int(single_value(db, query, self.address.schema))

    @property
    def log_bytes(self) -> int:
        """0, because the log is that of the whole database."""
        return 0

    def wait_at_most(self, seconds: float) -> None:
        """Sets how long a transaction waits for other processes and for the database."""
        self._wait = seconds
        self.connection.raw.execute("SELECT set_config('lock_timeout', %s, false)", (f"{seconds * 1000:.0f}",))

    def vacuum(self) -> None:
        """Rewrites all tables without unused space; each cannot be used meanwhile."""
        with self.translating():
            self._require_writable()
            tables = "SELECT tablename FROM pg_tables WHERE schemaname = ?"
            for (table,) in self.connection.execute(tables, (self.address.schema,)).fetchall():
                self.connection.raw.execute(sql.SQL("VACUUM (FULL) {}").format(identifier(table)))

    def checkpoint(self) -> None:
        """Does nothing: the log is that of the whole database."""

    def close(self) -> None:
        """Ends the lease and closes the connection; a second call has no effect."""
        if self._keeper is not None:
            self._keeper.stop()
        db, self._connection = self._connection, None
        if db is None:
            return
        try:
            with suppress(psycopg.Error):  # the lease expires by itself
                if db.is_usable and self._own:
                    db.execute("DELETE FROM sessions WHERE id = ?", (self._session,))
                if db.is_usable and self._epoch:
                    db.execute("UPDATE control SET expires = 'epoch', writer = '' WHERE epoch = ?", (self._epoch,))
        finally:
            db.close()


class _HeldError(Exception):
    """Another process has the lease."""


def schema_exists(address: DatabaseAddress) -> bool:
    """Returns whether there is a store."""
    with translate_postgres_errors(address), closing(_connect_once(address)) as db:
        return bool(single_value(db, "SELECT COUNT(*) FROM pg_namespace WHERE nspname = ?", address.schema))


def create_schema(address: DatabaseAddress, kind: StoreKind, fill: Callable[[Connection], None]) -> None:
    """Creates a store in one transaction; one that already exists is left as it is."""
    with translate_postgres_errors(address), closing(_connect_once(address)) as db:
        token = db.begin("BEGIN")
        try:
            db.execute("SELECT pg_advisory_xact_lock(hashtext(?))", (address.schema,))
            if not single_value(db, "SELECT COUNT(*) FROM pg_namespace WHERE nspname = ?", address.schema):
                db.raw.execute(sql.SQL("CREATE SCHEMA {}").format(identifier(address.schema)))
                for statement in (kind.schema, META, CONTROL, SESSIONS):
                    db.raw.execute(translated(statement))
                values = (kind.name, kind.format)
                db.execute("INSERT INTO control VALUES (?, ?, 0, 0, '', 'epoch')", values)
                fill(db)
            db.execute("COMMIT")
        except BaseException:
            if db.owns(token):
                db.execute("ROLLBACK")
            raise


def _connect_once(address: DatabaseAddress) -> PostgresConnection:
    return PostgresConnection(address, seconds=WAIT_SECONDS, target_session_attrs="read-write")
