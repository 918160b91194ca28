"""Doctests are looked for only in modules that contain one: pytest would inspect every class of every module."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from _pytest.doctest import DoctestModule


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(
    file_path: Path,
) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Leaves out the doctests of a file without any."""
    collectors = yield
    if not any(isinstance(collector, DoctestModule) for collector in collectors) or b">>>" in file_path.read_bytes():
        return collectors
    return [collector for collector in collectors if not isinstance(collector, DoctestModule)]
