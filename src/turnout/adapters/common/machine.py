"""Measures the free cores and the bandwidth of a client's machine without waiting."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

MIN_CPU = 0.05  # in cores: a fully loaded machine is slow, but still available
UNKNOWN_BANDWIDTH = 1.0
MIN_INTERVAL = 0.1  # seconds: over a shorter interval the counters of the system are too coarse


@dataclass(frozen=True, slots=True)
class CpuSample:
    """The CPU seconds that were used up to a moment: by all programs of the machine, and by this one."""

    moment: float
    all_programs: float
    this_program: float

    def busy_since(self, earlier: CpuSample) -> float:
        """Returns the mean number of cores that other programs used between two samples."""
        used = (self.all_programs - earlier.all_programs) - (self.this_program - earlier.this_program)
        return max(used / (self.moment - earlier.moment), 0.0)


_samples: list[CpuSample] = []  # the last sample, if there is one


def start_measuring() -> None:
    """Takes the first sample, so that the first status already covers an interval: that of the first training."""
    psutil = _psutil()
    if psutil is not None and not _samples:
        _samples.append(_sample(psutil))


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
        earlier, now = (_samples[-1] if _samples else None), _sample(psutil)
        if earlier is None or now.moment - earlier.moment >= MIN_INTERVAL:
            _samples[:] = [now]
        if earlier is not None and now.moment - earlier.moment >= MIN_INTERVAL:
            return now.busy_since(earlier)
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def _sample(psutil: Any) -> CpuSample:
    times = psutil.cpu_times()._asdict()
    idle = times["idle"] + times.get("iowait", 0.0)
    guests = times.get("guest", 0.0) + times.get("guest_nice", 0.0)  # already part of user and nice
    return CpuSample(time.monotonic(), sum(times.values()) - guests - idle, sum(os.times()[:4]))


def _psutil() -> Any:
    """Returns the module psutil, or None if it is not installed."""
    try:
        import psutil  # type: ignore[import-untyped,unused-ignore]
    except ModuleNotFoundError:
        return None
    return psutil
