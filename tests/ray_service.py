"""Starts programs that start Ray, which reports now and then that it did not come up if the machine is very busy."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

#: What a program prints as soon as Ray runs, followed by anything it has to say about it.
IS_UP = "Ray is up:"
#: How often a program is started whose Ray does not come up.
STARTS = 4


def environment() -> Mapping[str, str]:
    """Returns environment variables with which Ray waits for its processes, and does not end them to save memory."""
    patient = {
        "RAY_raylet_start_wait_time_s": "300",
        "RAY_agent_register_timeout_ms": "300000",
        "RAY_memory_monitor_refresh_ms": "0",
    }
    return {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", **patient}


@contextmanager
def started(start: Callable[[], subprocess.Popen[str]]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Starts a program until its Ray is up; yields the process and what it printed about Ray, and ends it at last.

    Only the start is repeated: a program that ends, or fails, after Ray has come up is not started again.
    """
    output = ""
    for _ in range(STARTS):
        process = start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                output += line
                if line.startswith(IS_UP):
                    yield process, line.removeprefix(IS_UP).strip()
                    return
        finally:
            process.terminate()
            process.wait()
            for stream in filter(None, (process.stdin, process.stdout)):
                stream.close()
    raise AssertionError(f"Ray was started {STARTS} times, and did not come up:\n{output}")
