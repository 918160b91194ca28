from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from benchmarks.browser import Browser, Page


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    """Returns a folder for the stores that the tests of a module share, in memory if possible."""
    with TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        yield Path(name)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with Browser() as opened:
        yield opened


@pytest.fixture(scope="session")
def empty_page(browser: Browser) -> Iterator[Page]:
    """Returns a page that the tests use one after another, with `used`: each new page starts a process."""
    with closing(browser.page()) as page:
        yield page
