"""The clients of a world with traces: recorded parts, joined by id or at random, generated ones, and statistics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from turnout.errors import SettingError, suggestion
from turnout.kernel.arrays import MAX_CLIENTS, FloatArray, as_count, as_number
from turnout.kernel.randomness import round_rng
from turnout.lab.worlds.traces.data import (
    DAY,
    AvailabilityTrace,
    DeviceTrace,
    LinkTrace,
    Traces,
    merge_intervals,
    row_owners,
)

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


@dataclass(frozen=True, slots=True)
class Generator:
    """Generates clients that resemble those of recorded traces; every number is a setting.

    Availability: each client has its own share, Beta(2, ·)-distributed around `availability`. Its sessions start at
    random, more often at `peak_hour` and less often half a day later (by ± `rhythm`, shifted by some hours per client).
    Their duration is log-normal with the mean `session_minutes` and the spread `session_spread`. A client is available
    during its sessions.

    Devices: the seconds per sample lie between `fastest` and `slowest` and have the mean `mean_seconds`.

    Links: the bandwidth is log-normal over the clients, the uplink has about 0.7 of it, and both vary between exchanges
    with a standard deviation of `bandwidth_deviation` times their mean.

    The defaults follow the phones of FLASH and FedScale: available for 16 to 20 % of the time, four sessions a day with
    a mean of one hour and a median of ten minutes, 15 to 199 ms per sample with mean 78, and a median of 14 Mbps.
    """

    availability: float = 0.18
    days: int = 7
    rhythm: float = 0.5
    peak_hour: float = 2.0
    session_minutes: float = 60.0
    session_spread: float = 1.9
    fastest: float = 0.015
    mean_seconds: float = 0.078
    slowest: float = 0.199
    bandwidth: float = 14.0
    bandwidth_spread: float = 1.0
    bandwidth_deviation: float = 0.4

    def __post_init__(self) -> None:
        as_number("availability", self.availability, SettingError, above=0, most=0.95)
        as_count("days", self.days, SettingError)
        as_number("rhythm", self.rhythm, SettingError, least=0, most=1)
        as_number("peak_hour", self.peak_hour, SettingError, least=0, most=24)
        as_number("session_minutes", self.session_minutes, SettingError, above=0)
        as_number("session_spread", self.session_spread, SettingError, least=0, most=5)
        as_number("fastest", self.fastest, SettingError, above=0)
        as_number("mean_seconds", self.mean_seconds, SettingError, above=self.fastest)
        as_number("slowest", self.slowest, SettingError, above=self.mean_seconds)
        as_number("bandwidth", self.bandwidth, SettingError, least=0.1)
        as_number("bandwidth_spread", self.bandwidth_spread, SettingError, least=0, most=3)
        as_number("bandwidth_deviation", self.bandwidth_deviation, SettingError, least=0, most=10)

    def traces(self, clients: int, seed: int = 0) -> Traces:
        """Generates all three parts for the same clients."""
        return Traces(
            self.availability_trace(clients, seed), self.device_trace(clients, seed), self.link_trace(clients, seed)
        )

    def availability_trace(self, clients: int, seed: int = 0) -> AvailabilityTrace:
        """Generates sessions that start as a Poisson process.

        With rate r and mean duration d, the sessions cover 1 − exp(−r·d) of the time.
        """
        rng = round_rng(seed, "generated availability", 0)
        length = self.days * DAY
        shares = np.minimum(rng.beta(2.0, 2 / self.availability - 2, clients), 0.98)
        sessions = np.maximum(rng.poisson(-np.log1p(-shares) * length / (60 * self.session_minutes)), 1)
        owner = np.repeat(np.arange(clients), sessions)
        hours = self.peak_hour + rng.normal(0.0, 2.0, clients)[owner] + 24 * self._hours_from_peak(rng, len(owner))
        starts = DAY * rng.integers(0, self.days, len(owner)) + np.mod(hours, 24) * 3600
        median = 60 * self.session_minutes * math.exp(-(self.session_spread**2) / 2)
        lengths = median * np.exp(self.session_spread * rng.standard_normal(len(owner)))
        starts = np.minimum(np.floor(starts), length - 1)
        stops = np.minimum(np.ceil(starts + lengths), starts + length)
        # A session that passes the end of the record continues at its beginning, because records repeat.
        wraps = stops > length
        ptr, starts, stops = merge_intervals(
            np.concatenate([owner, owner[wraps]]),
            np.concatenate([starts, np.zeros(wraps.sum())]),
            np.concatenate([np.minimum(stops, length), stops[wraps] - length]),
            clients,
        )
        return AvailabilityTrace(_ids(clients), ptr, starts, stops, np.full(clients, length))

    def device_trace(self, clients: int, seed: int = 0) -> DeviceTrace:
        """Generates the seconds per sample, Beta-distributed between the fastest and the slowest."""
        rng = round_rng(seed, "generated devices", 0)
        median = (self.mean_seconds - self.fastest) / (self.slowest - self.fastest)
        values = rng.beta(3.8 * median, 3.8 * (1 - median), clients)
        return DeviceTrace(_ids(clients), self.fastest + (self.slowest - self.fastest) * values)

    def link_trace(self, clients: int, seed: int = 0) -> LinkTrace:
        """Generates the means and standard deviations of the throughputs, in Mbps."""
        rng = round_rng(seed, "generated links", 0)
        down = np.maximum(self.bandwidth * np.exp(self.bandwidth_spread * rng.standard_normal(clients)), 0.05)
        up = np.maximum(0.7 * down * np.exp(0.5 * rng.standard_normal(clients)), 0.05)
        deviation = self.bandwidth_deviation
        return LinkTrace(
            _ids(clients),
            np.arange(clients + 1),
            np.zeros(clients),
            down,
            up,
            np.ones(clients),
            deviation * down,
            deviation * up,
        )

    def _hours_from_peak(self, rng: np.random.Generator, count: int) -> FloatArray:
        """Draws offsets from the peak as shares of a day, with density 1 + rhythm · cos 2πx."""
        grid = np.linspace(0.0, 1.0, 1441)
        cumulative = grid + self.rhythm * np.sin(2 * math.pi * grid) / (2 * math.pi)
        return np.interp(rng.random(count), cumulative, grid)


def _ids(clients: int) -> tuple[str, ...]:
    return tuple(f"generated-{number}" for number in range(clients))


def make_generator(settings: Mapping[str, Any] | None) -> Generator:
    """Returns a generator of the parts that were not recorded, with these settings."""
    known = [setting.name for setting in fields(Generator)]
    if not isinstance(settings or {}, Mapping):
        raise SettingError(f"generator must be a mapping from settings to values, not {settings!r}")
    for name in settings or {}:
        if name not in known:
            raise SettingError(
                f"the generator has no setting {name!r}{suggestion(name, known)}; its settings are {', '.join(known)}"
            )
    return Generator(**(settings or {}))


def build_population(
    recorded: Traces, seed: int, clients: int | None, least: float, generator: Generator
) -> tuple[Traces, dict[str, str]]:
    """Returns one row of each part per client, and how each part was assigned to the clients.

    Args:
        recorded: The recorded parts.
        seed: The seed of the samples and of the generated parts.
        clients: The number of clients, or None for all.
        least: The smallest availability of a client.
        generator: The generator of missing parts.
    """
    requested = None if clients is None else as_count("clients", clients, SettingError, most=MAX_CLIENTS)
    trace = recorded.availability
    if trace is None:
        trace = generator.availability_trace(requested or 40, seed)
    rows = np.flatnonzero(trace.shares >= least)
    if not len(rows):
        raise SettingError(f"no client is available for a share of {least:g} of the time: lower least_availability")
    if recorded.availability is not None and requested is not None:
        if requested > len(rows):
            raise SettingError(
                f"clients must be at most {len(rows)}, the number of recorded clients that qualify, not {requested}"
            )
        rows = np.sort(round_rng(seed, "recorded clients", 0).choice(rows, requested, replace=False))
    trace = trace.take(rows)
    devices, device_method = _join_part("devices", recorded.devices, trace.ids, seed)
    links, link_method = _join_part("links", recorded.links, trace.ids, seed)
    count = len(trace.ids)
    traces = Traces(
        trace,
        generator.device_trace(count, seed) if devices is None else devices,
        generator.link_trace(count, seed) if links is None else links,
    )
    availability_method = "generated" if recorded.availability is None else "recorded"
    return traces, {"availability": availability_method, "devices": device_method, "links": link_method}


def _join_part(name: str, part: Any, clients: Sequence[str], seed: int) -> tuple[Any, str]:
    """Returns one row of the part per client, by id if all have one, else sampled with replacement, and the method."""
    if part is None:
        return None, "generated"
    if covers_ids(clients, part.ids):
        row_of = {client: row for row, client in enumerate(part.ids)}
        return part.take(np.array([row_of[client] for client in clients])), "by id"
    rows = round_rng(seed, f"recorded {name}", 0).integers(0, len(part.ids), len(clients))
    return part.take(rows), f"drawn from {len(part.ids)}"
