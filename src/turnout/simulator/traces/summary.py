"""What traces show, in numbers; and what is assumed where they are joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from turnout.kernel.arrays import FloatArray
from turnout.simulator.traces.data import DAY, AvailabilityTrace, DeviceTrace, LinkTrace, Traces, owners

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
ASSUMPTION = (
    "who has which device and which link is a modelling assumption unless the same clients were measured: say so "
    "wherever results are shown"
)


def summary(traces: Traces) -> dict[str, Any]:
    """Counts, coverage, availability and its daily rhythm, speed and bandwidth, as plain numbers."""
    told: dict[str, Any] = {"fingerprint": traces.fingerprint}
    if traces.availability is not None:
        told["availability"] = _availability(traces.availability)
    if traces.devices is not None:
        told["devices"] = _devices(traces.devices)
    if traces.links is not None:
        told["links"] = _links(traces.links)
    return {**told, "joined": joining(traces), "assumption": ASSUMPTION}


def joining(traces: Traces) -> dict[str, str]:
    """How a world would join devices and links to the clients, of its own accord."""
    clients = None if traces.availability is None else traces.availability.ids
    ways = {}
    for name in ("devices", "links"):
        part = getattr(traces, name)
        if part is None:
            ways[name] = "generated"
        else:
            ways[name] = "by id" if clients is not None and named_alike(clients, part.ids) else "drawn"
    return {"availability": "generated" if clients is None else "recorded", **ways}


def named_alike(clients: Sequence[str], others: Sequence[str]) -> bool:
    """Does each of the clients stand among the others?"""
    return set(clients) <= set(others)


def daily_rhythm(trace: AvailabilityTrace) -> FloatArray:
    """The share of clients available in each hour of the day, (24,), where the clock begins at midnight."""

    def until(moments: FloatArray, hour: int) -> FloatArray:
        """How much of this hour of the day has passed until then, in seconds."""
        today = np.clip(np.mod(moments, DAY) - 3600 * hour, 0, 3600)
        passed: FloatArray = 3600 * np.floor(moments / DAY) + today
        return passed

    there = np.array([(until(trace.stops, hour) - until(trace.starts, hour)).sum() for hour in range(24)])
    recorded = np.array([until(trace.ends, hour).sum() for hour in range(24)])
    shares: FloatArray = np.divide(there, recorded, out=np.full(24, np.nan), where=recorded > 0)
    return shares


def _availability(trace: AvailabilityTrace) -> dict[str, Any]:
    shares, lengths = trace.shares, trace.stops - trace.starts
    days = float(trace.ends.sum() / DAY)
    return {
        "clients": len(trace.ids),
        "intervals": len(trace.starts),
        "days": {"shortest": float(trace.ends.min() / DAY), "longest": float(trace.ends.max() / DAY)},
        "mean": float(shares.mean()),
        "shares": _quantiles(shares),
        "never": int((shares == 0).sum()),
        "always": int((shares == 1).sum()),
        "sessions_a_day": len(lengths) / days,
        "session_seconds": _quantiles(lengths),
        "by_hour": [None if np.isnan(share) else float(share) for share in daily_rhythm(trace)],
    }


def _devices(trace: DeviceTrace) -> dict[str, Any]:
    return {
        "devices": len(trace.ids),
        "unit": trace.unit,
        "mean": float(trace.values.mean()),
        "values": _quantiles(trace.values),
    }


def _links(trace: LinkTrace) -> dict[str, Any]:
    counts = np.diff(trace.ptr)
    deviating = (counts == 1) & ((trace.down_deviations > 0) | (trace.up_deviations > 0))
    down, up, steps = trace.means(trace.down), trace.means(trace.up), trace.steps
    within = np.sqrt(np.maximum(trace.means((trace.down - down[owners(trace.ptr)]) ** 2), 0.0))
    spread = np.where(counts > 1, within, trace.down_deviations) / down
    series = owners(trace.ptr)[np.repeat(counts > 1, counts)]
    in_series = steps[np.isin(owners(trace.ptr), series)]
    still = steps[(trace.down == 0) & np.repeat(counts > 1, counts)].sum()
    return {
        "links": len(trace.ids),
        "constant": int(((counts == 1) & ~deviating).sum()),
        "mean_and_deviation": int(deviating.sum()),
        "series": int((counts > 1).sum()),
        "hours_of_series": float(in_series.sum() / 3600),
        "share_of_time_at_zero": float(still / in_series.sum()) if len(in_series) else 0.0,
        "down_mbps": _quantiles(down),
        "up_mbps": _quantiles(up),
        "relative_deviation": _quantiles(spread),
    }


def _quantiles(values: FloatArray) -> dict[str, float | None]:
    if not len(values):
        return {f"{share:g}": None for share in QUANTILES}
    return dict(zip([f"{share:g}" for share in QUANTILES], np.quantile(values, QUANTILES).tolist(), strict=True))
