"""The one way in which tests wait: for a condition, never for a length of time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")

#: Seconds after which a condition counts as never met. It bounds a hanging test and decides no verdict on speed: it is
#: far longer than anything takes on a machine that is busy with other work.
LONGEST_WAIT = 300.0


def wait_until(condition: Callable[[], Found], what: str = "the awaited condition") -> Found:
    """Call `condition` until it returns something true, and return that."""
    end = time.monotonic() + LONGEST_WAIT
    while not (found := condition()):
        assert time.monotonic() < end, f"{what} did not hold within {LONGEST_WAIT:g} s"
        time.sleep(0.01)
    return found
