"""A run store that an earlier version wrote (data/format-1.turnout) opens with the same numbers."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from lab.runs.keepsakes import bytes_of, unusual_rounds
from turnout import make_policy
from turnout.lab import RoundColumns, RunStore

STORED = Path(__file__).with_name("data") / "format-1.turnout"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A copy, because SQLite creates files next to the database that it opens."""
    return Path(shutil.copy(STORED, tmp_path / "runs.turnout"))


@pytest.fixture
def store(path: Path) -> Iterator[RunStore]:
    with RunStore(path, read_only=True) as opened:
        yield opened


def test_stored_runs_are_listed_and_come_back_bit_for_bit(store: RunStore) -> None:
    assert [(info.id, info.key, info.plan, info.clients, info.rounds, info.finished) for info in store.runs()] == [
        (1, "odd", {"policy": "none"}, 40, 11, True),
        (2, "played", {"policy": "rbcsf", "seed": 0}, 40, 3, False),
    ]
    records = list(store.records(1))
    assert records == unusual_rounds()
    assert sorted(bytes_of(records)) == sorted(bytes_of(unusual_rounds()))


def test_stored_columns_hold_the_same_numbers(store: RunStore) -> None:
    columns = store.columns(2)
    assert columns.rounds.tolist() == [1, 2, 3]
    assert columns.starts.tolist() == [0, 8, 16, 24]
    assert columns.chosen.tolist() == [
        1,
        2,
        3,
        4,
        5,
        7,
        9,
        10,
        0,
        6,
        8,
        11,
        12,
        13,
        16,
        17,
        *range(14, 15),
        *range(18, 25),
    ]
    assert columns.durations.tolist() == [5.8153178650571835, 8.352543582224381, 7.296711589785641]
    assert columns.outcomes is not None
    assert np.flatnonzero(columns.outcomes).tolist() == [14, 19]
    assert columns.exchange_times[14:20].tolist() == [
        1.6516113717499485,
        4.730695867253183,
        0.6164417585912552,
        1.371507667917201,
        1.1631157846431162,
        4.001210254906166,
    ]


def test_a_stored_snapshot_restores_a_policy(store: RunStore) -> None:
    stored = store.snapshot(2)
    assert stored is not None
    last_round, state = stored
    assert last_round == 3
    assert {name: state.pop(name) for name in ("round", "note", "rate", "even")} == {
        "round": 3,
        "note": "a string",
        "rate": 0.15,
        "even": True,
    }
    policy = make_policy("rbcsf", 40)
    policy.restore(state)
    assert float(np.sum(state["model.bank"])) == pytest.approx(103.56347350319211, rel=1e-15)
    assert np.array_equal(policy.state()["turns"], store.columns(2).turns)
    assert policy.state()["queues.balance"].sum() == -144


def test_rounds_are_written_with_the_bytes_of_the_stored_format(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        (stored,) = database.execute("SELECT data FROM chunks WHERE run = 1").fetchone()
    assert RoundColumns.from_records(unusual_rounds(), clients=40).to_bytes() == stored


def test_a_stored_unfinished_run_can_be_continued(path: Path) -> None:
    with RunStore(path) as store:
        store.append(2, RoundColumns.from_records([], clients=40), finish=True)
        assert store.info(2).finished
