"""Committed rounds survive kill -9, and a resumed run equals the uninterrupted one."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

from store.restless_writer import CHUNK, ROUNDS, Game
from turnout.kernel.rounds import RoundRecord
from turnout.store import RunStore

KILLS = 12
WRITER = Path(__file__).with_name("restless_writer.py")


def start_writer(path: Path, runs: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(WRITER), str(path), str(runs)], stdout=subprocess.PIPE)


def kill_at_a_random_time(path: Path, rng: random.Random, *, once_open: bool) -> None:
    with start_writer(path, 10**9) as writer:
        if once_open:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
            time.sleep(rng.uniform(0.0, 0.3))
        else:
            time.sleep(rng.uniform(0.05, 0.6))
        writer.kill()
    assert writer.returncode == -signal.SIGKILL


@cache
def uninterrupted_rounds(seed: int) -> list[RoundRecord]:
    return Game(seed).rounds(1, ROUNDS)


def check_every_run(path: Path) -> int:
    """Checks that each run consists of complete chunks, equal to the uninterrupted run; returns the number of runs."""
    with RunStore(path, read_only=True) as store:
        runs = store.runs()
        for info in runs:
            records = list(store.columns(info.id).records())
            assert records == uninterrupted_rounds(info.plan["seed"])[: info.rounds]
            assert info.rounds % CHUNK == 0
            assert info.rounds == ROUNDS or not info.finished
            saved = store.snapshot(info.id)
            assert saved is None or saved[0] == info.rounds
        unfinished = [info.key for info in runs if not info.finished]
        assert unfinished in ([], [runs[-1].key])
        assert [info.key for info in runs] == [f"run {number}" for number in range(len(runs))]
    return len(runs)


def test_no_committed_round_is_lost_when_the_writer_is_killed(tmp_path: Path) -> None:
    path, rng = tmp_path / "runs.db", random.Random(2)
    for kill in range(KILLS):
        kill_at_a_random_time(path, rng, once_open=kill % 3 != 0)
        if path.exists():
            with RunStore(path):  # the operating system has released the lock of the killed process
                pass
            check_every_run(path)
    runs = check_every_run(path) + 3
    with start_writer(path, runs) as last_writer:
        last_writer.communicate(timeout=60)
    assert last_writer.returncode == 0
    assert check_every_run(path) == runs
    with RunStore(path, read_only=True) as store:
        assert all(info.finished for info in store.runs())


def test_a_reader_opens_the_store_of_a_killed_writer(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    kill_at_a_random_time(path, random.Random(0), once_open=True)
    check_every_run(path)


ORPHAN = """
import os, sys, time
from turnout.store import RunStore
store = RunStore(sys.argv[1])
if os.fork() == 0:
    print(os.getpid(), flush=True)
time.sleep(60)
os._exit(0)
"""


def test_a_forked_child_does_not_keep_the_lock_of_its_killed_parent(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with subprocess.Popen([sys.executable, "-c", ORPHAN, str(path)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
        parent.wait(timeout=30)
        try:
            os.kill(child, 0)
            with RunStore(path) as store:
                assert store.runs() == []
        finally:
            os.kill(child, signal.SIGKILL)
