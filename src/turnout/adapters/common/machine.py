"""Measures the free cores and the bandwidth of a client's machine without waiting."""

from __future__ import annotations

import os
import time
from typing import Any

MIN_CPU = 0.05  # in cores: a fully loaded machine is slow, but still available
UNKNOWN_BANDWIDTH = 1.0
MIN_INTERVAL = 0.1  # seconds: over a shorter interval the counters of the system are too coarse


#: The last sample: its time by the monotonic clock, and the CPU seconds that other programs had used until then.
_samples: list[tuple[float, float]] = []


def start_measuring() -> None:
    """Takes the first sample, so that the first status already covers an interval: that of the first training."""
    if not _samples:
        free_cpu()


def free_cpu() -> float:
    """Returns the number of cores that other programs leave free.

    With psutil, it is the mean since the last call or `start_measuring`. If that is less than 0.1 s ago, or without
    psutil, the load average of the last minute is used, which includes this program; all cores are free if the system
    has none.
    """
    cores = float(os.cpu_count() or 1)
    return max(cores - _busy_cores(), MIN_CPU)


def bandwidth() -> float:
    """Returns the speed of the fastest network interface in Mbit/s, or 1 if it is unknown."""
    psutil = _psutil()
    if psutil is None:
        return UNKNOWN_BANDWIDTH
    interfaces = psutil.net_if_stats().items()
    speeds = [stats.speed for name, stats in interfaces if stats.isup and not name.startswith("lo")]
    return float(max(speeds, default=0) or UNKNOWN_BANDWIDTH)


def _busy_cores() -> float:
    psutil = _psutil()
    if psutil is not None:
        now = _sample(psutil)
        earlier = _samples[0] if _samples else now
        seconds = now[0] - earlier[0]
        if earlier is now or seconds >= MIN_INTERVAL:
            _samples[:] = [now]
        if seconds >= MIN_INTERVAL:
            return max((now[1] - earlier[1]) / seconds, 0.0)
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def _sample(psutil: Any) -> tuple[float, float]:
    times = psutil.cpu_times()._asdict()
    idle = times["idle"] + times.get("iowait", 0.0)
    guests = times.get("guest", 0.0) + times.get("guest_nice", 0.0)  # already part of user and nice
    return time.monotonic(), sum(times.values()) - guests - idle - sum(os.times()[:4])


def _psutil() -> Any:
    """Returns the module psutil, or None if it is not installed."""
    try:
        import psutil  # type: ignore[import-untyped,unused-ignore]
    except ModuleNotFoundError:
        return None
    return psutil
