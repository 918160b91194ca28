"""Measuring on a machine that others use too."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence


def interleaved(tasks: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median CPU seconds of each task, taken in turns so that a busy moment hits all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for task in tasks.values():
        task()
    for _ in range(repeats):
        for name, task in tasks.items():
            start = time.thread_time()
            task()
            seconds[name].append(time.thread_time() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def in_turns(tasks: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Median wall seconds of each task, taken in turns; the first turn does not count."""
    seconds: list[list[float]] = [[] for _ in tasks]
    for repeat in range(repeats + 1):
        for place, task in enumerate(tasks):
            start = time.perf_counter()
            task()
            if repeat:
                seconds[place].append(time.perf_counter() - start)
    return [statistics.median(times) for times in seconds]


def import_seconds(modules: tuple[str, ...], repeats: int) -> dict[str, float]:
    """Median CPU seconds that a fresh interpreter takes to import each module, its own start taken off."""
    # As installed packages are, ours is measured with its byte code in place.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}

    def importing(statement: str) -> Callable[[], float]:
        def run() -> float:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, "-c", statement], check=True, env=environment)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)

        return run

    runs = {"": importing("pass"), **{module: importing(f"import {module}") for module in modules}}
    seconds: dict[str, list[float]] = {module: [] for module in runs}
    for _ in range(repeats + 1):
        for module, run in runs.items():
            seconds[module].append(run())
    medians = {module: statistics.median(times[1:]) for module, times in seconds.items()}
    return {module: medians[module] - medians[""] for module in modules}
