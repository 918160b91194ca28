"""Helpers that find the worker processes of learners among those of the test session."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from waiting import wait_until

#: For tests that train in forked processes: where torch sees a GPU, it refuses to after any gradient in the parent.
#: There, test_devices runs them in a process that sees none.
forking = pytest.mark.skipif(
    torch.cuda.is_available(), reason="torch refuses to train in forked processes where it sees a GPU"
)


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


def wait_until_gone(pids: Iterable[int]) -> None:
    """Wait until all of them have ended by themselves."""
    processes = list(pids)
    wait_until(lambda: all(map(gone, processes)), f"processes {processes} have ended")
