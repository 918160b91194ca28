"""A world whose clients follow recorded or generated traces."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from turnout.errors import SettingError, StateError
from turnout.kernel.arrays import MAX_TIME, FloatArray, IntArray, as_count, as_number, read_only, saved_value
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection
from turnout.lab.worlds.base import ColdStartWorld, check_choice, check_round
from turnout.lab.worlds.distributions import Draws, Quantity
from turnout.lab.worlds.traces.data import LinkTrace, PresenceTimes, Throughput, Traces
from turnout.lab.worlds.traces.formats.files import read_traces
from turnout.lab.worlds.traces.population import ASSUMPTION, build_population, make_generator

#: The longest credible mean transfer in one direction, in seconds; more indicates a wrong unit. A hundred times this
#: value in both directions is still a context that policies accept.
MAX_TRANSFER_SECONDS = 4e3
#: The last known throughput is the mean over this many seconds before the round.
MEMORY_SECONDS = 60.0


class TraceWorld(ColdStartWorld):
    """Clients with recorded availability, devices and links; parts that were not recorded are generated.

    exchange time = download + cold start + computing + upload. The duration of a transfer follows from the recorded
    throughput from the moment at which it starts. Computing takes samples · seconds per sample / free CPU, multiplied
    by log-normal noise of mean 1. A client that goes offline before its exchange is finished fails at that moment.
    contexts = [1/free_cpu, needs_cold_start, seconds of both transfers at the last known throughput], which a server
    knows before the selection.

    A client has the device and the link with its id if every client has one, else sampled ones. Its record repeats.

    With `clock` "period", round t starts at (t − 1) · `period` seconds of the trace, whatever the duration of the
    rounds. An offer is then a function of the seed and the round: every policy gets the same one, and requesting an
    offer in advance has no effect. With `clock` "rounds", a round starts when the previous one ends, or `period`
    seconds later if the previous one had no clients. Fast policies then see other moments than slow ones, the clock is
    part of `state`, and `offer` is valid for the next round only.

    Args:
        seed: The seed of all random numbers.
        traces: Trace files, or the result of read_traces.
        clients: The number of clients, sampled from the recorded ones; by default all of them, or 40 if availability is
            generated.
        least_availability: Clients that are available for a smaller share of the time are excluded.
        clock: "period" or "rounds", see above.
        period: The seconds between the starts of rounds.
        link_clock: "drawn": each round starts at a random position of the throughput series, because most series last
            minutes; "recorded": series and availability share one clock.
        samples: The number of samples that a client trains on per round.
        model_size: The size of the model in megabits, for each direction.
        free_cpu: The distribution of the free CPU, in cores; see turnout.lab.worlds.distributions.Quantity.
        cold_start: The additional seconds of a client that did not train in the previous round.
        noise_spread: The standard deviation of the logarithm of the computing time.
        deadline: The seconds after which a client is late; None waits for all clients.
        offline: The outcome of a client that goes offline: "failed", or "late" if the server does not notice and waits
            for the deadline.
        truth: Whether offers contain expected times. They are exact if the throughput is constant within a round, and
            ignore that clients may go offline.
        generator: Settings of the Generator of missing parts.
        fingerprint: If given, traces with another fingerprint are rejected.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        traces: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Traces | None = None,
        clients: int | None = None,
        least_availability: float = 0.0,
        clock: Literal["period", "rounds"] = "period",
        period: float = 600.0,
        link_clock: Literal["drawn", "recorded"] = "drawn",
        samples: int = 500,
        model_size: float = 20.0,
        free_cpu: Any = (0.25, 1.0),
        cold_start: float = 2.0,
        noise_spread: float = 0.3,
        deadline: float | None = None,
        offline: Literal["failed", "late"] = "failed",
        truth: bool = True,
        generator: Mapping[str, Any] | None = None,
        fingerprint: str | None = None,
    ) -> None:
        self.seed = as_count("seed", seed, SettingError, least=0)
        for name, value, allowed in (
            ("clock", clock, ("period", "rounds")),
            ("link_clock", link_clock, ("drawn", "recorded")),
            ("offline", offline, ("failed", "late")),
        ):
            check_choice(name, value, allowed)
        self._clock_follows_rounds = clock == "rounds"
        self._link_clock, self._offline_outcome, self._truth = link_clock, offline, truth
        self._period = as_number("period", period, SettingError, above=0, most=MAX_TIME)
        self._model_size = as_number("model_size", model_size, SettingError, above=0)
        self._cold_start = as_number("cold_start", cold_start, SettingError, least=0)
        self._noise_spread = as_number("noise_spread", noise_spread, SettingError, least=0, most=5)
        self._deadline = None if deadline is None else as_number("deadline", deadline, SettingError, above=0)
        if offline == "late" and deadline is None:
            raise SettingError(
                "offline='late' needs a deadline, because the server waits for it: give deadline in seconds"
            )
        recorded = _load_traces(traces)
        self.fingerprint = recorded.fingerprint
        if fingerprint is not None and fingerprint != self.fingerprint:
            raise SettingError(
                f"the traces have the fingerprint {self.fingerprint}, but fingerprint is {fingerprint!r}: "
                "give the files with that fingerprint"
            )
        least = as_number("least_availability", least_availability, SettingError, least=0, most=1)
        #: One row of each part per client, and how each part was assigned to the clients.
        self.traces, self.joined = build_population(recorded, seed, clients, least, make_generator(generator))
        availability, devices, links = self.traces.availability, self.traces.devices, self.traces.links
        assert availability is not None
        assert devices is not None
        assert links is not None
        super().__init__(len(availability.ids))
        self._shares = availability.shares
        self._presence = PresenceTimes(availability)
        self._down, self._up = Throughput(links, "down"), Throughput(links, "up")
        _reject_slow_links(links, self._down, self._up, self._model_size)
        self._down_spread = _log_spread(links.down_deviations, self._down)
        self._up_spread = _log_spread(links.up_deviations, self._up)
        self._first_times = links.times[links.ptr[:-1]]
        self._computing_seconds = as_count("samples", samples, SettingError) * devices.seconds_per_sample
        count = self._clients
        self._free_cpu = Quantity("free_cpu", free_cpu, seed, count)
        self._series_draws = Draws(seed, "place in the series", count)
        self._noise = Draws(seed, "noise", count, "normal")
        self._down_noise, self._up_noise = (
            Draws(seed, f"{direction}link", count, "normal") for direction in ("down", "up")
        )
        self._now = 0.0

    @property
    def availability(self) -> FloatArray:
        """The share of its record in which each client is available, (N,)."""
        shares: FloatArray = read_only(self._shares)
        return shares

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is assumed instead of measured, as sentences for reports."""
        methods = tuple(f"{part}: {method}" for part, method in self.joined.items())
        return (*methods, "free CPU: drawn", ASSUMPTION)

    def offer(self, round: int) -> RoundOffer:
        """Returns the clients that are available when the round starts, and their contexts."""
        check_round(round)
        start = self._start_of(round)
        rows = np.arange(self._clients)
        positions = self._series_positions(rows, round, start)
        contexts = np.empty((3, self._clients)).T
        contexts[:, 0] = 1 / self._free_cpu.at(round)
        contexts[:, 1] = ~self._trained
        contexts[:, 2] = self._known_transfer_seconds(rows, positions)
        expected = self._expected(rows, positions, contexts) if self._truth else None
        return RoundOffer.trusted(round, self._presence.available(start), contexts, expected)

    def play(self, offer: RoundOffer, selection: Selection) -> RoundReport:
        """Lets the selected clients exchange models, and reports their times and outcomes."""
        chosen = self._selected(offer, selection)
        start, contexts = self._start_of(offer.round), offer.contexts[chosen]
        times = self._exchange_times(chosen, offer.round, start, contexts)
        times, outcomes = self._outcomes(times, self._presence.remaining_seconds(chosen, start))
        self._set_trained(chosen[outcomes != "failed"])
        if (outcomes == "arrived").all():
            report = RoundReport.trusted(offer.round, chosen, contexts, times, offer.available)
        else:
            report = RoundReport(offer.round, chosen, contexts, times, offer.available, outcomes)
        if self._clock_follows_rounds:
            self._now = start + (report.duration or self._period)
        return report

    @property
    def idle_seconds(self) -> float:
        """The seconds after which a server looks again if no client is available: the setting `period`."""
        return self._period

    def set_clock(self, seconds: float) -> None:
        """Sets the time of the next offer, in seconds since the start; for turns without rounds.

        From then on, the settings `clock` and `period` determine no times any more.
        """
        self._clock_follows_rounds, self._now = True, seconds

    def state(self) -> dict[str, Any]:
        """Returns which clients trained in the last round, the clock, and the fingerprint of the traces."""
        return {**super().state(), "now": self._now, "traces": self.fingerprint}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores the state that `state` returned; rejects the state of a world with other traces."""
        if saved_value(state, "traces") != self.fingerprint:
            raise StateError(
                f"the run was started with traces of fingerprint {state['traces']}, but these have {self.fingerprint}: "
                "give the same files, or start a new run"
            )
        now = as_number("now", saved_value(state, "now"), StateError, least=0)
        super().restore(state)
        self._now = now

    def _start_of(self, round: int) -> float:
        return self._now if self._clock_follows_rounds else (round - 1) * self._period

    def _series_positions(self, rows: IntArray, round: int, start: float) -> FloatArray:
        if self._link_clock == "recorded":
            return start - self._first_times[rows]
        return self._series_draws.at(round)[rows] * self._down.lengths[rows]

    def _known_transfer_seconds(self, rows: IntArray, positions: FloatArray) -> FloatArray:
        """Returns the seconds of both transfers at the last known throughput, at least a hundredth of the mean."""
        seconds = np.zeros(len(rows))
        for direction in (self._down, self._up):
            known = np.maximum(direction.mean_before(rows, positions, MEMORY_SECONDS), direction.means[rows] / 100)
            seconds += self._model_size / known
        return seconds

    def _expected(self, rows: IntArray, positions: FloatArray, contexts: FloatArray) -> FloatArray:
        """Returns expected times; E[1/throughput] of a log-normal link is exp(spread²) divided by its mean."""
        slowdown = [np.exp(spread[rows] ** 2) for spread in (self._down_spread, self._up_spread)]
        return self._times(rows, positions, contexts, np.ones(len(rows)), slowdown)

    def _exchange_times(self, rows: IntArray, round: int, start: float, contexts: FloatArray) -> FloatArray:
        slowdown = [
            np.exp(-spread[rows] * draws.at(round)[rows] + spread[rows] ** 2 / 2)
            for spread, draws in ((self._down_spread, self._down_noise), (self._up_spread, self._up_noise))
        ]
        noise = np.exp(self._noise_spread * self._noise.at(round)[rows] - self._noise_spread**2 / 2)
        return self._times(rows, self._series_positions(rows, round, start), contexts, noise, slowdown)

    def _times(
        self,
        rows: IntArray,
        positions: FloatArray,
        contexts: FloatArray,
        noise: FloatArray,
        slowdown: Sequence[FloatArray],
    ) -> FloatArray:
        """Returns the total of download, cold start, computing and upload, which follow one another.

        Args:
            rows: The clients.
            positions: The positions in the throughput series at which the downloads start, in seconds.
            contexts: The contexts of the clients.
            noise: The factors on the computing times.
            slowdown: The factors on the times of downloads and of uploads.
        """
        downloaded = self._down.transfer_seconds(rows, positions, self._model_size * slowdown[0])
        computed = (
            downloaded + self._cold_start * contexts[:, 1] + self._computing_seconds[rows] * contexts[:, 0] * noise
        )
        uploaded = computed + self._up.transfer_seconds(rows, positions + computed, self._model_size * slowdown[1])
        return np.minimum(uploaded, MAX_TIME)

    def _outcomes(self, times: FloatArray, remaining_seconds: FloatArray) -> tuple[FloatArray, Any]:
        went_offline = remaining_seconds < times
        outcomes = np.full(len(times), "arrived", dtype="U7")
        if self._offline_outcome == "failed":
            outcomes[went_offline], times = "failed", np.minimum(times, remaining_seconds)
        else:
            times = np.where(went_offline, np.inf, times)
        if self._deadline is not None:
            outcomes[times > self._deadline] = "late"
            times = np.minimum(times, self._deadline)
        return times, outcomes


def _load_traces(traces: Any) -> Traces:
    if traces is None:
        return Traces()
    if isinstance(traces, Traces):
        return traces
    files = [traces] if isinstance(traces, str | os.PathLike) else traces
    if not isinstance(files, Sequence) or not all(isinstance(file, str | os.PathLike) for file in files):
        raise SettingError(f"traces must be trace files or the result of read_traces, not {traces!r}")
    return read_traces(*files) if files else Traces()


def _log_spread(deviations: FloatArray, direction: Throughput) -> FloatArray:
    """Returns the standard deviation of the logarithm of log-normal throughputs with these deviations."""
    return np.sqrt(np.log1p((deviations / direction.means) ** 2))


def _reject_slow_links(links: LinkTrace, down: Throughput, up: Throughput, model_size: float) -> None:
    slowest = np.minimum(down.means, up.means)
    seconds = model_size / slowest
    if seconds.max() > MAX_TRANSFER_SECONDS:
        worst = int(seconds.argmax())
        raise SettingError(
            f"a model of {model_size:g} megabits takes {seconds[worst]:.0f} s over the link {links.ids[worst]!r} of "
            f"{slowest[worst]:g} Mbps: more than {MAX_TRANSFER_SECONDS:g} s is not credible; check the units"
        )
