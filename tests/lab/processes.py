"""The processes of learners, told from those that others of this test session have."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterable
from pathlib import Path


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


def all_gone_soon(pids: Iterable[int]) -> bool:
    """Whether all of them end, without anybody's doing."""
    left, patience = set(pids), time.monotonic() + 20
    while left and time.monotonic() < patience:
        left = {pid for pid in left if not gone(pid)}
        time.sleep(0.02)
    return not left
