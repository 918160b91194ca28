"""Temporary PostgreSQL clusters, for benchmarks and tests."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

from turnout.storage.address import DatabaseAddress

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

    def __init__(self, folder: Path, settings: Mapping[str, str] = MappingProxyType({})) -> None:
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

    def kill(self) -> None:
        """Kills all processes of the server, as a power failure does."""
        assert self._process is not None
        number = self._process.pid
        children = [
            Path("/proc", child) for child in Path(f"/proc/{number}/task/{number}/children").read_text().split()
        ]
        for process in (Path("/proc", str(number)), *children):
            with suppress(ProcessLookupError):
                os.kill(int(process.name), signal.SIGKILL)
        self._process.wait()
        self._process = None
        while any(map(_runs, children)):  # they hold the shared memory
            time.sleep(0.01)

    def copy(self, primary: Cluster) -> None:
        """Makes the data, of a server that does not run, those of a replica of another one, which runs."""
        shutil.rmtree(self.data)
        backup = program("pg_basebackup")
        assert backup is not None
        options = [f"--pgdata={self.data}", f"--host={primary.folder}", "--username=turnout"]
        options += ["--write-recovery-conf", "--checkpoint=fast", "--no-sync"]
        subprocess.run([*unprivileged(), backup, *options], check=True, cwd="/")

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


def _runs(process: Path) -> bool:
    """Returns whether a process, as /proc has it, has not ended."""
    try:
        return process.joinpath("stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def is_installed() -> bool:
    """Returns whether a cluster can be started here."""
    return program("initdb") is not None and shutil.which("setpriv") is not None


@contextmanager
def running_cluster(settings: Mapping[str, str], parent: Path | None = None) -> Iterator[Cluster]:
    """Runs a new cluster in a folder, by default in memory, which is deleted at the end."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=parent or (memory if os.access(memory, os.W_OK) else None)) as name:
        cluster = Cluster(Path(name), settings)
        cluster.create()
        cluster.start()
        try:
            yield cluster
        finally:
            cluster.stop()


if __name__ == "__main__":  # a cluster to try things with: python -m benchmarks.cluster
    with running_cluster(FAST if "fast" in sys.argv else {}) as running:
        print(running.conninfo, flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
