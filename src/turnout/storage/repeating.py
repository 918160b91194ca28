"""Repeats calls that were interrupted because the database of a fleet could not be reached."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from turnout.errors import InterruptedCallError, InterruptedGroupError
from turnout.log import get_log

log = get_log("turnout.live")
Result = TypeVar("Result")
#: The pauses before a call is repeated, in seconds; the store itself waits until it can connect again.
PAUSES = (0.05, 0.5, 2.0)


def repeat(call: Callable[[], Result]) -> Result:
    """Returns what a call returns, which must be one transaction; repeats it if nothing of it was stored."""
    for pause in PAUSES:
        try:
            return call()
        except InterruptedGroupError:
            raise
        except InterruptedCallError as error:
            log.warning("%s; it is repeated", error)
            time.sleep(pause)
    return call()
