"""A store in a schema of a PostgreSQL database, with a lease that fences its writer.

The table `control` has one row: the format, the number of commits, and the lease of the writer. Every transaction that
writes changes this row first, so that one process writes at a time. The writer renews its lease in the same statement,
under the condition that its epoch is the present one: a process that another one has replaced can no longer write,
whenever it wakes up. Only the clock of the database decides whether a lease has expired.

Each process that writes has a row in `sessions` with the number of its newest transaction. If the connection is lost
while a transaction is committed, that row says whether it was. If it has a smaller number than this process was told,
the database has lost commits, for example because an asynchronous replica has taken the place of the primary.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from contextlib import AbstractContextManager, suppress
from typing import Any, Literal

import psycopg
from psycopg import sql

from turnout.closing import close_on_error
from turnout.errors import InterruptedCallError, OtherWriterError, StoreError
from turnout.log import get_log
from turnout.storage.address import DatabaseAddress
from turnout.storage.files.lock import Writer
from turnout.storage.postgres import lease as leasing
from turnout.storage.postgres.connection import LEASE_SECONDS, PostgresConnection, is_lost, translate_postgres_errors
from turnout.storage.store import Access, Store, StoreKind, roll_back, single_value

log = get_log("turnout.live")
#: How long a transaction waits for other processes and for the database, in seconds; a takeover; a vacuum.
WAIT_SECONDS, TAKEOVER_WAIT_SECONDS, VACUUM_WAIT_SECONDS = 60.0, 5.0, 1.0
#: The first and the longest pause between two attempts to connect, and that of a standby, in seconds.
PAUSE, MAX_PAUSE, STANDBY_PAUSE = 0.05, 1.0, 0.25
KEPT_DAYS = 7  # after which the sessions of processes that were killed are deleted
LOCK = "BEGIN; SELECT commits FROM control FOR UPDATE"
#: Begins a transaction that writes, and counts its commit. One statement, because each costs a round trip.
BEGIN = """BEGIN;
WITH own AS (INSERT INTO sessions VALUES ('{session}', {number}, clock_timestamp())
ON CONFLICT (id) DO UPDATE SET number = excluded.number, at = excluded.at)
UPDATE control SET commits = commits + 1{lease} RETURNING commits"""
TAKE = f"""UPDATE control SET epoch = epoch + 1, writer = ?, timeline = {leasing.TIMELINE}, {leasing.RENEWED}
WHERE ? OR expires < clock_timestamp() RETURNING epoch"""


class PostgresStore(Store[PostgresConnection]):
    """An open store in a database.

    Args:
        address: The store, which must exist.
        kind: The kind of store to accept.
        access: "read"; "report": to write beside the only writer; "write": as the only writer.
        takeover: Whether to write although the lease of another process has not expired.
        accept_older: Whether a store that has lost commits, as far as this process knows, is used in its older state.
        standby: Whether to wait until the lease of the writer has expired.
    """

    def __init__(
        self,
        address: DatabaseAddress,
        kind: StoreKind,
        access: Access,
        *,
        takeover: bool = False,
        accept_older: bool = False,
        standby: bool = False,
    ) -> None:
        super().__init__(address, access)
        self.address, self._kind = address, kind
        self._wait = WAIT_SECONDS
        self._session = secrets.token_hex(8)
        self._number = self._own = 0  # of the newest own transaction, and of the newest that was acknowledged
        self._seen = self._counted = 0  # the number of commits that were acknowledged, and with the open transaction
        self._began = 0.0  # when that one began
        self._accepts_older, self._epoch = accept_older, 0
        self._keeper: leasing.LeaseKeeper | None = None
        with close_on_error(self), self.translating():
            self._connection = self._connect()
            if access == "write":
                self._take_lease(takeover=takeover, standby=standby)
            self._check_format(self.connection)

    def translating(self) -> AbstractContextManager[None]:
        """Opens a block in which errors of PostgreSQL become StoreErrors that state what to do."""
        return translate_postgres_errors(self.address)

    # Connections

    def _connect(self) -> PostgresConnection:
        writing = {"target_session_attrs": "read-write", "idle_seconds": leasing.IDLE_SECONDS}
        options: dict[str, Any] = {} if self.access == "read" else writing
        db = PostgresConnection(self.address, seconds=self._wait, **options)
        if self._seen:
            with close_on_error(db):
                self._check_commits(int(single_value(db, "SELECT commits FROM control")), self._stored_number(db))
        return db

    def _usable_connection(self) -> PostgresConnection:
        """Returns the connection, or a new one if it was lost."""
        db = self.connection
        if not db.is_usable:
            db = self._connection = self._connect()
        return db

    def _begin(self, access: Literal["read", "lock", "write"]) -> tuple[PostgresConnection, object]:
        until, pause = time.monotonic() + self._wait, PAUSE
        while True:
            db = self.connection
            try:
                db = self._usable_connection()
                if access == "read":
                    return db, db.begin("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                return db, self._begin_to_write(db) if access == "write" else db.begin(LOCK)
            except psycopg.Error as error:
                if not is_lost(error) or time.monotonic() > until:
                    raise
                db.close()
                time.sleep(pause)
                pause = min(2 * pause, MAX_PAUSE)

    def _begin_to_write(self, db: PostgresConnection) -> object:
        roll_back(db)  # what an interrupted call has left open
        self._number += 1
        lease = f", {leasing.RENEWED} WHERE epoch = {self._epoch}" if self._epoch else ""
        try:
            token = db.begin(BEGIN.format(session=self._session, number=self._number, lease=lease))
            row = db.answer.fetchone()
            if row is None:
                raise self._replaced(db)
            self._check_commits(int(row[0]) - 1)
        except BaseException:
            roll_back(db)
            raise
        self._counted, self._began = int(row[0]), time.monotonic()
        return token

    def _commit(self, db: PostgresConnection) -> None:
        number, counted = self._number, self._counted
        has_lasted = self._epoch and time.monotonic() - self._began > LEASE_SECONDS / leasing.RENEWALS
        renew = f"UPDATE control SET {leasing.RENEWED}; " if has_lasted else ""
        try:
            db.raw.execute(f"{renew}COMMIT")
        except psycopg.Error as error:
            if not is_lost(error) or not self._was_committed(number):
                raise
        self._own, self._seen = number, max(self._seen, counted)

    def _lost_group(self) -> StoreError:
        return InterruptedCallError(str(super()._lost_group()))

    def _was_committed(self, number: int) -> bool:
        """Returns whether the own commit with this number is stored, after its connection was lost."""
        self.connection.close()
        try:
            db, token = self._begin("lock")  # the lost connection may still be committing, and has locked the row then
            try:
                is_stored = self._stored_number(db) == number
                db.execute("COMMIT")  # which waits for a synchronous replica, also for the lost commit
                return is_stored
            finally:
                roll_back(db, token)
        except psycopg.Error as error:
            raise StoreError(
                f"{self.address} cannot be reached ({' '.join(str(error).split())}), and it is unknown whether this "
                "call was stored: check it when the database runs again"
            ) from error

    def _stored_number(self, db: PostgresConnection) -> int:
        return int(single_value(db, "SELECT COALESCE(MAX(number), 0) FROM sessions WHERE id = ?", self._session))

    def _check_commits(self, commits: int, own: int | None = None) -> None:
        """Raises StoreError if the database has lost commits of which this process knows.

        Args:
            commits: The number of commits that the database has.
            own: The number of the newest of this process; None if it was not read.
        """
        if commits >= self._seen and (own is None or own >= self._own):
            return
        problem = (
            f"{self.address} has lost {max(self._seen - commits, 1):,} of {self._seen:,} commits that were "
            "acknowledged: perhaps a replica without them has taken the place of the database"
        )
        if not self._accepts_older:
            raise StoreError(
                f"{problem}. Restore the database; accept_older=True continues from the older state when it is opened "
                "again",
                argument="accept_older",
            )
        log.warning("%s. The older state was accepted", problem)
        self._own, self._seen = self._own if own is None else own, commits

    def _check_format(self, db: PostgresConnection) -> None:
        kind, version = db.execute("SELECT kind, format FROM control").fetchone()
        if kind != self._kind.name:
            raise StoreError(f"{self.address} is a {kind}, not a {self._kind.name}: choose another name")
        if version != self._kind.format:
            raise StoreError(
                f"{self.address} has {self._kind.name} format {version}, but this version of turnout reads format "
                f"{self._kind.format}: install a newer version of turnout"
            )

    # The lease

    def _take_lease(self, *, takeover: bool, standby: bool) -> None:
        """Makes this process the writer, after the lease of one that was killed has expired."""
        self.wait_at_most(TAKEOVER_WAIT_SECONDS if takeover else LEASE_SECONDS)
        if not takeover:  # so that it soon sees whether the holder of the lock still does anything
            self.connection.wait_at_most(LEASE_SECONDS / leasing.RENEWALS)
        first, until = None, time.monotonic() + LEASE_SECONDS + leasing.IDLE_SECONDS
        while True:
            try:
                lease = self._read_lease()
                if (takeover or not lease.seconds) and self._try_to_take(takeover):
                    break
                if first is None:
                    first = lease
                    log.info("%s is being written by %s: this process waits", self.address, lease.writer)
                if not standby and (lease.expires != first.expires or time.monotonic() > until):
                    raise OtherWriterError(
                        f"{self.address} is being written by {lease.writer}, which renews its lease: wait until it "
                        "ends, open it as a standby, or open it to read it"
                    )
            except InterruptedCallError as error:
                if not standby:
                    raise
                log.warning("%s", error)
            time.sleep(STANDBY_PAUSE)
        if lease.timeline not in ("", lease.present_timeline):
            log.warning(
                "a replica has taken the place of the database of %s since it was opened the last time: if it was "
                "asynchronous, it may lack the newest commits",
                self.address,
            )
        self.wait_at_most(WAIT_SECONDS)
        self._keeper = leasing.LeaseKeeper(self.address, self._epoch, lambda: self._connection)
        log.event(logging.INFO, "lease", fleet=self.address.name, epoch=self._epoch, writer=str(Writer.current()))

    def _try_to_take(self, takeover: bool) -> bool:
        try:
            with self.writing() as db:
                row = db.execute(TAKE, (str(Writer.current()), takeover)).fetchone()
                if row is None:
                    raise _HeldError
                db.execute(f"DELETE FROM sessions WHERE at < clock_timestamp() - interval '{KEPT_DAYS} days'")
        except _HeldError:
            return False
        except StoreError as error:
            if takeover or not isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
                raise
            with self.reading() as db:
                db.execute(leasing.END_SILENT)
            return False
        self._epoch = int(row[0])
        return True

    def _read_lease(self) -> leasing.Lease:
        with self.reading() as db:
            return leasing.Lease(*db.execute(leasing.LEASE).fetchone())

    @property
    def writer(self) -> str | None:
        """The process that writes the store now; None if there is none."""
        lease = self._read_lease()
        return lease.writer if lease.seconds else None

    def check_writer(self) -> None:
        """Raises OtherWriterError if another process has taken the lease."""
        with self.reading() as db:
            if self._epoch and int(single_value(db, "SELECT epoch FROM control")) != self._epoch:
                raise self._replaced(db)

    def _replaced(self, db: PostgresConnection) -> OtherWriterError:
        (writer,) = db.execute("SELECT writer FROM control").fetchone()
        return OtherWriterError(
            f"{self.address} was taken over by {writer or 'another process'}: this scheduler can no longer write, so "
            "stop its process"
        )

    # What a store tells about itself

    @property
    def is_in_place(self) -> bool:
        """Whether no other process is known to have taken the lease."""
        return self._keeper is None or not self._keeper.is_replaced

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

    log_bytes = 0

    def wait_at_most(self, seconds: float) -> None:
        """Sets how long a transaction waits for other processes and for the database."""
        self._wait = seconds
        with self.translating():
            self._usable_connection().wait_at_most(seconds)

    def vacuum(self) -> bool:
        """Rewrites all tables without unused space; returns False if a process that reads prevents it for now.

        Each table can be used by nobody meanwhile: so it is not waited for long.
        """
        with self.translating():
            self._require_writable()
            db = self._usable_connection()
            tables = "SELECT tablename FROM pg_tables WHERE schemaname = ?"
            db.wait_at_most(VACUUM_WAIT_SECONDS)
            try:
                for (table,) in db.execute(tables, (self.address.schema,)).fetchall():
                    db.raw.execute(sql.SQL("VACUUM (FULL) {}").format(sql.Identifier(table)))
            except psycopg.errors.LockNotAvailable:
                log.warning("%s is being read, and could not be rewritten", self.address)
                return False
            finally:
                if db.is_usable:
                    db.wait_at_most(self._wait)
        return True

    def checkpoint(self) -> None:
        """Does nothing: the log is that of the whole database."""

    def close(self) -> None:
        """Ends the lease and closes the connection; a second call has no effect."""
        db, self._connection = self._connection, None
        if os.getpid() != self._process:
            return  # both belong to the parent
        if self._keeper is not None:
            self._keeper.stop()
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
