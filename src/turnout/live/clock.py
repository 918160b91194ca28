"""Clocks: the monotonic clock measures durations, the wall clock dates records."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

#: The longest time that is believed to pass between a selection and the restart of the machine, in seconds: a year.
MAX_RESTART = 366 * 86400.0


def now() -> str:
    """Returns the time of the wall clock in UTC, in ISO format; durations are not computed from it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def wall_seconds(wall: str) -> float:
    """Returns a time of the wall clock in ISO format as seconds since 1970."""
    return datetime.fromisoformat(wall).timestamp()


def moment_after(wall: str | None, seconds: float | None) -> str | None:
    """Returns the time of the wall clock so many seconds after a moment, both in ISO format; None if one is None.

    >>> moment_after("2026-11-16T17:27:29.915+00:00", 60.0)
    '2026-11-16T17:28:29.915+00:00'
    """
    if wall is None or seconds is None:
        return None
    return (datetime.fromisoformat(wall) + timedelta(seconds=seconds)).isoformat(timespec="milliseconds")


def monotonic_seconds() -> float:
    """Returns the seconds of the monotonic clock. Callers look it up in this module, so that tests can replace it."""
    return time.monotonic()


@cache
def boot_id() -> str:
    """Returns an id that changes when the machine restarts, and its monotonic clock with it; empty if unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def seconds_since(monotonic: float, boot: str, wall: str) -> float:
    """Returns the seconds since a moment, by the wall clock only if the machine was restarted since; NaN if unknown.

    The wall clock is not believed if it says that the moment is in the future or more than a year ago: it was set
    wrongly, then or now.

    Args:
        monotonic: The monotonic clock at that moment.
        boot: The boot id at that moment.
        wall: The wall clock at that moment, in ISO format.
    """
    if boot and boot == boot_id():
        return max(monotonic_seconds() - monotonic, 0.0)
    seconds = (datetime.now(UTC) - datetime.fromisoformat(wall)).total_seconds()
    return seconds if 0.0 <= seconds <= MAX_RESTART else math.nan
