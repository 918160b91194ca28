"""The lock file names its holder, in one line that the same module parses."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from turnout.errors import StoreError
from turnout.storage.files.acknowledged import Acknowledged, acknowledge, lock_path, read_acknowledged
from turnout.storage.files.lock import Writer, WriterLock, lock_line
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
