from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from benchmarks.browser import Browser, Page


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with Browser() as opened:
        yield opened


@pytest.fixture(scope="session")
def empty_page(browser: Browser) -> Iterator[Page]:
    """Returns a page that the tests use one after another, with `used`: each new page starts a process."""
    with closing(browser.page()) as page:
        yield page
