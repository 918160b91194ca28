"""Opens and creates stores, wherever they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Unpack

from turnout.errors import StoreError
from turnout.storage.files.database import create, translate_sqlite_errors
from turnout.storage.files.lock import WriterLock
from turnout.storage.files.storefile import StoreFile
from turnout.storage.store import Access, Connection, Location, Modes, Store, StoreKind


def open_store(
    location: Location, kind: StoreKind, access: Access, *, thoroughly: bool = False, **modes: Unpack[Modes]
) -> Store[Any]:
    """Opens a store.

    Args:
        location: Where it is.
        kind: The kind of store to accept.
        access: "read"; "report": to write beside the only writer; "write": as the only writer.
        thoroughly: Whether the indexes of a file are compared with their tables too.
        modes: How it is opened.
    """
    if isinstance(location, Path):
        if modes.get("standby"):
            raise StoreError(
                f"{location} is a file, which only one machine can open: use a database (postgresql://…) for a standby",
                argument="standby",
            )
        older, takeover = modes.get("accept_older", False), modes.get("takeover", False)
        return StoreFile(location, kind, access, takeover=takeover, accept_older=older, thoroughly=thoroughly)
    from turnout.storage.postgres.store import PostgresStore

    return PostgresStore(location, kind, access, **modes)


def create_store(location: Location, kind: StoreKind, fill: Callable[[Connection], None] = lambda _: None) -> None:
    """Creates a store atomically, and calls `fill` in its first transaction; one that exists is left as it is."""
    if isinstance(location, Path):
        location = location.resolve()
        if not location.parent.is_dir():
            raise StoreError(f"there is no folder {location.parent}: create it, or choose another path")
        with translate_sqlite_errors(location):
            lock = WriterLock(location)
            try:
                if not location.exists():
                    create(location, kind, fill)
            finally:
                lock.release()
        return
    from turnout.storage.postgres.connection import create_schema

    create_schema(location, kind, fill)


def store_exists(location: Location) -> bool:
    """Returns whether there is a store, of whatever kind."""
    if isinstance(location, Path):
        return location.exists()
    from turnout.storage.postgres.connection import schema_exists

    return schema_exists(location)
