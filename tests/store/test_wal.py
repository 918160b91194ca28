"""Commits that SQLite would silently drop are counted."""

from __future__ import annotations

import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from turnout.store.wal import lost_commits

COMMITS = 30


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Returns a database whose content is only in the log, as a killed process leaves it."""
    live, copy = tmp_path / "live.db", tmp_path / "copy.db"
    with closing(sqlite3.connect(live, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE entries (text TEXT)")
        for number in range(COMMITS - 1):
            db.execute("INSERT INTO entries VALUES (?)", (f"{number}" * 500,))
        shutil.copy(live, copy)
        shutil.copy(f"{live}-wal", f"{copy}-wal")
    return copy


def log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


def readable_commits(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        try:
            return int(db.execute("SELECT COUNT(*) FROM entries").fetchone()[0]) + 1
        except sqlite3.DatabaseError:
            return 0


def test_an_intact_log_has_no_lost_commits(path: Path) -> None:
    assert lost_commits(path) == 0
    assert readable_commits(path) == COMMITS


def test_a_missing_or_empty_log_has_no_lost_commits(path: Path) -> None:
    log_of(path).unlink()
    assert lost_commits(path) == 0
    log_of(path).touch()
    assert lost_commits(path) == 0


def test_an_incomplete_frame_at_the_end_does_not_count(path: Path) -> None:
    intact = log_of(path).read_bytes()
    log_of(path).write_bytes(intact + intact[32:56] + b"\0" * 100)
    assert lost_commits(path) == 0


def test_every_flipped_bit_is_detected_and_the_lost_commits_are_those_that_cannot_be_read(
    path: Path, tmp_path: Path
) -> None:
    intact, rng = log_of(path).read_bytes(), random.Random(3)
    for trial in range(40):
        copy = tmp_path / f"{trial}.db"
        shutil.copy(path, copy)
        damaged = bytearray(intact)
        position = rng.randrange(len(intact))
        damaged[position] ^= 1 << rng.randrange(8)
        log_of(copy).write_bytes(damaged)
        lost = lost_commits(copy)
        assert lost >= 1
        if position >= 32:
            assert readable_commits(copy) <= COMMITS - lost <= readable_commits(copy) + 1


def test_a_damaged_header_loses_all_commits(path: Path) -> None:
    damaged = bytearray(log_of(path).read_bytes())
    damaged[3] ^= 1
    log_of(path).write_bytes(damaged)
    assert lost_commits(path) == 1
    assert readable_commits(path) == 0
