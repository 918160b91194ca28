"""Keeps the lease of a writer while it has nothing to write."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import datetime
from typing import Any, NamedTuple

import psycopg

from turnout.errors import StoreError
from turnout.log import get_log
from turnout.storage.address import DatabaseAddress
from turnout.storage.postgres.connection import LEASE_SECONDS, PostgresConnection

log = get_log("turnout.live")
#: The number of the database's history, which changes when a replica takes its place.
TIMELINE = "substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)"
#: Reads the lease.
LEASE = (
    "SELECT writer, expires, GREATEST(EXTRACT(EPOCH FROM expires - clock_timestamp()), 0)::float, timeline, "
    f"CASE WHEN pg_is_in_recovery() THEN timeline ELSE {TIMELINE} END FROM control"
)
#: How often a lease is renewed while it lasts; and after how many seconds PostgreSQL ends a
#: transaction in which nothing happens, because its process was stopped or cut off: its locks are released then.
RENEWALS, IDLE_SECONDS = 4, 6.0
#: The connection over which it is renewed; a renewal that is lost in a crash is repeated, or the lease is taken.
CONNECTION: dict[str, Any] = {
    "seconds": LEASE_SECONDS / RENEWALS,
    "settings": {"synchronous_commit": "off"},
    "target_session_attrs": "read-write",
}
#: Ends a process of the database that has locked the row of `control` and waits for its client for longer than that,
#: in the middle of a pipeline of statements: it does not count as idle.
END_SILENT = f"""SELECT pg_terminate_backend(pid) FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE transactionid = (SELECT xmax FROM control) AND granted AND wait_event_type = 'Client'
AND state_change < clock_timestamp() - make_interval(secs => {IDLE_SECONDS})"""
#: Renews the lease, in an UPDATE of the table `control`.
RENEWED = f"expires = clock_timestamp() + make_interval(secs => {LEASE_SECONDS})"


class Lease(NamedTuple):
    """The lease of a writer.

    Attributes:
        writer: The process that took it; empty after it has closed the store.
        expires: When it expires, by the clock of the database.
        seconds: How long that is from now; 0 if it has expired.
        timeline: The timeline of the database when it was taken.
        present_timeline: The present one.
    """

    writer: str
    expires: datetime
    seconds: float
    timeline: str
    present_timeline: str


class LeaseKeeper:
    """Renews the lease of a writer in a thread, over a connection of its own, until another process has taken it.

    Args:
        address: The store.
        epoch: The epoch of the writer.
        connection: Returns the connection of the writer. Its transactions are kept alive while this process computes.
    """

    def __init__(
        self, address: DatabaseAddress, epoch: int, connection: Callable[[], PostgresConnection | None]
    ) -> None:
        self._address, self._epoch, self._connection = address, epoch, connection
        #: Whether another process has taken the lease.
        self.is_replaced = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="turnout-lease", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stops renewing the lease."""
        self._stopped.set()
        self._thread.join(timeout=LEASE_SECONDS)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                with closing(PostgresConnection(self._address, **CONNECTION)) as db:
                    while self._renew(db):
                        self._keep_transaction()
                        if self._stopped.wait(LEASE_SECONDS / RENEWALS):
                            return
                self.is_replaced = True
                log.warning("%s was taken over by another process", self._address)
                return
            except (psycopg.Error, StoreError) as error:
                log.debug("the lease of %s could not be renewed: %s", self._address, error)
                self._stopped.wait(LEASE_SECONDS / RENEWALS)

    def _renew(self, db: PostgresConnection) -> bool:
        try:
            return bool(db.execute(f"UPDATE control SET {RENEWED} WHERE epoch = ?", (self._epoch,)).rowcount)
        except psycopg.errors.LockNotAvailable:  # a long transaction, during which nobody can take the lease
            db.raw.execute(END_SILENT)
            return True

    def _keep_transaction(self) -> None:
        """Executes a query in an open transaction in which none is executed now."""
        db = self._connection()
        if db is not None and db.in_transaction and not db.raw.lock.locked():
            with suppress(psycopg.Error):  # the transaction has failed, and its own thread will notice
                db.raw.execute("SELECT 1")
