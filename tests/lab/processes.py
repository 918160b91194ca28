"""The processes of learners, told from those that others of this test session have."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable
from pathlib import Path

from waiting import wait_until


def trainers() -> set[int]:
    """Processes that train for us now; those of joblib, which stay for the next sweep, are not among them."""
    children = multiprocessing.active_children()
    return {child.pid for child in children if child.pid is not None and child.name.startswith("ForkProcess")}


def gone(pid: int) -> bool:
    """Whether this process has ended; one that nobody has fetched yet has, too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until_gone(pids: Iterable[int]) -> None:
    """Wait until all of them have ended by themselves."""
    processes = list(pids)
    wait_until(lambda: all(map(gone, processes)), f"processes {processes} have ended")
