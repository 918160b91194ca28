"""Fixtures of the tests of the service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from service.forked import Forker


@pytest.fixture(scope="session")
def forker() -> Iterator[Forker]:
    """The process from which services are forked."""
    with closing(Forker()) as process:
        yield process
