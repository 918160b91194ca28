from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from adapters.nvflare.in_process import Clock, Job

if importlib.util.find_spec("nvflare") is None:
    collect_ignore = [path.name for path in Path(__file__).parent.glob("*") if path.name != "test_installed.py"]


class MakeJob(Protocol):
    """Makes a job with scripted clients: what each does with its n-th task."""

    def __call__(self, **work: Any) -> Job: ...


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Replaces the real clock: `time.sleep` lets the clients act and advances `time.time` and `time.monotonic`."""
    from adapters.nvflare.in_process import Clock, patch_clock

    fake = Clock()
    patch_clock(fake, monkeypatch.setattr)
    return fake


@pytest.fixture
def make_job(clock: Clock) -> MakeJob:
    from adapters.nvflare.in_process import Job

    return lambda **work: Job(clock, work)


@pytest.fixture
def fleet(folder: Path) -> str:
    """The path of a new fleet."""
    return str(folder / "fleet.turnout")
