"""Committed rounds survive kill -9, and a resumed run equals the uninterrupted one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

from killing import environment
from store.restless_writer import CHUNK, ROUNDS, Game
from turnout.kernel.rounds import RoundRecord
from turnout.store import RunStore

WRITER = Path(__file__).with_name("restless_writer.py")


def write(path: Path, runs: int, *die_at: int) -> int:
    """Let a writer write so many runs, or be killed before its write `die_at`; how it ended."""
    command = [sys.executable, str(WRITER), str(path), str(runs), *map(str, die_at)]
    return subprocess.run(command, env=environment(), check=False).returncode


def kill_at(path: Path, moment: int) -> None:
    assert write(path, 10**9, moment) == -signal.SIGKILL


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
        assert unfinished in ([], [info.key for info in runs[-1:]])
        assert [info.key for info in runs] == [f"run {number}" for number in range(len(runs))]
    return len(runs)


def test_nothing_that_was_committed_is_lost_to_kill_9(tmp_path: Path) -> None:
    """Killed while it creates the file, while it opens it, in the middle of a run, and between runs."""
    path, held = tmp_path / "runs.db", [0]
    for moment in (1, 2, 3, 5, 8, 14, 23, 40, 61, 97, 150, 4, 7, 33):
        kill_at(path, moment)
        if path.exists():
            with RunStore(path):  # the operating system has released the lock of the killed process
                pass
            held.append(check_every_run(path))
    assert held == sorted(held), "no run was lost"
    assert held[-1] >= 4, "some kills came after whole runs"
    wanted = held[-1] + 3
    assert write(path, wanted) == 0
    assert check_every_run(path) == wanted
    with RunStore(path, read_only=True) as store:
        assert all(info.finished for info in store.runs())


def test_a_reader_opens_the_store_of_a_killed_writer(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    kill_at(path, 60)
    assert check_every_run(path) > 0


ORPHAN = """
import os, signal, sys
from turnout.store import RunStore
store = RunStore(sys.argv[1])
if os.fork() == 0:
    print(os.getpid(), flush=True)
signal.pause()
"""


def test_a_forked_child_does_not_keep_the_lock_of_its_killed_parent(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with subprocess.Popen([sys.executable, "-c", ORPHAN, str(path)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
        parent.wait()
        try:
            os.kill(child, 0)
            with RunStore(path) as store:
                assert store.runs() == []
        finally:
            os.kill(child, signal.SIGKILL)
