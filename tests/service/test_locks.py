"""A service with its page keeps SQLite's locks on the files of its fleets, so that no other process deletes a log."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from service.forked import Forker
from service.served import ROUNDS
from service.simulated_devices import RestartedService
from turnout.client import FleetClient
from turnout.live import Reporter, Scheduler
from turnout.service.access.tokens import FleetTokens

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/locks")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A fleet with an open round of the clients a and b."""
    path = tmp_path / "fleet.turnout"
    with Scheduler.open(path, **ROUNDS) as scheduler:
        scheduler.choose(["a", "b"])
    return path


@pytest.fixture
def service(path: Path, forker: Forker) -> Iterator[RestartedService]:
    service = RestartedService(forker, path)
    yield service
    service.kill()


def read_all(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT COUNT(*) FROM turns").fetchone() == (2,)


def report(path: Path) -> None:
    with Reporter(path) as reporter:
        assert reporter.report("a", 1.5)


def locks(path: Path, process: int) -> list[str]:
    """Returns the POSIX locks that a process holds on a file."""
    inode, lines = str(path.stat().st_ino), Path("/proc/locks").read_text(encoding="ascii").splitlines()
    fields = [line.split() for line in lines]
    return [
        field[3]
        for field in fields
        if field[1] == "POSIX" and field[4] == str(process) and field[5].rpartition(":")[2] == inode
    ]


@pytest.mark.parametrize("use", [read_all, report])
def test_nothing_acknowledged_is_lost_when_another_process_closes_the_file_and_the_service_is_killed(
    path: Path, service: RestartedService, use: Callable[[Path], None]
) -> None:
    with FleetTokens(path) as file:
        (operator,) = file.create("operator")
    service.start()
    assert locks(path, service.process) == ["READ"]
    address = f"http://127.0.0.1:{service.port}/v1/fleets/fleet"
    with FleetClient(address, token=operator.text, attempts=1) as client:
        assert client.report("b", 2.5)
        use(path)  # the last process that closes a file deletes its log
        assert path.with_name("fleet.turnout-wal").stat().st_size > 0
        assert client.close_round()["round"] == 1
        assert client.register(["c", "d"]) == 2
        assert client.status()["clients"] == 4
    assert locks(path, service.process) == ["READ"]
    service.kill()
    with Scheduler.open(path) as scheduler:
        assert (scheduler.round, sorted(scheduler.clients)) == (1, ["a", "b", "c", "d"])
        assert {turn.id: turn.seconds for turn in scheduler.history(round=1)}["b"] == 2.5
