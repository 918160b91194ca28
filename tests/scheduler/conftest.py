from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from scheduler.fleets import LIVE, OpenFleet
from turnout.scheduler import Scheduler


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where there is such a place: a killed process loses nothing there that it would not lose on a disk."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with TemporaryDirectory(dir=memory) as name:
        yield Path(name)


@pytest.fixture
def open_fleet(folder: Path) -> Iterator[OpenFleet]:
    """Opens fleets, a new one with a small cohort and a deadline, and closes them after the test."""
    with ExitStack() as opened:

        def open_(name: str | Path = "fleet.turnout", **settings: Any) -> Scheduler:
            path = folder / name
            given = settings if path.exists() else {**LIVE, **settings}
            return opened.enter_context(Scheduler.open(path, **given))

        yield open_
