"""A temporary PostgreSQL cluster, and stores of tests that are schemas of it instead of files.

With `pytest --store postgres`, the path of a fleet stands for a schema of a temporary cluster: the tests of the journal
and of the scheduler then run over PostgreSQL. The mark `files` excludes those about files themselves.
"""

from __future__ import annotations

import hashlib
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from turnout.storage.address import DatabaseAddress
from turnout.storage.files.database import StoreConnection
from turnout.storage.store import Connection, Location, Rows

#: The variable with the folder of the cluster that this process, and those that it starts, use in place of files.
VARIABLE = "TURNOUT_TEST_CLUSTER"
SOCKET = ".s.PGSQL.5432"
FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
SETTINGS = {
    "listen_addresses": "",
    "shared_buffers": "64MB",
    "max_connections": "60",
    "autovacuum": "off",
    "jit": "off",
    "log_min_messages": "fatal",
}


def program(name: str) -> str | None:
    """Returns the path of a program of PostgreSQL; None if it is not installed."""
    folders = [str(folder) for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(folders))


def unprivileged() -> list[str]:
    """Returns the beginning of a command that runs as another user than root, and ends with this process."""
    command = ["setpriv", "--pdeathsig", "INT"]
    return command if os.geteuid() else [*command, "--reuid=postgres", "--regid=postgres", "--clear-groups", "--"]


class Cluster:
    """A cluster in a folder of its own, which is reached by a socket in that folder.

    Args:
        folder: The folder.
        settings: Settings that differ from `SETTINGS`.
    """

    def __init__(self, folder: Path, **settings: str) -> None:
        self.folder, self._settings = folder, {**SETTINGS, **settings}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def data(self) -> Path:
        """The folder of the database."""
        return self.folder / "data"

    def create(self) -> None:
        """Creates the database."""
        if os.geteuid() == 0:
            shutil.chown(self.folder, "postgres", "postgres")
        options = ["--username=turnout", "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C.UTF-8"]
        initdb = program("initdb")
        assert initdb is not None
        subprocess.run(
            [*unprivileged(), initdb, f"--pgdata={self.data}", *options], check=True, stdout=subprocess.DEVNULL, cwd="/"
        )

    def start(self) -> None:
        """Starts the server, and waits until it answers."""
        server = program("postgres")
        assert server is not None
        options = [f"--{name}={value}" for name, value in self._settings.items()]
        command = [*unprivileged(), server, "-D", str(self.data), "-k", str(self.folder), *options]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/")
        while not self.answers():
            assert self._process.poll() is None, (self.folder / "log").read_text()
            time.sleep(0.02)

    def answers(self) -> bool:
        """Returns whether the server accepts connections."""
        import psycopg

        try:
            psycopg.connect(self.conninfo).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stops the server: SIGINT ends all connections, SIGQUIT imitates a crash."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()
            self._process = None

    @property
    def conninfo(self) -> str:
        """The address of the database."""
        return f"postgresql:///postgres?host={self.folder}&user=turnout"

    def address(self, name: str) -> DatabaseAddress:
        """Returns the address of the fleet with this name."""
        return DatabaseAddress.parse(f"{self.conninfo}&fleet={name}")

    def execute(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Executes a query as the owner of the database."""
        import psycopg

        with psycopg.connect(self.conninfo, autocommit=True) as db:
            cursor = db.execute(query, values or None)
            return cursor.fetchall() if cursor.description else []


@contextmanager
def running_cluster(**settings: str) -> Iterator[Cluster]:
    """Runs a new cluster, which is deleted at the end; skips the test where PostgreSQL or psycopg is missing."""
    pytest.importorskip("psycopg")
    if program("initdb") is None or shutil.which("setpriv") is None:
        pytest.skip("PostgreSQL is not installed")
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as name:
        cluster = Cluster(Path(name), **settings)
        cluster.create()
        cluster.start()
        try:
            yield cluster
        finally:
            cluster.stop()


class Proxy:
    """Forwards connections to a cluster, and cuts one at the query that a rule names.

    Attributes:
        rule: Returns what happens to a message of a client: "before" loses it, "after" loses the answer to it; None
            forwards both.
    """

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.folder, self._target = folder, str(cluster.folder / SOCKET)
        self.rule: Callable[[bytes], str | None] = lambda _: None
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / SOCKET))
        self._listener.listen()
        self._end, self._ended = socket.socketpair()  # the second can be read once this is closed
        self._threads: list[threading.Thread] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def address(self, name: str) -> DatabaseAddress:
        """Returns the address of the fleet with this name."""
        return DatabaseAddress.parse(f"postgresql:///postgres?host={self.folder}&user=turnout&fleet={name}")

    def cut_at(self, text: bytes, when: str, times: int = 1) -> None:
        """Cuts the next connections in which a message contains a text, "before" or "after" the server has got it."""
        left = [when] * times
        self.rule = lambda message: left.pop() if left and text in message else None

    def close(self) -> None:
        """Accepts no more connections, and ends those that are open."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._end.send(b"!")
        for thread in self._threads:
            thread.join()
        self._end.close(), self._ended.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, client: socket.socket) -> None:
        """Forwards a connection until one of its ends is closed, or the rule cuts it."""
        with client, socket.socket(socket.AF_UNIX) as server, suppress(OSError):  # also if the server does not run
            server.connect(self._target)
            is_lost = False
            while True:
                for source in select.select([client, server, self._ended], [], [])[0]:
                    if source is self._ended or not (message := source.recv(65_536)) or (source is server and is_lost):
                        return
                    when = self.rule(message) if source is client else None
                    if when == "before":
                        return
                    is_lost |= when == "after"
                    (server if source is client else client).sendall(message)


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
    from turnout.live.audit.doctor import doctor
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


def _schema_connection(address: DatabaseAddress) -> Connection:
    from turnout.storage.postgres.connection import PostgresConnection

    class SchemaConnection(PostgresConnection):
        """Understands bytes as tests write them for SQLite."""

        def execute(self, query: str, values: Sequence[Any] = (), /) -> Rows:
            return super().execute(re.sub(r"\bx'([0-9a-f]*)'", r"'\\x\1'::bytea", query), values)

        def executemany(self, query: str, rows: Iterable[Sequence[Any]], /) -> Rows:
            return super().executemany(query, list(rows))

    return SchemaConnection(address, seconds=60.0)


if __name__ == "__main__":  # a cluster to try things with: python tests/postgres.py
    with running_cluster(**(FAST if "fast" in sys.argv else {})) as running:
        print(running.conninfo, flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
