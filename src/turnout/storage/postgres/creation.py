"""Creates and renames stores in a PostgreSQL database; `turnout.storage.postgres.store` explains their own tables."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from psycopg import sql

from turnout.errors import OtherWriterError, StoreError
from turnout.storage.address import DatabaseAddress
from turnout.storage.postgres.connection import (
    PostgresConnection,
    translate_postgres_errors,
    translated,
)
from turnout.storage.postgres.lease import LEASE_SECONDS
from turnout.storage.store import META, Connection, StoreKind, single_value

#: How long the creation waits for that of another process, in seconds.
CREATION_WAIT_SECONDS = 60.0
CONTROL = """CREATE TABLE control (
    kind TEXT NOT NULL, format INTEGER NOT NULL, commits INTEGER NOT NULL, epoch INTEGER NOT NULL, writer TEXT NOT NULL,
    expires TIMESTAMPTZ NOT NULL, timeline TEXT NOT NULL
)"""
SESSIONS = "CREATE TABLE sessions (id TEXT PRIMARY KEY, number INTEGER NOT NULL, at TIMESTAMPTZ NOT NULL)"
#: What follows the name of a store that another one has replaced.
SUFFIX = ".replaced"


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
                db.raw.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(address.schema)))
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


def set_aside(address: DatabaseAddress) -> DatabaseAddress | None:
    """Renames a store that no process may write; returns its new address, or None if there was no store."""
    aside = address.with_name(address.name + SUFFIX)
    return aside if rename(address, aside) else None


def rename(address: DatabaseAddress, new: DatabaseAddress) -> bool:
    """Renames a store; returns False if there is none.

    Raises:
        StoreError: If a process writes the store, or the new name is taken.
    """
    with (
        translate_postgres_errors(address),
        closing(PostgresConnection(address, seconds=LEASE_SECONDS)) as db,
        db.raw.transaction(),
    ):
        names = "SELECT nspname FROM pg_namespace WHERE nspname IN (?, ?)"
        schemas = {name for (name,) in db.execute(names, (address.schema, new.schema))}
        if address.schema not in schemas:
            return False
        if new.schema in schemas:
            raise StoreError(f"{new} exists already, from an earlier restoration: copy it elsewhere, or drop it")
        holder = db.execute("SELECT writer FROM control WHERE expires > clock_timestamp() FOR UPDATE").fetchone()
        if holder is not None:
            raise OtherWriterError(f"{address} is being written by {holder[0]}: wait until it ends")
        query = "ALTER SCHEMA {} RENAME TO {}"
        db.raw.execute(sql.SQL(query).format(sql.Identifier(address.schema), sql.Identifier(new.schema)))
    return True
