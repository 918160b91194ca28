"""Creates stores in a PostgreSQL database; `turnout.storage.postgres.store` explains their own tables."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from psycopg import sql

from turnout.storage.address import DatabaseAddress
from turnout.storage.postgres.connection import (
    PostgresConnection,
    identifier,
    translate_postgres_errors,
    translated,
)
from turnout.storage.store import META, Connection, StoreKind, single_value

#: How long the creation waits for that of another process, in seconds.
CREATION_WAIT_SECONDS = 60.0
CONTROL = """CREATE TABLE control (
    kind TEXT NOT NULL, format INTEGER NOT NULL, commits INTEGER NOT NULL, epoch INTEGER NOT NULL, writer TEXT NOT NULL,
    expires TIMESTAMPTZ NOT NULL, timeline TEXT NOT NULL
)"""
SESSIONS = "CREATE TABLE sessions (id TEXT PRIMARY KEY, number INTEGER NOT NULL, at TIMESTAMPTZ NOT NULL)"


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
                # Epochs begin beyond those of an earlier store of this name, whose writer may still wake up.
                epoch = "(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::bigint"
                values = (kind.name, kind.format)
                db.execute(f"INSERT INTO control VALUES (?, ?, 0, {epoch}, '', 'epoch', '')", values)
                fill(db)
            db.execute("COMMIT")
        except BaseException:
            if db.owns(token):
                db.execute("ROLLBACK")
            raise


def _connect_once(address: DatabaseAddress) -> PostgresConnection:
    return PostgresConnection(address, seconds=CREATION_WAIT_SECONDS, target_session_attrs="read-write")
