from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from turnout.bench.live import UNSAVED_ROUNDS, LiveFigures, Seconds, measure_live

FIGURES = LiveFigures(
    clients=10,
    cohort=1,
    register=Seconds(5.0, 9.0),
    live_seconds=0.2,
    kernel_seconds=0.1,
    partial_live_seconds=0.4,
    partial_kernel_seconds=0.2,
    snapshot=Seconds(1.0, 9.0),
    open=Seconds(2.0, 9.0),
    unsaved_rounds=49,
    forget_start=Seconds(1.0, 9.0),
    forget_step=Seconds(0.5, 9.0),
    forget_steps=4,
    file_bytes=1000,
    reports_a_second=1000.0,
)


def test_a_live_fleet_is_measured_and_leaves_nothing_behind(tmp_path: Path) -> None:
    steps: list[str] = []
    figures = measure_live(clients=2000, cohort=10, repeats=1, folder=tmp_path, watch=steps.append)
    assert (figures.clients, figures.cohort, figures.unsaved_rounds) == (2000, 10, UNSAVED_ROUNDS)
    tasks = (figures.register, figures.snapshot, figures.open, figures.forget_start, figures.forget_step)
    assert min(min(task.cpu, task.wall) for task in tasks) > 0
    assert min(figures.live_seconds, figures.kernel_seconds, figures.reports_a_second) > 0
    assert figures.partial_ratio == figures.partial_live_seconds / figures.partial_kernel_seconds
    assert figures.ratio == figures.live_seconds / figures.kernel_seconds
    assert figures.forget_steps > 1
    assert figures.file_bytes > 2000
    assert steps == [
        "registering clients",
        "playing rounds",
        "writing snapshots",
        "opening the file",
        "forgetting clients",
        "reporting in batches",
    ]
    assert list(tmp_path.iterdir()) == []


def test_cpu_times_are_compared_with_the_targets() -> None:
    assert all(verdict.met for verdict in FIGURES.verdicts())


@pytest.mark.parametrize("task", ["register", "snapshot", "open", "forget_start", "forget_step"])
def test_each_task_has_a_target_that_can_be_missed(task: str) -> None:
    changed: dict[str, Any] = {task: Seconds(getattr(FIGURES, task).cpu + 0.01, 0.1)}
    slower = replace(FIGURES, **changed)
    assert sum(not verdict.met for verdict in slower.verdicts()) == 1


def test_the_ratio_of_rounds_has_a_target_that_can_be_missed() -> None:
    slower = replace(FIGURES, live_seconds=0.21)
    assert [verdict.figure for verdict in slower.verdicts() if not verdict.met] == [pytest.approx(2.1)]


def test_the_best_and_the_longest_times_are_taken_for_cpu_and_wall_clock_separately() -> None:
    times = [Seconds(1.0, 4.0), Seconds(2.0, 3.0)]
    assert Seconds.best(times) == Seconds(1.0, 3.0)
    assert Seconds.longest(times) == Seconds(2.0, 4.0)
    assert Seconds.longest([]) == Seconds(0.0, 0.0)
