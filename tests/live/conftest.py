from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from live.fleets import LIVE, OpenFleet
from live.serving import Server, running_server
from turnout.live import Scheduler
from turnout.storage.files import database


@pytest.fixture(scope="module", autouse=True)
def unsynced() -> Iterator[None]:
    """Flushes no commit to disk in this process: what a killed process has written is in the page cache anyway."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "_sync_every_commit", lambda db: db.execute("PRAGMA synchronous = OFF"))
        yield


@pytest.fixture
def open_fleet(folder: Path) -> Iterator[OpenFleet]:
    """Opens fleets and closes them after the test; new fleets have a small cohort and a deadline."""
    with ExitStack() as opened:

        def open_(name: str | Path = "fleet.turnout", **settings: Any) -> Scheduler:
            path = folder / name
            options = settings if path.exists() else {**LIVE, **settings}
            return opened.enter_context(Scheduler.open(path, **options))

        yield open_


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A process that plays a scripted fleet, and can be killed at any write."""
    with running_server() as started:
        yield started
