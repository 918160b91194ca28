"""Helpers that find the worker processes of learners among those of the test session."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterable
from pathlib import Path


def trainers() -> set[int]:
    """Returns the process ids of running training workers; joblib's workers, which are reused, are not included."""
    children = multiprocessing.active_children()
    return {child.pid for child in children if child.pid is not None and child.name.startswith("ForkProcess")}


def gone(pid: int) -> bool:
    """Returns whether this process has ended; a zombie counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def all_gone_soon(pids: Iterable[int]) -> bool:
    """Waits until all these processes have ended; returns False if one is still running after 20 seconds."""
    remaining, deadline = set(pids), time.monotonic() + 20
    while remaining and time.monotonic() < deadline:
        remaining = {pid for pid in remaining if not gone(pid)}
        time.sleep(0.02)
    return not remaining
