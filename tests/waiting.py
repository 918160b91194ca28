"""Waiting in tests: for a condition, never for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

#: The timeout in seconds. It only ends a hanging test: it is far longer than anything takes, even on a busy machine.
LONGEST_WAIT = 300.0


def wait_until(condition: Callable[[], Result], description: str = "the condition") -> Result:
    """Calls `condition` until it returns a true value, and returns that value."""
    end = time.monotonic() + LONGEST_WAIT
    while not (result := condition()):
        assert time.monotonic() < end, f"{description} did not hold within {LONGEST_WAIT:g} s"
        time.sleep(0.01)
    return result
