"""Summary statistics of traces, and the way in which their parts are joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from turnout.kernel.arrays import FloatArray
from turnout.lab.worlds.traces.data import DAY, AvailabilityTrace, DeviceTrace, LinkTrace, Traces, row_owners

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
ASSUMPTION = (
    "the assignment of devices and links to clients is a modelling assumption unless the same clients were measured: "
    "state it wherever results are shown"
)


def summarise_traces(traces: Traces) -> dict[str, Any]:
    """Returns counts, coverage, availability and its daily cycle, speeds and bandwidths as plain numbers."""
    result: dict[str, Any] = {"fingerprint": traces.fingerprint}
    if traces.availability is not None:
        result["availability"] = _availability(traces.availability)
    if traces.devices is not None:
        result["devices"] = _devices(traces.devices)
    if traces.links is not None:
        result["links"] = _links(traces.links)
    return {**result, "joined": join_methods(traces), "assumption": ASSUMPTION}


def join_methods(traces: Traces) -> dict[str, str]:
    """Returns how a world with default settings assigns devices and links to the clients."""
    clients = None if traces.availability is None else traces.availability.ids
    parts = {"devices": traces.devices, "links": traces.links}
    methods = {
        name: "generated" if part is None else "by id" if clients and covers_ids(clients, part.ids) else "drawn"
        for name, part in parts.items()
    }
    return {"availability": "generated" if clients is None else "recorded", **methods}


def covers_ids(clients: Sequence[str], ids: Sequence[str]) -> bool:
    """Returns whether every client has an entry among `ids`."""
    return set(clients) <= set(ids)


def daily_rhythm(trace: AvailabilityTrace) -> FloatArray:
    """Returns the share of clients available in each hour of the day, (24,), if time 0 is midnight."""

    def seconds_until(moments: FloatArray, hour: int) -> FloatArray:
        """Returns how many seconds of this hour of the day have passed until each moment."""
        today = np.clip(np.mod(moments, DAY) - 3600 * hour, 0, 3600)
        passed: FloatArray = 3600 * np.floor(moments / DAY) + today
        return passed

    available = np.array(
        [(seconds_until(trace.stops, hour) - seconds_until(trace.starts, hour)).sum() for hour in range(24)]
    )
    recorded = np.array([seconds_until(trace.ends, hour).sum() for hour in range(24)])
    shares: FloatArray = np.divide(available, recorded, out=np.full(24, np.nan), where=recorded > 0)
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
    deviations = np.sqrt(np.maximum(trace.means((trace.down - down[row_owners(trace.ptr)]) ** 2), 0.0))
    spread = np.where(counts > 1, deviations, trace.down_deviations) / down
    in_series = np.repeat(counts > 1, counts)
    seconds, seconds_at_zero = steps[in_series].sum(), steps[in_series & (trace.down == 0)].sum()
    return {
        "links": len(trace.ids),
        "constant": int(((counts == 1) & ~deviating).sum()),
        "mean_and_deviation": int(deviating.sum()),
        "series": int((counts > 1).sum()),
        "hours_of_series": float(seconds / 3600),
        "share_of_time_at_zero": float(seconds_at_zero / seconds) if in_series.any() else 0.0,
        "down_mbps": _quantiles(down),
        "up_mbps": _quantiles(up),
        "relative_deviation": _quantiles(spread),
    }


def _quantiles(values: FloatArray) -> dict[str, float | None]:
    if not len(values):
        return {f"{share:g}": None for share in QUANTILES}
    return dict(zip([f"{share:g}" for share in QUANTILES], np.quantile(values, QUANTILES).tolist(), strict=True))
