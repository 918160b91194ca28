"""Timing on a machine with other load: tasks are measured in turns, so that load affects all of them alike."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence


def interleaved(tasks: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Returns the median CPU seconds of each task after one warm-up run, measured in turns."""
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
    """Returns the median wall-clock seconds of each task, measured in turns; the first turn is a warm-up."""
    seconds: list[list[float]] = [[] for _ in tasks]
    for repeat in range(repeats + 1):
        for index, task in enumerate(tasks):
            start = time.perf_counter()
            task()
            if repeat:
                seconds[index].append(time.perf_counter() - start)
    return [statistics.median(times) for times in seconds]


def import_seconds(modules: tuple[str, ...], repeats: int) -> dict[str, float]:
    """Returns the median CPU seconds of importing each module in a new interpreter, without its start-up.

    On Windows, where the CPU time of other processes is unknown, wall-clock seconds take their place.
    """
    # Installed packages have compiled byte code, so it must be written for ours too.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}

    def measure(statement: str) -> Callable[[], float]:
        def run() -> float:
            before = _children_seconds()
            subprocess.run([sys.executable, "-c", statement], check=True, env=environment)
            return _children_seconds() - before

        return run

    runs = {"": measure("pass"), **{module: measure(f"import {module}") for module in modules}}
    seconds: dict[str, list[float]] = {module: [] for module in runs}
    for _ in range(repeats + 1):
        for module, run in runs.items():
            seconds[module].append(run())
    medians = {module: statistics.median(times[1:]) for module, times in seconds.items()}
    return {module: medians[module] - medians[""] for module in modules}


def _children_seconds() -> float:
    try:
        import resource
    except ImportError:
        return time.perf_counter()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def stop_server(process: subprocess.Popen[str]) -> None:
    """Ends a server as Ctrl-C does, and waits for it; on Windows, which sends no such signal, it is terminated."""
    if sys.platform == "win32":
        process.terminate()
    else:
        process.send_signal(signal.SIGINT)
    process.wait()
