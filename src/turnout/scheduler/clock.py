"""The two clocks: the monotonic one measures, the wall clock is for people."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path


def now() -> str:
    """The wall clock, for people; nothing is computed from it as long as the machine is not started anew."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def boot_id() -> str:
    """Tells whether the monotonic clock has begun anew; empty where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def seconds_since(monotonic: float, boot: str, wall: str) -> float:
    """Seconds since a moment: by the monotonic clock, or by the wall clock if the machine was started anew since."""
    if boot and boot == boot_id():
        return max(time.monotonic() - monotonic, 0.0)
    return max((datetime.now(UTC) - datetime.fromisoformat(wall)).total_seconds(), 0.0)
