"""The run store: runs are started, appended to, read on, finished and found, and what would damage it is refused."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lab.runs.keepsakes import columns_of, play_rounds
from narrowing import known
from turnout.errors import StoreError
from turnout.kernel.rounds import RoundRecord
from turnout.lab import RoundColumns, RunInfo, RunStore
from turnout.storage.files import database

PLAN = {"policy": "rbcsf", "seed": 3, "settings": {"speed_weight": 5.0}}
RECORDS = play_rounds(30, deadline=15.0, failure_rate=0.1)


def begin(store: RunStore, key: str = "one", plan: dict[str, Any] = PLAN, clients: int = 40) -> int:
    return store.begin(key, plan, clients=clients, code_version="1.0")


def write(store: RunStore, key: str = "one", records: list[RoundRecord] = RECORDS) -> int:
    return store.write_run(key, PLAN, columns_of(records), clients=40, code_version="1.0")


def test_a_run_is_found_by_its_key(store: RunStore) -> None:
    assert store.find("one") is None
    run = begin(store)
    store.append(run, columns_of(RECORDS[:7]))
    info = known(store.find("one"))
    assert info == RunInfo(run, "one", PLAN, 40, 7, False, "1.0", info.started)
    assert info.started.endswith("+00:00")
    store.append(run, columns_of([]), finish=True)
    other = write(store, "two")
    assert [(listed.id, listed.key, listed.rounds, listed.finished) for listed in store.runs()] == [
        (run, "one", 7, True),
        (other, "two", 30, True),
    ]


def test_the_same_key_and_plan_continue_the_same_run(store: RunStore) -> None:
    run = begin(store)
    assert begin(store, plan=dict(reversed(PLAN.items()))) == run
    with pytest.raises(StoreError, match=r"run 1 \('one'\) was started with another plan: choose another key"):
        begin(store, plan={**PLAN, "seed": 4})
    with pytest.raises(StoreError, match="was started with 40 clients, not 41"):
        begin(store, clients=41)


def test_a_finished_run_is_not_continued_and_writing_it_again_changes_nothing(store: RunStore) -> None:
    run = write(store)
    assert write(store, records=RECORDS[:5]) == run
    assert list(store.columns(run).records()) == RECORDS
    with pytest.raises(StoreError, match=r"run 1 \('one'\) is finished: begin another run"):
        store.append(run, columns_of([]))
    with pytest.raises(StoreError, match=r"run 1 \('one'\) is finished: read it, delete it, or choose another key"):
        begin(store)
    with pytest.raises(StoreError, match="another plan"):
        store.write_run("one", {}, columns_of(RECORDS), clients=40, code_version="1.0")


def test_writing_a_complete_run_replaces_an_unfinished_one(store: RunStore) -> None:
    store.append(begin(store), columns_of(RECORDS[:5]), snapshot={"round": 5})
    run = write(store)
    assert [info.key for info in store.runs()] == ["one"]
    assert list(store.columns(run).records()) == RECORDS
    assert store.snapshot(run) is None


@pytest.mark.parametrize(("first", "message"), [(8, "round 9 cannot follow round 7"), (6, "append round 8 next")])
def test_rounds_must_follow_the_last_stored_one(store: RunStore, first: int, message: str) -> None:
    run = begin(store)
    store.append(run, columns_of(RECORDS[:7]))
    with pytest.raises(StoreError, match=message):
        store.append(run, columns_of(RECORDS[first:]), snapshot={"never": "kept"}, finish=True)
    with pytest.raises(StoreError, match="round 2 cannot follow round 0"):
        write(store, records=RECORDS[1:])
    with pytest.raises(StoreError, match="round 10 cannot follow round 8"):
        store.append(run, columns_of([RECORDS[7], RECORDS[9]]))
    assert list(store.columns(run).records()) == RECORDS[:7]
    assert store.snapshot(run) is None


def test_rounds_of_another_fleet_and_unknown_runs_are_refused(store: RunStore) -> None:
    for use in (store.columns, store.snapshot, store.delete):
        with pytest.raises(StoreError, match=r"there is no run 7 in .*runs.db: RunStore\.runs\(\) lists"):
            use(7)
    with pytest.raises(StoreError, match="there is no run 7"):
        store.append(7, columns_of(RECORDS))
    with pytest.raises(StoreError, match="run 1 has 41 clients, but the rounds to append have 40"):
        store.append(begin(store, clients=41), columns_of(RECORDS))


@pytest.mark.parametrize("plan", [{"rate": float("nan")}, {"rate": np.float32(1)}, {1: 1, "a": 2}, ["a list"]])
def test_a_plan_that_is_not_json_is_refused(store: RunStore, plan: Any) -> None:
    with pytest.raises(StoreError, match="the plan of a run must be"):
        begin(store, plan=plan)
    with pytest.raises(StoreError, match="the key of a run must be a non-empty string"):
        begin(store, key="")


def test_only_the_newest_snapshot_is_kept_and_the_last_append_can_finish_the_run(store: RunStore) -> None:
    run = begin(store)
    store.append(run, columns_of(RECORDS[:7]), snapshot={"round": 7})
    store.append(run, columns_of(RECORDS[7:9]), snapshot={"round": 9})
    store.append(run, columns_of(RECORDS[9:12]))
    assert store.snapshot(run) == (9, {"round": 9})
    store.append(run, columns_of(RECORDS[12:]), finish=True)
    assert list(store.columns(run).records()) == RECORDS
    info = known(store.find("one"))
    assert (info.rounds, info.finished) == (30, True)
    assert store.snapshot(run) is None


def test_a_run_may_be_finished_with_a_snapshot_or_without_more_rounds(store: RunStore) -> None:
    kept, bare = begin(store), begin(store, "two")
    store.append(kept, columns_of(RECORDS[:7]), snapshot={"round": 7})
    store.append(kept, columns_of(RECORDS[7:]), snapshot={"round": 30}, finish=True)
    store.append(bare, columns_of(RECORDS), snapshot={"round": 30})
    store.append(bare, columns_of([]), finish=True)
    assert store.snapshot(kept) == (30, {"round": 30})
    assert store.snapshot(bare) is None
    assert [(info.rounds, info.finished) for info in store.runs()] == [(30, True), (30, True)]


def disk_usage(path: Path) -> int:
    """Returns the size of the store on disk, including the files next to it."""
    return sum(file.stat().st_size for file in path.parent.iterdir())


@pytest.mark.parametrize("numbers", [20_000, 1_000_000])
def test_compacting_frees_space_and_loses_nothing(path: Path, numbers: int) -> None:
    with RunStore(path) as store, RunStore(path, read_only=True) as reader:
        small = write(store, "small")
        large, unfinished = begin(store, "large"), begin(store, "unfinished")
        store.append(unfinished, columns_of(RECORDS[:7]), snapshot={"round": 7, "numbers": np.arange(3.0)})
        store.append(large, columns_of(RECORDS[:7]), snapshot={"numbers": np.random.default_rng(0).random(numbers)})
        assert len(list(reader.columns(large).records())) == 7
        store.append(large, columns_of(RECORDS[7:]), finish=True)
        before, runs = disk_usage(path), store.runs()
        assert before > 8 * numbers
        store.compact()
        assert disk_usage(path) < min(before - 8 * numbers, 8 * numbers)
        for each in (store, reader):
            assert each.runs() == runs
            assert list(each.columns(small).records()) == list(each.columns(large).records()) == RECORDS
            assert list(each.columns(unfinished).records()) == RECORDS[:7]
            saved = known(each.snapshot(unfinished))
            assert (saved[0], saved[1]["round"], saved[1]["numbers"].tolist()) == (7, 7, [0.0, 1.0, 2.0])
        store.append(unfinished, columns_of(RECORDS[7:]), finish=True)
    with RunStore(path) as store:
        assert list(store.columns(unfinished).records()) == RECORDS
        store.delete(unfinished)
        assert unfinished not in {info.id for info in store.runs()}
        store.compact()
        assert begin(store, "another") > unfinished  # the id is not used again


@pytest.mark.parametrize("value", [np.array([{}]), None, [1, 2], np.int64(3), {"nested": 1}, b"bytes"])
def test_a_snapshot_holds_only_plain_values(store: RunStore, value: Any) -> None:
    run = begin(store)
    with pytest.raises(StoreError, match=r"'state'\]? (is of type|must hold numbers)"):
        store.append(run, columns_of(RECORDS), snapshot={"state": value})
    with pytest.raises(StoreError, match="the keys of a snapshot must be strings, not 3"):
        store.append(run, columns_of(RECORDS), snapshot={3: 1.0})  # type: ignore[dict-item]
    assert len(store.columns(run)) == 0


def test_threads_share_a_store(store: RunStore) -> None:
    def write_in_chunks(key: str) -> None:
        run = begin(store, key)
        for first in range(0, 30, 3):
            store.append(run, columns_of(RECORDS[first : first + 3]))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(write_in_chunks, ("a", "b", "c", "d")))
    assert [list(store.columns(info.id).records()) == RECORDS for info in store.runs()] == [True] * 4


@pytest.mark.parametrize("change", [begin, RunStore.compact])
def test_a_closed_or_read_only_store_cannot_be_changed(path: Path, change: Callable[[RunStore], object]) -> None:
    with RunStore(path) as store:
        write(store)
    store.close()
    before = path.read_bytes()
    with RunStore(path, read_only=True) as reader, pytest.raises(StoreError, match="was opened read-only"):
        change(reader)
    for attempt in (change, RunStore.runs):
        with pytest.raises(StoreError, match="was closed: open it again"):
            attempt(store)
    assert path.read_bytes() == before


def test_another_writer_may_open_the_store_after_it_was_closed(path: Path) -> None:
    with RunStore(path), pytest.raises(StoreError, match="is being written by process"):
        RunStore(path)
    with RunStore(path) as store:
        begin(store)


READER = """
import sys
from turnout.lab import RunStore
views = 0
with RunStore(sys.argv[1], read_only=True) as store:
    print("ready", flush=True)
    seen = 0
    while True:
        info = store.find("one")
        if info is None:
            continue
        columns = store.columns(info.id)
        assert columns.rounds.tolist() == list(range(1, len(columns) + 1))
        assert len(columns) % 3 == 0 and len(columns) >= max(seen, info.rounds)
        saved = store.snapshot(info.id)
        assert saved is None or saved[0] == saved[1]["round"] >= len(columns)
        views += len(columns) > seen
        seen = len(columns)
        if info.finished:
            break
    assert seen == 30
print(views)
"""


def test_a_concurrent_reader_sees_only_complete_appends(store: RunStore, path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", READER, str(path)], stdout=subprocess.PIPE, text=True) as reader:
        assert known(reader.stdout).readline() == "ready\n"
        run = begin(store)
        for first in range(0, 30, 3):
            store.append(run, columns_of(RECORDS[first : first + 3]), snapshot={"round": first + 3})
            for other in range(10):
                write(store, f"{first}/{other}")
        store.append(run, columns_of([]), finish=True)
        out, _ = reader.communicate()
    assert reader.returncode == 0
    assert int(out) >= 1


def test_only_the_length_of_a_large_store_is_checked_on_opening(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's check reads the whole file."""
    with RunStore(path) as store:
        for number in range(200):
            begin(store, f"run {number}")
    content = bytearray(path.read_bytes())
    last = next(start for start in range(len(content) - 4096, 0, -4096) if content[start] == 13)
    content[last + 1 : last + 40] = b"\xff" * 39
    path.write_bytes(bytes(content))
    with pytest.raises(StoreError, match="is truncated or damaged"):
        RunStore(path)
    monkeypatch.setattr(database, "MAX_CHECKED", len(content))
    RunStore(path, read_only=True).close()
    path.write_bytes(bytes(content[:-1]))
    with pytest.raises(StoreError, match="is truncated or damaged"):
        RunStore(path, read_only=True)


def test_flipped_bytes_inside_rounds_are_detected_on_reading(path: Path) -> None:
    with RunStore(path) as store:
        run = begin(store)
        store.append(run, columns_of(RECORDS[:10]), snapshot={"state": np.arange(100.0) ** 0.5})
        store.append(run, columns_of(RECORDS[10:]))
    content = bytearray(path.read_bytes())
    for numbers in (columns_of(RECORDS[10:]).exchange_times, np.arange(100.0) ** 0.5):
        position = content.index(numbers[5:7].tobytes())
        content[position] ^= 0x10
    path.write_bytes(bytes(content))
    with RunStore(path) as store:
        with pytest.raises(StoreError, match=r"rounds 11 to 30 of run 1 in .*: the stored bytes are damaged"):
            store.columns(run)
        with pytest.raises(StoreError, match=r"the snapshot of run 1 in .*: the stored bytes are damaged"):
            store.snapshot(run)
        assert list(store.columns(run, most=1).records()) == RECORDS[:10]


def test_rounds_are_correct_or_refused_whichever_byte_is_damaged(path: Path) -> None:
    with RunStore(path) as store:
        run = begin(store)
        for first in range(0, 12, 4):
            store.append(run, columns_of(RECORDS[first : first + 4]))
    content = path.read_bytes()
    rng = np.random.default_rng(3)
    read = 0
    for position in rng.integers(0, len(content), 60):
        damaged = bytearray(content)
        damaged[position : position + 4] = rng.bytes(len(damaged[position : position + 4]))
        path.write_bytes(bytes(damaged))
        try:
            with RunStore(path, read_only=True) as store:
                records = list(store.columns(run).records())
        except StoreError:
            continue
        assert records == RECORDS[: len(records)]
        read += 1
    assert read < 50


def test_a_store_that_another_process_has_just_created_is_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunStore(path) as store:
        write(store)
    exists = Path.exists
    asked: list[Path] = []

    def was_missing(asked_for: Path) -> bool:
        """Answers as the file system did before the other process created the file, but only at first."""
        asked.append(asked_for)
        return exists(asked_for) and asked.count(path) > 1

    monkeypatch.setattr(Path, "exists", was_missing)
    with RunStore(path) as store:
        assert list(store.columns(1).records()) == RECORDS
    assert asked.count(path) == 2


def test_paths_that_hold_no_store_are_refused(tmp_path: Path, path: Path) -> None:
    with pytest.raises(StoreError, match=r"there is no folder .*nowhere: create it, or choose another path"):
        RunStore(tmp_path / "nowhere" / "runs.db")
    with pytest.raises(StoreError, match="is a folder, not a file"):
        RunStore(tmp_path)
    with pytest.raises(StoreError, match=r"cannot be used .*: check the folder and its permissions"):
        RunStore("/proc/runs.db")
    with pytest.raises(StoreError, match=r"there is no store at .*runs.db: check the path"):
        RunStore(path, read_only=True)
    assert not path.exists()
    path.with_name("runs.db-wal").write_bytes(b"rounds of a store that was moved away")
    with pytest.raises(StoreError, match=r"does not exist, but its log .*-wal does: restore the database"):
        RunStore(path)


def test_a_file_name_may_contain_special_characters(tmp_path: Path) -> None:
    path = tmp_path / "a?b#c%20 ü.db"
    with RunStore(path) as store:
        run = write(store)
    with RunStore(path, read_only=True) as store:
        assert list(store.columns(run).records()) == RECORDS
    assert path.exists()


def make_database(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()


def make_newer(path: Path) -> None:
    RunStore(path).close()
    make_database(path, "PRAGMA user_version = 2")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.write_bytes(b"name,rounds\n" * 1000), "is not a SQLite file, or its header is damaged"),
        (lambda path: path.touch(), "has 0 bytes, too few for a turnout store: restore it"),
        (lambda path: make_database(path, "CREATE TABLE runs (id)"), "is a SQLite file of another program"),
        (make_newer, "has store format 2, but this version of turnout reads format 1: install a newer"),
    ],
    ids=["text", "empty", "other program", "newer"],
)
def test_a_file_that_is_no_store_is_refused_and_left_alone(
    path: Path, make: Callable[[Path], object], message: str
) -> None:
    make(path)
    before = path.read_bytes()
    for read_only in (True, False):
        with pytest.raises(StoreError, match=message):
            RunStore(path, read_only=read_only)
    assert path.read_bytes() == before


ORPHAN = """
import os, signal, sys
from turnout.lab import RunStore
store = RunStore(sys.argv[1])
if os.fork() == 0:
    print(os.getpid(), flush=True)
signal.pause()
"""


def test_a_forked_child_does_not_keep_the_lock_of_its_killed_parent(path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ORPHAN, str(path)], stdout=subprocess.PIPE) as parent:
        child = int(known(parent.stdout).readline())
        parent.kill()
        parent.wait()
        try:
            os.kill(child, 0)
            with RunStore(path) as store:
                assert store.runs() == []
        finally:
            os.kill(child, signal.SIGKILL)


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
            store.append(run, columns_of(RECORDS[first - 1 : end]))
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
        assert (len(store.columns(run, after=0)), store.columns(run).clients) == (0, 40)
        store.append(run, columns_of(RECORDS[0:10]))
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
            lambda: store.append(run, columns_of(RECORDS[0:5])),
            lambda: store.append(run, columns_of(RECORDS[5:9])),
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
