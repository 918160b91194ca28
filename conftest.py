"""Makes the collection of the tests faster, which every worker of pytest-xdist repeats.

Doctests are looked for only in modules that contain one: pytest would inspect every class of every module. And the
garbage collector neither runs while everything is imported, nor looks at all of that again during the tests.
"""

from __future__ import annotations

import gc
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


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collects the tests without the garbage collector."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
