from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

# A busy machine is no reason for a verdict.
hypothesis_settings.register_profile("turnout", deadline=None, suppress_health_check=[HealthCheck.too_slow])
hypothesis_settings.load_profile("turnout")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record-traces",
        action="store_true",
        help="write what every policy chooses now as what it should choose; look at the diff before you commit it",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first, so that nobody waits for them at the end."""
    items.sort(key=lambda item: not item.path.name.startswith("test_flower_examples"))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where there is such a place: a killed process loses nothing there that it would not lose on a disk."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with TemporaryDirectory(dir=memory) as name:
        yield Path(name)
