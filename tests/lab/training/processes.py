"""Helpers that find the worker processes of learners among those of the test session."""

from __future__ import annotations

import multiprocessing

import pytest
import torch

#: For tests that train in forked processes: where torch sees a GPU, it refuses to after any gradient in the parent.
#: There, test_devices runs them in a process that sees none.
forking = pytest.mark.skipif(
    torch.cuda.is_available(), reason="torch refuses to train in forked processes where it sees a GPU"
)


def trainers() -> set[int]:
    """Returns the process ids of running training workers; joblib's workers, which are reused, are not included."""
    children = multiprocessing.active_children()
    return {child.pid for child in children if child.pid is not None and child.name.startswith("ForkProcess")}
