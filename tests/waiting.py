"""Waiting in tests: for a condition, never for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

Result = TypeVar("Result")

#: The timeout in seconds. It only ends a hanging test: it is far longer than anything takes, even on a busy machine.
MAX_WAIT = 300.0
#: The pause between two calls of a condition grows from one to the other.
MIN_PAUSE, MAX_PAUSE = 0.01, 0.05


def wait_until(condition: Callable[[], Result], description: str = "the condition") -> Result:
    """Calls `condition` until it returns a true value, and returns that value."""
    end, pause = time.monotonic() + MAX_WAIT, MIN_PAUSE
    while not (result := condition()):
        assert time.monotonic() < end, f"{description} did not hold within {MAX_WAIT:g} s"
        time.sleep(pause)
        pause = min(1.3 * pause, MAX_PAUSE)  # a condition may cost as much as what it waits for
    return result


def gone(pid: int) -> bool:
    """Returns whether this process has ended; a zombie counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until_gone(pids: Iterable[int]) -> None:
    """Wait until all of them have ended by themselves."""
    processes = list(pids)
    wait_until(lambda: all(map(gone, processes)), f"processes {processes} have ended")
