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

from turnout.scheduler import Scheduler

if TYPE_CHECKING:
    from adapters.flower.in_process import Clock

if importlib.util.find_spec("flwr") is None:
    collect_ignore_glob = ["*.py"]

FLEET: dict[str, Any] = {"settings": {"cohort_size": 2, "guaranteed_rate": 0.1}, "deadline": 10.0}


class OpenFleet(Protocol):
    """Opens a fleet in the test's folder, once more with the settings it has."""

    def __call__(self, name: str = "fleet.turnout", **settings: Any) -> Scheduler: ...


@pytest.fixture
def open_fleet(folder: Path) -> Iterator[OpenFleet]:
    with ExitStack() as opened:

        def open_(name: str = "fleet.turnout", **settings: Any) -> Scheduler:
            path = folder / name
            given = settings if path.exists() else {**FLEET, **settings}
            return opened.enter_context(Scheduler.open(path, **given))

        yield open_


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Waiting costs nothing: sleeping moves the clock."""
    from adapters.flower.in_process import Clock

    moved = Clock()
    monkeypatch.setattr(time, "monotonic", moved.monotonic)
    monkeypatch.setattr(time, "sleep", moved.sleep)
    return moved


@pytest.fixture(autouse=True)
def _no_psutil(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients measure the same whatever is installed; a test of psutil brings a stand-in for it."""
    monkeypatch.setitem(sys.modules, "psutil", None)


@pytest.fixture(autouse=True)
def _flower_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Flower would sleep until more nodes are there, a test fails instead of hanging."""

    def sleep(seconds: float) -> None:
        raise AssertionError(f"Flower waits for nodes, {seconds} s at a time")

    monkeypatch.setattr("flwr.serverapp.strategy.strategy_utils.sleep", sleep)


@pytest.fixture(autouse=True)
def _flower_does_not_tidy_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of its strategies collect garbage after every array, which takes longer than all else here."""
    from flwr.app import ArrayRecord

    monkeypatch.setattr(sys.modules[ArrayRecord.__module__], "gc", SimpleNamespace(collect=lambda: 0))


@pytest.fixture(autouse=True, scope="session")
def _flower_is_quiet() -> Iterator[None]:
    """Its log reaches caplog all the same."""
    logger = logging.getLogger("flwr")
    handlers, logger.handlers = logger.handlers, []
    yield
    logger.handlers = handlers
