"""A generator of synthetic traces with the published statistics of recorded ones."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray, as_count, as_number
from turnout.kernel.randomness import round_rng
from turnout.lab.worlds.traces.data import DAY, AvailabilityTrace, DeviceTrace, LinkTrace, Traces, merge_intervals


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
        hours: FloatArray = np.interp(rng.random(count), cumulative, grid)
        return hours


def _ids(clients: int) -> tuple[str, ...]:
    return tuple(f"generated-{number}" for number in range(clients))
