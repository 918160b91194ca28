"""turnout works where modules, functions and files of Linux are missing (hidden.py): checked without those systems."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from killing import environment
from turnout.dashboard.views.system import peak_memory
from turnout.storage.files import system
from turnout.storage.files.database import RUNS, connect
from turnout.storage.files.lock import Acknowledged, WriterLock, acknowledge, lock_path, read_acknowledged
from turnout.storage.opening import create_store
from turnout.web.serving import listen

HERE = Path(__file__).parent
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(sys.platform != "linux", reason="other systems are imitated on Linux only"),
]


def command(platform: str, program: str, *arguments: object) -> list[str]:
    paths = [str(HERE / "hidden.py"), platform, str(HERE / program), *map(str, arguments)]
    return [sys.executable, "-X", "warn_default_encoding", *paths]


def run_on(platform: str, program: str, *arguments: object, also: int | None = None) -> str:
    """Returns what a program prints on an imitated system.

    `also` is a process whose open files cannot be renamed either, if the system is Windows.
    """
    completed = subprocess.run(
        command(platform, program, *arguments),
        env={**environment(), "PYTHONIOENCODING": "cp1252", "ALSO": str(also or "")},
        capture_output=True,
        text=True,
        encoding="cp1252",
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


@contextmanager
def holding(platform: str, fleet: Path) -> Iterator[subprocess.Popen[str]]:
    """Runs a process that has opened a fleet to write."""
    with subprocess.Popen(
        command(platform, "hold.py", fleet), env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process
        process.stdin.close()


@pytest.mark.parametrize("platform", ["macos", "windows"])
def test_every_part_works(platform: str, folder: Path) -> None:
    printed = run_on(platform, "tour.py", folder)
    assert printed.startswith("every part works\n")
    if platform == "macos":
        assert int(printed.splitlines()[1].split()[0]) > 5
    # Where a part of a file cannot be locked in addition to the whole, another file is locked.
    assert (folder / "fleet.turnout.lock-line").exists()


def test_windows_refuses_a_second_process_and_says_which_one_to_end_before_a_takeover(folder: Path) -> None:
    fleet = folder / "fleet.turnout"
    with holding("windows", fleet) as first:
        assert f"is being written by process {first.pid} on host" in run_on("windows", "hold.py", fleet)
        refusal = run_on("windows", "hold.py", fleet, "takeover", also=first.pid)
        assert f"cannot be replaced while process {first.pid} on host" in refusal
        assert refusal.endswith("has it open: end that process first\n")
        assert not list(folder.glob("*.new"))
        first.kill()
        first.wait()
        assert run_on("windows", "hold.py", fleet, "takeover") == "open\n"


def test_macos_refuses_a_second_process_and_takes_over(folder: Path) -> None:
    fleet = folder / "fleet.turnout"
    with holding("macos", fleet) as first:
        assert f"is being written by process {first.pid} on host" in run_on("macos", "hold.py", fleet)
        assert run_on("macos", "hold.py", fleet, "takeover").startswith("open\n")


def test_a_system_without_locks_refuses_to_write_and_says_so(folder: Path) -> None:
    refusal = run_on("bare", "hold.py", folder / "fleet.turnout")
    assert "neither fcntl nor msvcrt" in refusal
    assert "read_only=True" in refusal


def test_every_connection_that_writes_flushes_the_cache_of_the_disk_too(folder: Path) -> None:
    """SQLite needs these settings on macOS, and ignores them elsewhere."""
    path = folder / "runs.turnout"
    create_store(path, RUNS)
    with closing(connect(path, RUNS, "write")) as db:
        pragmas = ("synchronous", "fullfsync", "checkpoint_fullfsync")
        assert [db.execute(f"PRAGMA {name}").fetchone()[0] for name in pragmas] == [2, 1, 1]


def test_a_file_system_without_full_flushes_is_flushed_by_fsync(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[int] = []
    monkeypatch.setattr(system.fcntl, "F_FULLFSYNC", -1, raising=False)  # an unknown command is an error
    monkeypatch.setattr(os, "fsync", flushed.append)
    with (folder / "file").open("wb") as file:
        system.sync_file(file.fileno())
        assert flushed == [file.fileno()]


@pytest.mark.parametrize("can_lock_parts", [True, False])
def test_the_newest_commit_is_stated_while_the_writer_holds_the_lock(
    folder: Path, monkeypatch: pytest.MonkeyPatch, can_lock_parts: bool
) -> None:
    """Without waiting: a lock that the writer excludes would be tried again and again."""
    monkeypatch.setattr(system, "CAN_LOCK_PARTS", can_lock_parts)
    monkeypatch.setattr("turnout.storage.files.lock.time.sleep", lambda _: pytest.fail("waits for a lock"))
    path = folder / "runs.turnout"
    lock = WriterLock(path)
    for commits in (3, 5, 4):
        acknowledge(path, Acknowledged("0123456789abcdef", commits))
    lock.release()
    assert read_acknowledged(path) == Acknowledged("0123456789abcdef", 5)
    assert lock_path(path).with_name("runs.turnout.lock-line").exists() != can_lock_parts


def test_commands_print_what_they_can_in_an_encoding_without_some_characters(folder: Path) -> None:
    completed = subprocess.run(
        [sys.executable, "-m", "turnout", "check", "--help"],
        env={**environment(), "PYTHONIOENCODING": "ascii", "COLUMNS": "100"},
        capture_output=True,
        check=False,
        cwd=folder,
    )
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.isascii()
    assert b"Usage: turnout check" in completed.stdout


def test_figures_that_windows_does_not_have_are_unknown_or_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    used = peak_memory()
    assert used is not None
    assert used > 10_000_000
    monkeypatch.setitem(sys.modules, "resource", None)
    assert peak_memory() is None


@pytest.mark.parametrize("platform", ["linux", "win32"])
def test_a_port_is_reused_only_where_servers_cannot_share_it(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    with listen("127.0.0.1", [0]) as listener:
        assert bool(listener.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)) == (platform == "linux")
