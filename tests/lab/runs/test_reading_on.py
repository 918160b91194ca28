"""Incremental reads of a growing run: `columns(after=…, most=…)` and `changes`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from turnout import make_policy
from turnout.errors import StoreError
from turnout.kernel.rounds import RoundRecord
from turnout.lab import PaperWorld, RoundColumns, RunStore, play

CLIENTS = 12


def play_rounds(rounds: int) -> list[RoundRecord]:
    return list(play(make_policy("rbcsf", CLIENTS, cohort_size=3), PaperWorld(clients=CLIENTS), rounds))


RECORDS = play_rounds(40)


def begin(store: RunStore, key: str = "run") -> int:
    return store.begin(key, {"policy": "rbcsf"}, clients=CLIENTS, code_version="test")


def append(store: RunStore, run: int, first: int, last: int) -> None:
    store.append(run, RoundColumns.from_records(RECORDS[first - 1 : last], clients=CLIENTS))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 4))
@settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_read_on_and_on_it_is_the_whole(folder: Path, sizes: list[int], most: int) -> None:
    ends = np.cumsum(sizes)
    ends = ends[ends <= len(RECORDS)].tolist()
    path = folder / f"{'-'.join(map(str, sizes))}-{most}.turnout"
    path.unlink(missing_ok=True)
    with RunStore(path) as store:
        run, first = begin(store), 1
        for end in ends:
            append(store, run, first, end)
            first = end + 1
        after, parts = 0, []
        while len(part := store.columns(run, after=after, most=most)):
            assert int(part.rounds[0]) == after + 1
            after = int(part.rounds[-1])
            assert ends.index(after) - (ends.index(int(part.rounds[0]) - 1) if part.rounds[0] > 1 else -1) <= most
            parts.append(part)
        whole = store.columns(run)
        assert list(RoundColumns.concatenate(parts).records()) == list(whole.records()) == RECORDS[: ends[-1]]


def test_an_incremental_read_cannot_start_inside_a_chunk(folder: Path) -> None:
    """A read must continue at the end of an earlier one."""
    with RunStore(folder / "runs.turnout") as store:
        run = begin(store)
        assert (len(store.columns(run, after=0)), store.columns(run).clients) == (0, CLIENTS)
        append(store, run, 1, 10)
        for nothing in ({"after": 10}, {"after": 99}, {"most": 0}):
            assert len(store.columns(run, **nothing)) == 0
        with pytest.raises(StoreError, match="of other rounds"):
            store.columns(run, after=4)
        with pytest.raises(StoreError, match="there is no run 7"):
            store.columns(7, after=3)


def test_the_change_counter_changes_whenever_another_connection_writes(folder: Path) -> None:
    path = folder / "runs.turnout"
    with RunStore(path) as store, RunStore(path, read_only=True) as reader:
        run = begin(store)
        seen = [reader.changes]
        assert reader.changes == seen[0], "reading does not change the counter"
        for write in (
            lambda: append(store, run, 1, 5),
            lambda: append(store, run, 6, 9),
            lambda: begin(store, "another"),
            lambda: store.delete(run),
        ):
            write()
            seen.append(reader.changes)
            reader.runs()
            assert reader.changes == seen[-1]
        assert len(set(seen)) == len(seen)
    with pytest.raises(StoreError, match="was closed"):
        _ = reader.changes
