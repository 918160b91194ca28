"""The checks of a file when it is opened: lost commits, and the mark of a file in use."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from turnout.errors import StoreError
from turnout.lab import RunStore
from turnout.storage.files import lock, system
from turnout.storage.files.database import RUNS, log_path
from turnout.storage.files.identity import counters
from turnout.storage.files.lock import Acknowledged, acknowledge, lock_path, read_acknowledged
from turnout.storage.files.storefile import StoreFile
from turnout.storage.store import Access


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
