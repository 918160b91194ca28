"""Which task starts next, if tasks are continued by others, and what happens if workers die."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from turnout.errors import ClusterError
from turnout.lab.runs import executors
from turnout.lab.runs.executors import MOST_REPEATS, JoblibExecutor, TaskQueue, ignored_interrupts


def test_without_continuations_all_tasks_start_at_once() -> None:
    queue: TaskQueue[str, int] = TaskQueue(["a", "b", "c"], None)
    assert queue.take(0, lambda: 1) == [(0, "a"), (1, "b"), (2, "c")]
    queue.ended(0, 5)
    assert queue.take(2, lambda: 1) == []


def test_a_task_that_is_continued_comes_before_those_that_have_not_started() -> None:
    queue: TaskQueue[str, int] = TaskQueue(["a", "b", "c"], lambda index, result: f"{index} again" if result else None)
    assert queue.take(0, lambda: 2) == [(0, "a"), (1, "b")]
    queue.ended(1, 1)
    assert queue.take(1, lambda: 2) == [(1, "1 again")]
    queue.ended(1, 0)
    assert queue.take(1, lambda: 2) == [(2, "c")]
    queue.ended(0, 0)
    queue.ended(2, 0)
    assert queue.take(0, lambda: 2) == []


def test_one_task_starts_even_if_no_worker_is_known() -> None:
    queue: TaskQueue[str, int] = TaskQueue(["a", "b"], lambda *_: None)
    assert queue.take(0, lambda: 0) == [(0, "a")]


def die(folder: Path) -> None:
    """Ends the process without a result."""
    (folder / str(os.getpid())).touch()
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("repeats", [0, pytest.param(MOST_REPEATS, marks=pytest.mark.thorough)])
def test_a_task_whose_workers_always_die_starts_again_a_few_times_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repeats: int
) -> None:
    monkeypatch.setattr(executors, "MOST_REPEATS", repeats)
    with pytest.raises(ClusterError, match=f"worker processes died {repeats + 1} times in a row, and no run was"):
        list(JoblibExecutor(2).run(die, [tmp_path]))
    assert len(list(tmp_path.iterdir())) == repeats + 1


def test_interrupts_are_ignored_in_the_main_thread_only() -> None:
    def read() -> None:
        with ignored_interrupts():
            found.append(signal.getsignal(signal.SIGINT))

    found: list[object] = []
    before = signal.getsignal(signal.SIGINT)
    other = threading.Thread(target=read)
    other.start()
    other.join()
    read()
    assert found == [before, signal.SIG_IGN]
    assert signal.getsignal(signal.SIGINT) is before
