"""Clocks: the monotonic clock measures durations, the wall clock dates records."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path


def now() -> str:
    """Returns the time of the wall clock in UTC, in ISO format; durations are not computed from it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def boot_id() -> str:
    """Returns an id that changes when the machine restarts, and its monotonic clock with it; empty if unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def seconds_since(monotonic: float, boot: str, wall: str) -> float:
    """Returns the seconds since a moment, by the wall clock only if the machine was restarted since.

    Args:
        monotonic: The monotonic clock at that moment.
        boot: The boot id at that moment.
        wall: The wall clock at that moment, in ISO format.
    """
    if boot and boot == boot_id():
        return max(time.monotonic() - monotonic, 0.0)
    return max((datetime.now(UTC) - datetime.fromisoformat(wall)).total_seconds(), 0.0)
