"""Finding the processes inside a write transaction, in made-up tables of locks and in the real one."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from turnout.storage.files import holders
from turnout.storage.files.holders import writing_processes


@pytest.fixture
def path(tmp_path: Path) -> Path:
    database = tmp_path / "store.turnout"
    database.with_name("store.turnout-shm").touch()
    return database


def lock(path: Path, process: int, first: int, last: int | str, kind: str = "WRITE", family: str = "POSIX") -> str:
    inode = path.with_name(f"{path.name}-shm").stat().st_ino
    return f"7: {family}  ADVISORY  {kind} {process} fe:00:{inode} {first} {last}"


def holding(path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    table = path.with_name("locks")
    table.write_text("".join(f"{line}\n" for line in lines))
    monkeypatch.setattr(holders, "LOCKS", table)
    return writing_processes(path)


@pytest.mark.parametrize(("first", "last"), [(120, 120), (100, 120), (120, 127), (0, "EOF"), (120, "EOF")])
def test_a_lock_on_the_byte_of_writers_is_found(
    path: Path, monkeypatch: pytest.MonkeyPatch, first: int, last: int | str
) -> None:
    assert holding(path, [lock(path, 4711, first, last)], monkeypatch) == [4711]


@pytest.mark.parametrize(("first", "last"), [(121, 127), (100, 119), (121, "EOF")])
def test_a_lock_on_other_bytes_is_not(path: Path, monkeypatch: pytest.MonkeyPatch, first: int, last: int | str) -> None:
    assert holding(path, [lock(path, 4711, first, last)], monkeypatch) == []


def test_locks_of_readers_of_other_kinds_files_and_namespaces_are_not(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inode = path.with_name(f"{path.name}-shm").stat().st_ino
    lines = [
        lock(path, 1, 120, 120, kind="READ"),
        lock(path, 2, 120, 120, family="FLOCK"),
        f"7: POSIX  ADVISORY  WRITE 3 fe:00:1{inode} 120 120",
        lock(path, 0, 120, 120),  # of a process in another namespace
        f"7: -> POSIX  ADVISORY  WRITE 5 fe:00:{inode} 120 120",  # it waits for the lock
        lock(path, 6, 120, 120),
        lock(path, 7, 120, 120),
    ]
    assert holding(path, lines, monkeypatch) == [6, 7]


def test_nothing_is_known_without_a_table_or_without_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert holding(path.with_name("other.turnout"), [lock(path, 6, 120, 120)], monkeypatch) == []
    monkeypatch.setattr(holders, "LOCKS", path.with_name("missing"))
    assert writing_processes(path) == []


@pytest.mark.skipif(not holders.LOCKS.exists(), reason="this system has no table of locks")
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
