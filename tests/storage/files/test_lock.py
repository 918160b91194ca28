"""The lock file names its holder, in one line that the same module parses."""

from __future__ import annotations

import os
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from turnout.errors import StoreError
from turnout.storage.files.lock import (
    LOCKS,
    Acknowledged,
    Writer,
    WriterLock,
    acknowledge,
    lock_line,
    lock_path,
    read_acknowledged,
    writing_processes,
)
from waiting import wait_until


@given(some.integers(0, 2**31), some.text(some.characters(categories=["L", "N"], include_characters="-. "), min_size=1))
def test_a_line_that_was_written_is_parsed_again(process: int, host: str) -> None:
    writer = Writer(process, host.strip() or "host")
    assert Writer.parse(f"{writer}\n") == writer


@pytest.mark.parametrize("line", ["", "process x on host y", "process 1", "somebody", "process -1 on host y"])
def test_any_other_text_names_no_writer(line: str) -> None:
    assert Writer.parse(line) is None


def test_the_lock_file_names_this_process_while_it_holds_the_lock(folder: Path) -> None:
    store = folder / "runs.turnout"
    assert lock_line(store) == ""
    lock = WriterLock(store)
    assert Writer.parse(lock_line(store)) == Writer(os.getpid(), socket.gethostname())
    lock.release()
    assert lock_line(store) == ""
    assert not lock_path(store).exists()  # no commit was acknowledged


def test_the_lock_file_of_a_store_with_commits_stays(folder: Path) -> None:
    store = folder / "runs.turnout"
    lock = WriterLock(store)
    acknowledge(store, Acknowledged("0123456789abcdef", 3))
    lock.release()
    assert lock_line(store) == ""
    assert read_acknowledged(store) == Acknowledged("0123456789abcdef", 3)


def test_only_an_ended_process_of_this_host_is_dead() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert Writer(ended.pid, socket.gethostname()).is_dead
    assert Writer(10**30, socket.gethostname()).is_dead
    assert not Writer.current().is_dead
    assert not Writer(ended.pid, "another-host").is_dead


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only /proc shows the state of a process")
def test_an_ended_process_is_dead_before_its_parent_has_noticed() -> None:
    with subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE) as ended:
        assert ended.stdout is not None
        ended.stdout.read()  # until it ends
        writer = Writer(ended.pid, socket.gethostname())
        wait_until(lambda: writer.is_dead)  # it is not reaped before the end of this block


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="only /proc shows who holds a lock")
def test_a_process_that_got_the_number_of_an_ended_writer_is_not_taken_for_it(folder: Path) -> None:
    store = folder / "runs.turnout"
    acknowledge(store, Acknowledged("0123456789abcdef", 3))
    lock = WriterLock(store)
    assert not Writer.current().has_ended(store)
    lock.release()
    assert Writer.current().has_ended(store)  # this process runs, but does not hold the lock
    assert not Writer(os.getpid(), "another-host").has_ended(store)


def test_a_lock_is_released_once(folder: Path) -> None:
    store = folder / "runs.turnout"
    first = WriterLock(store)
    first.release()
    second = WriterLock(store)
    first.release()
    first.forget()
    assert Writer.parse(lock_line(store)) == Writer.current()  # the second still holds it
    with pytest.raises(StoreError, match="is being written by process"):
        WriterLock(store)
    second.release()


def test_a_process_of_another_user_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(process: int, signal: int) -> None:
        raise PermissionError(process, signal)

    monkeypatch.setattr(os, "kill", refuse)
    assert not Writer.current().is_dead


def test_without_a_lock_file_it_is_not_known_whether_a_running_writer_has_ended(folder: Path) -> None:
    assert not Writer.current().has_ended(folder / "missing.turnout")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    database = tmp_path / "store.turnout"
    database.with_name("store.turnout-shm").touch()
    return database


def lock_row(path: Path, process: int, first: int, last: int | str, kind: str = "WRITE", family: str = "POSIX") -> str:
    inode = path.with_name(f"{path.name}-shm").stat().st_ino
    return f"7: {family}  ADVISORY  {kind} {process} fe:00:{inode} {first} {last}"


def holding(path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    table = path.with_name("locks")
    table.write_text("".join(f"{line}\n" for line in lines))
    monkeypatch.setattr("turnout.storage.files.lock.LOCKS", table)
    return writing_processes(path)


@pytest.mark.parametrize(("first", "last"), [(120, 120), (100, 120), (120, 127), (0, "EOF"), (120, "EOF")])
def test_a_lock_on_the_byte_of_writers_is_found(
    path: Path, monkeypatch: pytest.MonkeyPatch, first: int, last: int | str
) -> None:
    assert holding(path, [lock_row(path, 4711, first, last)], monkeypatch) == [4711]


@pytest.mark.parametrize(("first", "last"), [(121, 127), (100, 119), (121, "EOF")])
def test_a_lock_on_other_bytes_is_not(path: Path, monkeypatch: pytest.MonkeyPatch, first: int, last: int | str) -> None:
    assert holding(path, [lock_row(path, 4711, first, last)], monkeypatch) == []


def test_locks_of_readers_of_other_kinds_files_and_namespaces_are_not(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inode = path.with_name(f"{path.name}-shm").stat().st_ino
    lines = [
        lock_row(path, 1, 120, 120, kind="READ"),
        lock_row(path, 2, 120, 120, family="FLOCK"),
        f"7: POSIX  ADVISORY  WRITE 3 fe:00:1{inode} 120 120",
        lock_row(path, 0, 120, 120),  # of a process in another namespace
        f"7: -> POSIX  ADVISORY  WRITE 5 fe:00:{inode} 120 120",  # it waits for the lock
        lock_row(path, 6, 120, 120),
        lock_row(path, 7, 120, 120),
    ]
    assert holding(path, lines, monkeypatch) == [6, 7]


def test_nothing_is_known_without_a_table_or_without_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert holding(path.with_name("other.turnout"), [lock_row(path, 6, 120, 120)], monkeypatch) == []
    monkeypatch.setattr("turnout.storage.files.lock.LOCKS", path.with_name("missing"))
    assert writing_processes(path) == []


@pytest.mark.skipif(not LOCKS.exists(), reason="this system has no table of locks")
def test_a_real_transaction_is_found(folder: Path) -> None:
    path = folder / "store.turnout"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = wal")
        db.execute("CREATE TABLE t (x)")
        assert writing_processes(path) == []
        db.execute("BEGIN IMMEDIATE")
        assert writing_processes(path) == [os.getpid()]
        db.execute("ROLLBACK")
        assert writing_processes(path) == []
