"""A temporary PostgreSQL cluster, and stores of tests that are schemas of it instead of files.

With `pytest --store postgres`, the path of a fleet stands for a schema of a temporary cluster: the tests of the journal
and of the scheduler then run over PostgreSQL. The mark `files` excludes those about files themselves.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks import cluster
from benchmarks.cluster import FAST, Cluster
from benchmarks.proxy import Proxy
from turnout.storage.address import DatabaseAddress
from turnout.storage.files.database import StoreConnection
from turnout.storage.store import Connection, Location, Rows

#: The variable with the folder of the cluster that this process, and those that it starts, use in place of files.
VARIABLE = "TURNOUT_TEST_CLUSTER"
#: What was committed must be found after a crash of the server, but not after one of the machine.
CRASHING = {"fsync": "off"}
__all__ = ["CRASHING", "FAST", "VARIABLE", "Cluster", "Proxy", "running_cluster", "running_replica"]


@contextmanager
def running_cluster(settings: Mapping[str, str]) -> Iterator[Cluster]:
    """Runs a new cluster, which is deleted at the end; skips the test where PostgreSQL or psycopg is missing."""
    pytest.importorskip("psycopg")
    if not cluster.is_installed():
        pytest.skip("PostgreSQL is not installed")
    with cluster.running_cluster(settings) as running:
        yield running


@contextmanager
def running_replica(*, synchronous: bool) -> Iterator[tuple[Cluster, Cluster]]:
    """Runs a cluster and its replica; a commit waits for one that is synchronous, also after they change places."""
    with running_cluster(CRASHING) as primary, running_cluster(CRASHING) as replica:
        replica.stop()
        replica.copy(primary)
        replica.start()
        for each in (primary, replica) if synchronous else ():
            each.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            each.execute("SELECT pg_reload_conf()")
        yield primary, replica


# Schemas in place of files


def stands_for(location: Location) -> Location:
    """Returns the schema that a path stands for, if this process uses a cluster in place of files."""
    folder = os.environ.get(VARIABLE)
    if folder is None or isinstance(location, DatabaseAddress):
        return location
    path = location.resolve()
    name = re.sub(r"\W", "-", path.stem, flags=re.ASCII)[:20].strip("-") or "fleet"
    return Cluster(Path(folder)).address(f"{name}-{hashlib.sha256(bytes(path)).hexdigest()[:16]}")


def use_schemas(patch: pytest.MonkeyPatch) -> None:
    """Makes everything that opens a fleet use the schema for which its path stands."""
    from turnout.live.audit import doctor
    from turnout.live.journal import journal
    from turnout.live.serving import session
    from turnout.storage import opening

    def create(location: Location, *arguments: Any) -> None:
        opening.create_store(stands_for(location), *arguments)
        if isinstance(location, Path):
            location.touch()  # tests look whether there is a file

    def mapped(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda location, *arguments, **options: function(stands_for(location), *arguments, **options)

    exists = mapped(opening.store_exists)
    patch.setattr(journal, "create_store", create)
    patch.setattr(journal, "open_store", mapped(opening.open_store))
    patch.setattr(journal, "store_exists", exists)
    patch.setattr(session, "store_exists", exists)
    patch.setattr(doctor, "as_location", lambda location: stands_for(Path(location)))


def use_schemas_if_told() -> None:
    """Does so in a process that a test has started."""
    if VARIABLE in os.environ:
        use_schemas(pytest.MonkeyPatch())


@contextmanager
def tables(path: Path) -> Iterator[Connection]:
    """Opens a store to change its tables directly, whatever it is; the changes are committed at the end."""
    location = stands_for(path)
    if isinstance(location, DatabaseAddress):
        with closing(_schema_connection(location)) as db:
            yield db
        return
    import sqlite3

    with closing(sqlite3.connect(location, factory=StoreConnection)) as file, file:
        yield file


def copy_store(path: Path, copy: Path) -> Path:
    """Copies a closed store to another path, whatever it is."""
    source, target = stands_for(path), stands_for(copy)
    shutil.copy(path, copy)
    if isinstance(source, DatabaseAddress) and isinstance(target, DatabaseAddress):
        with tables(path) as db:
            db.execute(f'DROP SCHEMA IF EXISTS "{target.schema}" CASCADE')
            db.execute(f'CREATE SCHEMA "{target.schema}"')
            names = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"
            for (name,) in db.execute(names).fetchall():
                db.execute(f'CREATE TABLE "{target.schema}".{name} (LIKE {name} INCLUDING ALL)')
                db.execute(f'INSERT INTO "{target.schema}".{name} SELECT * FROM {name}')
    return copy


def is_file(path: Path) -> bool:
    """Returns whether a path is that of a file, and does not stand for a schema."""
    return stands_for(path) == path


def stored_bytes(path: Path) -> bytes:
    """Returns everything that a store has on disk, without the log of the database."""
    location = stands_for(path)
    if not isinstance(location, DatabaseAddress):
        return b"".join(file.read_bytes() for file in path.parent.glob(f"{path.name}*"))
    query = (
        "SELECT pg_relation_filepath(c.oid) FROM pg_class c LEFT JOIN pg_index i ON i.indexrelid = c.oid "
        "JOIN pg_class t ON t.oid IN (c.oid, i.indrelid) OR t.reltoastrelid IN (c.oid, i.indrelid) "
        "WHERE c.relkind IN ('r', 'i', 't') AND t.relkind = 'r' AND t.relnamespace = current_schema()::regnamespace"
    )
    with tables(path) as db:
        db.execute("CHECKPOINT")
        files = [Path(os.environ[VARIABLE]) / "data" / file for (file,) in db.execute(query).fetchall()]
    return b"".join(file.read_bytes() for file in files)


def _schema_connection(address: DatabaseAddress) -> Connection:
    from turnout.storage.postgres.connection import PostgresConnection

    class SchemaConnection(PostgresConnection):
        """Understands bytes as tests write them for SQLite."""

        def execute(self, query: str, values: Sequence[Any] = (), /) -> Rows:
            return super().execute(re.sub(r"\bx'([0-9a-f]*)'", r"'\\x\1'::bytea", query), values)

        def executemany(self, query: str, rows: Iterable[Sequence[Any]], /) -> Rows:
            return super().executemany(query, list(rows))

    return SchemaConnection(address, seconds=60.0)
