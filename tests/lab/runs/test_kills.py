"""Committed rounds survive kill -9, and a resumed run equals the uninterrupted one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from killing import environment
from lab.runs.restless_writer import CHUNK, ROUNDS, Game
from turnout.kernel.rounds import RoundRecord
from turnout.lab import RunStore

WRITER = Path(__file__).with_name("restless_writer.py")


class Writer:
    """The restless writer as a process that executes orders."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def write(self, path: Path, runs: int, **death: int) -> int:
        """Writes up to so many runs, or is killed before its write `die_at`; returns the exit code."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"path": str(path), "runs": runs, **death}) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def kill_at(self, path: Path, moment: int) -> None:
        """Writes runs until it is killed."""
        assert self.write(path, 10**9, die_at=moment) == -signal.SIGKILL


@pytest.fixture(scope="module")
def writer() -> Iterator[Writer]:
    with subprocess.Popen(
        [sys.executable, str(WRITER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
    ) as process:
        yield Writer(process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait() == 0


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


def test_nothing_that_was_committed_is_lost_to_kill_9(folder: Path, writer: Writer) -> None:
    """Killed while it creates the file, while it opens it, in the middle of a run, and between runs."""
    path, held = folder / "runs.db", [0]
    for moment in (1, 2, 3, 5, 8, 14, 23, 40, 61, 97, 150, 4, 7, 33):
        writer.kill_at(path, moment)
        if path.exists():
            with RunStore(path):  # the operating system has released the lock of the killed process
                pass
            held.append(check_every_run(path))
    assert held == sorted(held), "no run was lost"
    assert held[-1] >= 4, "some kills came after whole runs"
    wanted = held[-1] + 3
    assert writer.write(path, wanted) == 0
    assert check_every_run(path) == wanted
    with RunStore(path, read_only=True) as store:
        assert all(info.finished for info in store.runs())


def test_a_reader_opens_the_store_of_a_killed_writer(folder: Path, writer: Writer) -> None:
    path = folder / "runs.db"
    writer.kill_at(path, 60)
    assert check_every_run(path) > 0


ORPHAN = """
import os, signal, sys
from turnout.lab import RunStore
store = RunStore(sys.argv[1])
if os.fork() == 0:
    print(os.getpid(), flush=True)
signal.pause()
"""


def test_a_forked_child_does_not_keep_the_lock_of_its_killed_parent(folder: Path) -> None:
    path = folder / "runs.db"
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
