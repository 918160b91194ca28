"""Gives a store in a database another name."""

from __future__ import annotations

from contextlib import closing

from psycopg import sql

from turnout.errors import OtherWriterError, StoreError
from turnout.storage.address import DatabaseAddress
from turnout.storage.postgres.connection import PostgresConnection, identifier, translate_postgres_errors
from turnout.storage.postgres.lease import LEASE_SECONDS

#: What follows the name of a store that another one has replaced.
SUFFIX = ".replaced"


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
        db.raw.execute(sql.SQL(query).format(identifier(address.schema), identifier(new.schema)))
    return True
