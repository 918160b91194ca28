"""Which task starts next, if tasks are continued by others."""

from __future__ import annotations

from turnout.simulator.executors import TaskQueue


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
