"""The checks of a file when it is opened: lost commits, and the mark of a file in use."""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as some

from turnout.errors import SettingError, StoreError
from turnout.lab import RunStore
from turnout.storage.files import lock, system
from turnout.storage.files.database import RUNS, log_path
from turnout.storage.files.identity import counters
from turnout.storage.files.lock import (
    LOCKS,
    Acknowledged,
    Writer,
    WriterLock,
    acknowledge,
    lock_line,
    lock_path,
    read_acknowledged,
    running_writer,
    writing_processes,
)
from turnout.storage.files.storefile import StoreFile
from turnout.storage.files.system import atomic_write
from turnout.storage.store import Access
from waiting import wait_until


def open_and_close(path: Path, access: Access) -> dict[str, str]:
    """Opens a file without writing anything; returns its counters while it is open."""
    with closing(StoreFile(path, RUNS, access)) as file:
        return counters(file.connection)


@pytest.mark.parametrize("access", ["read", "report", "write"])
def test_a_file_is_refused_exactly_if_it_has_fewer_commits_than_were_acknowledged(folder: Path, access: Access) -> None:
    path = folder / "runs.turnout"
    RunStore(path).close()
    stated = read_acknowledged(path)
    assert stated is not None
    assert stated == Acknowledged(stated.file_id, int(open_and_close(path, "read")["commits"]))
    open_and_close(path, access)
    newest = int(open_and_close(path, "read")["commits"])
    acknowledge(path, Acknowledged(stated.file_id, newest + 1))
    with pytest.raises(StoreError, match=rf"has lost 1 of {newest + 1} commits that were acknowledged"):
        open_and_close(path, access)
    acknowledge(path, Acknowledged("0123456789abcdef", newest + 1))  # of another file, which was replaced by this one
    open_and_close(path, access)
    lock_path(path).unlink()
    open_and_close(path, access)


@pytest.mark.parametrize("access", ["read", "report"])
def test_who_writes_nothing_does_not_clear_the_mark_of_a_killed_writer(folder: Path, access: Access) -> None:
    """Without the mark, a later copy of the file without its log would not be refused."""
    path, copy = folder / "runs.turnout", folder / "copy.turnout"
    with RunStore(path):  # its files are copied as a killed process would leave them
        for file_of in (Path, log_path, lock_path):
            shutil.copy(file_of(path), file_of(copy))
    before = open_and_close(copy, "read")
    assert before["in_use"] == "1"
    assert open_and_close(copy, access) == before
    assert open_and_close(copy, "read") == before
    open_and_close(copy, "write")
    assert open_and_close(copy, "read")["in_use"] == "0"


def test_a_line_that_is_being_written_is_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "runs.turnout"
    pauses: list[float] = []
    before, after = Acknowledged("0123456789abcdef", 10**15 - 1).line(), Acknowledged("0123456789abcdef", 10**15).line()
    torn = after[:20] + before[20:]
    assert torn not in (before, after)
    lock_path(path).write_bytes(torn)

    def complete(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            lock_path(path).write_bytes(after)

    monkeypatch.setattr(lock, "time", SimpleNamespace(sleep=complete))
    assert read_acknowledged(path) == Acknowledged("0123456789abcdef", 10**15)
    assert pauses == [lock.PAUSE] * 3
    lock_path(path).write_bytes(torn)  # the process that wrote it was killed
    assert read_acknowledged(path) is None
    assert len(pauses) == 3 + lock.ATTEMPTS


@pytest.mark.skipif(not system.CAN_LOCK_PARTS, reason="elsewhere another file is locked")
def test_a_stopped_process_that_holds_the_line_stops_nobody_else(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "runs.turnout"
    pauses: list[float] = []
    acknowledge(path, Acknowledged("0123456789abcdef", 3))
    monkeypatch.setattr(lock, "time", SimpleNamespace(sleep=pauses.append))
    with lock_path(path).open("r+b") as held:
        assert system.try_lock_part(held.fileno(), lock.LINE)
        acknowledge(path, Acknowledged("0123456789abcdef", 4))
    assert len(pauses) == lock.ATTEMPTS
    assert read_acknowledged(path) == Acknowledged("0123456789abcdef", 4)


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


def test_a_killed_process_is_named_by_the_lock_file_and_is_no_writer_any_more(folder: Path) -> None:
    path = folder / "runs.turnout"
    code = "import os, sys; from turnout.lab import RunStore; RunStore(sys.argv[1]); os.kill(os.getpid(), 9)"
    with RunStore(path):
        assert running_writer(path) == str(Writer.current())
    assert subprocess.run([sys.executable, "-c", code, path], check=False).returncode == -9
    assert Writer.parse(lock_line(path)) is not None
    assert running_writer(path) is None


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


def test_a_lock_on_the_byte_of_writers_is_found_and_one_on_other_bytes_is_not(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for first, last in ((120, 120), (100, 120), (120, 127), (0, "EOF"), (120, "EOF")):
        assert holding(path, [lock_row(path, 4711, first, last)], monkeypatch) == [4711]
    assert holding(path, [lock_row(path, 4711, 120, 120), lock_row(path, 4711, 100, "EOF")], monkeypatch) == [4711]
    for first, last in ((121, 127), (100, 119), (121, "EOF")):
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


def test_the_content_is_flushed_to_disk_before_the_file_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, flushed = tmp_path / "file", list[tuple[int, bytes]]()
    path.write_bytes(b"old")

    def record(descriptor: int) -> None:
        flushed.append((os.fstat(descriptor).st_size, path.read_bytes()))

    monkeypatch.setattr(system, "sync_file", record)
    with atomic_write(path) as file:
        file.write(b"new content")
    assert flushed == [(11, b"old")]
    assert path.read_bytes() == b"new content"


def test_an_interrupted_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write(path: Path) -> None:
        with atomic_write(path) as file:
            file.write(b"new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(path)
    assert (list(tmp_path.iterdir()), path.read_bytes()) == ([path], b"old")
    with pytest.raises(SettingError, match=r"cannot write .*nowhere/file: No such file"):
        write(tmp_path / "nowhere" / "file")
