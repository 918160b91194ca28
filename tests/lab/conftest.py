from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from turnout.lab import RunStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def store(path: Path) -> Iterator[RunStore]:
    """Returns a new store at the path."""
    with RunStore(path) as opened:
        yield opened
