from __future__ import annotations

import importlib.util
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from turnout.live import Scheduler

if TYPE_CHECKING:
    from adapters.flower.in_process import Clock

if importlib.util.find_spec("flwr") is None:
    collect_ignore_glob = ["*.py"]

FLEET: dict[str, Any] = {"settings": {"cohort_size": 2, "guaranteed_rate": 0.1}, "deadline": 10.0}


class OpenFleet(Protocol):
    """Opens a fleet in the test's folder; an existing fleet keeps its settings."""

    def __call__(self, name: str = "fleet.turnout", **settings: Any) -> Scheduler: ...


@pytest.fixture
def open_fleet(folder: Path) -> Iterator[OpenFleet]:
    with ExitStack() as opened:

        def open_(name: str = "fleet.turnout", **settings: Any) -> Scheduler:
            path = folder / name
            options = settings if path.exists() else {**FLEET, **settings}
            return opened.enter_context(Scheduler.open(path, **options))

        yield open_


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Replaces the real clock: `time.sleep` returns at once and advances `time.monotonic`."""
    from adapters.flower.in_process import Clock

    fake = Clock()
    monkeypatch.setattr(time, "monotonic", fake.monotonic)
    monkeypatch.setattr(time, "sleep", fake.sleep)
    return fake


@pytest.fixture(autouse=True)
def _no_psutil(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients measure the same whatever is installed; a test of psutil brings a stand-in for it."""
    monkeypatch.setitem(sys.modules, "psutil", None)


@pytest.fixture(autouse=True)
def _flower_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Flower would sleep until more nodes are there, a test fails instead of hanging."""

    def sleep(seconds: float) -> None:
        raise AssertionError(f"Flower waits {seconds} s for more nodes")

    monkeypatch.setattr("flwr.serverapp.strategy.strategy_utils.sleep", sleep)


@pytest.fixture(autouse=True)
def _no_garbage_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disables the garbage collection that some strategies run after each array, which dominates the run time."""
    from flwr.app import ArrayRecord

    monkeypatch.setattr(sys.modules[ArrayRecord.__module__], "gc", SimpleNamespace(collect=lambda: 0))


@pytest.fixture(autouse=True, scope="session")
def _no_log_output() -> Iterator[None]:
    """Removes Flower's log handlers; caplog still receives its records."""
    logger = logging.getLogger("flwr")
    handlers, logger.handlers = logger.handlers, []
    yield
    logger.handlers = handlers
