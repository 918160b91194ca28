"""Clients as they were recorded, or drawn to be like them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal

import numpy as np

from turnout.errors import SelectionError, SettingError, StateError, suggestion
from turnout.kernel.arrays import (
    LARGEST_TIME,
    BoolArray,
    FloatArray,
    IntArray,
    as_count,
    as_number,
    load_array,
    read_only,
    saved,
)
from turnout.kernel.randomness import round_rng
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection
from turnout.simulator.distributions import Draws, Quantity
from turnout.simulator.traces.data import LinkTrace, Traces
from turnout.simulator.traces.formats.files import read_traces
from turnout.simulator.traces.generator import Generator
from turnout.simulator.traces.lookup import Presence, Throughput
from turnout.simulator.traces.summary import ASSUMPTION, named_alike

#: A link over which the model takes longer than this, one way and on average, is a mistake of units. A hundred times
#: it, both ways, is still a context that policies take.
LONGEST_TRANSFER = 4e3


class TraceWorld:
    """Clients with recorded availability, devices and links; what no trace tells is drawn by a Generator.

    exchange time = download + cold start + computing + upload. A transfer takes as long as the recorded throughput
    needs from the moment it begins; computing takes samples · seconds per sample / free CPU, times log-normal noise of
    mean 1. Who goes offline before it is done has failed at that moment. contexts = [1/free_cpu, needs_cold_start,
    seconds that both transfers would take at the last known throughput]: what a server knows before the choice.

    The clock: round t begins at `start` + (t − 1) · `period` seconds of the trace, however long rounds take, so that
    the fleet of a round is a function of the seed and the round, every policy meets the same one, and looking ahead
    changes nothing. With `clock` "rounds" a round begins when the one before is over (after one without clients,
    `period` seconds later): then fast policies meet other moments than slow ones, the clock is part of `state`, and
    `offer` is about the next round only.

    `traces`: files, or what read_traces gave. `clients`: so many of the recorded, drawn; all by default, or 40 if none
    are. Clients available less than `least_availability` of the time are left out. `join`: "ids" gives each client the
    device and link of the same id; "draw" draws them; "auto" does the first where every client has its id there.
    `after_end`: records begin again ("loop") or their clients are gone ("stop"). `link_clock`: "drawn", each round
    begins at a place of the series drawn anew, as most are minutes long; "recorded", series and availability share one
    clock. `samples`: a round and client. `model_size`: megabits, each way. `cold_start`: seconds, of who did not train
    in the round before. `noise_spread`: of the computing time. `memory`: the last known throughput is the mean of so
    many seconds before the round. `deadline`: who takes longer is late, None waits for all. `offline`: "failed", or
    "late": the server does not notice and waits for the deadline. `truth`: offer expected times; they are exact where
    throughput does not change within a round, and take no notice of going offline. `typical_seconds`: a sample on the
    device of the median score. `generator`: settings of the Generator. `fingerprint`: refuse other traces than those
    with it.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        traces: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Traces | None = None,
        clients: int | None = None,
        least_availability: float = 0.0,
        join: Literal["auto", "ids", "draw"] = "auto",
        after_end: Literal["loop", "stop"] = "loop",
        clock: Literal["period", "rounds"] = "period",
        start: float = 0.0,
        period: float = 600.0,
        link_clock: Literal["drawn", "recorded"] = "drawn",
        samples: int = 500,
        model_size: float = 20.0,
        free_cpu: Any = (0.25, 1.0),
        cold_start: float = 2.0,
        noise_spread: float = 0.3,
        memory: float = 60.0,
        deadline: float | None = None,
        offline: Literal["failed", "late"] = "failed",
        truth: bool = True,
        typical_seconds: float = 0.078,
        generator: Mapping[str, Any] | None = None,
        fingerprint: str | None = None,
    ) -> None:
        self.seed = as_count("seed", seed, SettingError, least=0)
        for name, value, allowed in (
            ("join", join, ("auto", "ids", "draw")),
            ("after_end", after_end, ("loop", "stop")),
            ("clock", clock, ("period", "rounds")),
            ("link_clock", link_clock, ("drawn", "recorded")),
            ("offline", offline, ("failed", "late")),
        ):
            if value not in allowed:
                raise SettingError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")
        self._by_rounds, self._link_clock, self._offline, self._truth = clock == "rounds", link_clock, offline, truth
        self._start = as_number("start", start, SettingError, least=0, most=LARGEST_TIME)
        self._period = as_number("period", period, SettingError, above=0, most=LARGEST_TIME)
        self._model_size = as_number("model_size", model_size, SettingError, above=0)
        self._cold_start = as_number("cold_start", cold_start, SettingError, least=0)
        self._noise_spread = as_number("noise_spread", noise_spread, SettingError, least=0, most=5)
        self._memory = as_number("memory", memory, SettingError, above=0)
        self._deadline = None if deadline is None else as_number("deadline", deadline, SettingError, above=0)
        if offline == "late" and deadline is None:
            raise SettingError("offline='late' waits for the deadline of the round: give a deadline, in seconds")
        recorded = _read(traces)
        self.fingerprint = recorded.fingerprint
        if fingerprint is not None and fingerprint != self.fingerprint:
            raise SettingError(f"the traces have the fingerprint {self.fingerprint}, expected is {fingerprint}")
        least = as_number("least_availability", least_availability, SettingError, least=0, most=1)
        #: What each client has, row by row, and how it came to it.
        self.traces, self.joined = _population(recorded, seed, clients, least, join, _generator(generator))
        availability, devices, links = self.traces.availability, self.traces.devices, self.traces.links
        assert availability is not None
        assert devices is not None
        assert links is not None
        self._clients = len(availability.ids)
        self._shares = availability.shares
        self._presence = Presence(availability, after_end)
        self._down, self._up = Throughput(links, "down"), Throughput(links, "up")
        _refuse_crawling(links, self._down, self._up, self._model_size)
        self._down_spread = _spread(links.down_deviations, self._down)
        self._up_spread = _spread(links.up_deviations, self._up)
        self._first_times = links.times[links.ptr[:-1]]
        typical = as_number("typical_seconds", typical_seconds, SettingError, above=0)
        self._work = as_count("samples", samples, SettingError) * devices.seconds_per_sample(typical)
        count = self._clients
        self._free_cpu = Quantity("free_cpu", free_cpu, seed, count)
        self._places = Draws(seed, "place in the series", count)
        self._noise = Draws(seed, "noise", count, "normal")
        self._down_noise, self._up_noise = (Draws(seed, f"{way}link", count, "normal") for way in ("down", "up"))
        self._trained: BoolArray = np.zeros(count, dtype=np.bool_)
        self._now = self._start

    @property
    def clients(self) -> int:
        """How many clients live here."""
        return self._clients

    @property
    def ids(self) -> tuple[str, ...]:
        """What the traces call them, row by row."""
        assert self.traces.availability is not None
        return self.traces.availability.ids

    @property
    def availability(self) -> FloatArray:
        """The share of its record that each client is available."""
        shares: FloatArray = read_only(self._shares)
        return shares

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is assumed and not measured, in words."""
        told = tuple(f"{part}: {way}" for part, way in self.joined.items())
        return (*told, "free CPU: drawn", ASSUMPTION)

    def offer(self, round: int) -> RoundOffer:
        """Who is available when the round begins, and in what condition."""
        if round < 1:
            raise SettingError(f"rounds count from 1, not {round}")
        start = self._begins(round)
        everyone = np.arange(self._clients)
        places = self._places_in_series(everyone, round, start)
        contexts = np.empty((3, self._clients)).T
        contexts[:, 0] = 1 / self._free_cpu.at(round)
        contexts[:, 1] = ~self._trained
        contexts[:, 2] = self._transfers_as_known(everyone, places)
        expected = self._expected(everyone, places, contexts) if self._truth else None
        return RoundOffer.trusted(round, self._presence.available(start), contexts, expected)

    def play(self, offer: RoundOffer, selection: Selection) -> RoundReport:
        """Let the chosen exchange models, and tell who came back, when, and who did not."""
        chosen = selection.clients
        if len(chosen) and (chosen.max() >= self._clients or not offer.available[chosen].all()):
            raise SelectionError(f"round {offer.round}: a chosen client is unknown or not available")
        start, contexts = self._begins(offer.round), offer.contexts[chosen]
        times = self._exchange_times(chosen, offer.round, start, contexts)
        times, outcomes = self._what_became(times, self._presence.stays(chosen, start))
        self._trained = np.zeros(self._clients, dtype=np.bool_)
        self._trained[chosen[outcomes != "failed"]] = True
        if (outcomes == "arrived").all():
            report = RoundReport.trusted(offer.round, chosen, contexts, times, offer.available)
        else:
            report = RoundReport(offer.round, chosen, contexts, times, offer.available, outcomes)
        if self._by_rounds:
            self._now = start + (report.duration or self._period)
        return report

    def state(self) -> dict[str, Any]:
        """Who trained in the last round, when the next begins where rounds set the clock, and of which traces."""
        return {"trained": self._trained.copy(), "now": self._now, "traces": self.fingerprint}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take it back; that of other traces is refused."""
        if saved(state, "traces") != self.fingerprint:
            raise StateError(
                f"the run was begun with traces of fingerprint {state['traces']}, these have {self.fingerprint}: give "
                "the same files, or begin anew"
            )
        now = as_number("now", saved(state, "now"), StateError, least=0)
        self._trained = load_array(state, "trained", self._trained)
        self._now = now

    def _begins(self, round: int) -> float:
        return self._now if self._by_rounds else self._start + (round - 1) * self._period

    def _places_in_series(self, rows: IntArray, round: int, start: float) -> FloatArray:
        if self._link_clock == "recorded":
            return start - self._first_times[rows]
        places: FloatArray = self._places.at(round)[rows] * self._down.lengths[rows]
        return places

    def _transfers_as_known(self, rows: IntArray, places: FloatArray) -> FloatArray:
        """Seconds both ways at the mean throughput of the last seconds; of a dead link, at a hundredth of its mean."""
        seconds = np.zeros(len(rows))
        for way in (self._down, self._up):
            known = np.maximum(way.mean_before(rows, places, self._memory), way.means[rows] / 100)
            seconds += self._model_size / known
        return seconds

    def _expected(self, rows: IntArray, places: FloatArray, contexts: FloatArray) -> FloatArray:
        """With the mean computing time; 1/throughput of a log-normal link is exp(spread²) of that of its mean."""
        slower = [np.exp(spread[rows] ** 2) for spread in (self._down_spread, self._up_spread)]
        return self._times(rows, places, contexts, np.ones(len(rows)), slower[0], slower[1])

    def _exchange_times(self, rows: IntArray, round: int, start: float, contexts: FloatArray) -> FloatArray:
        slower = [
            np.exp(-spread[rows] * draws.at(round)[rows] + spread[rows] ** 2 / 2)
            for spread, draws in ((self._down_spread, self._down_noise), (self._up_spread, self._up_noise))
        ]
        noise = np.exp(self._noise_spread * self._noise.at(round)[rows] - self._noise_spread**2 / 2)
        return self._times(rows, self._places_in_series(rows, round, start), contexts, noise, slower[0], slower[1])

    def _times(
        self,
        rows: IntArray,
        places: FloatArray,
        contexts: FloatArray,
        noise: FloatArray,
        slower_down: FloatArray,
        slower_up: FloatArray,
    ) -> FloatArray:
        """Download, cold start, computing and upload, one after the other."""
        downloaded = self._down.seconds(rows, places, self._model_size * slower_down)
        computed = downloaded + self._cold_start * contexts[:, 1] + self._work[rows] * contexts[:, 0] * noise
        uploaded = computed + self._up.seconds(rows, places + computed, self._model_size * slower_up)
        return np.minimum(uploaded, LARGEST_TIME)

    def _what_became(self, times: FloatArray, stays: FloatArray) -> tuple[FloatArray, Any]:
        left = stays < times
        outcomes = np.full(len(times), "arrived", dtype="U7")
        if self._offline == "failed":
            outcomes[left], times = "failed", np.minimum(times, stays)
        else:
            times = np.where(left, np.inf, times)
        if self._deadline is not None:
            outcomes[times > self._deadline] = "late"
            times = np.minimum(times, self._deadline)
        return times, outcomes


def _read(traces: Any) -> Traces:
    if traces is None:
        return Traces()
    if isinstance(traces, Traces):
        return traces
    files = [traces] if isinstance(traces, str | os.PathLike) else traces
    if not isinstance(files, Sequence) or not all(isinstance(one, str | os.PathLike) for one in files):
        raise SettingError(f"traces must be files or what read_traces gave, not {traces!r}")
    return read_traces(*files) if files else Traces()


def _generator(settings: Mapping[str, Any] | None) -> Generator:
    known = [one.name for one in fields(Generator)]
    if not isinstance(settings or {}, Mapping):
        raise SettingError(f"generator must be a table, not {settings!r}")
    for name in settings or {}:
        if name not in known:
            raise SettingError(
                f"the generator has no setting {name!r}{suggestion(name, known)}; it has {', '.join(known)}"
            )
    return Generator(**(settings or {}))


def _population(
    recorded: Traces, seed: int, clients: int | None, least: float, join: str, generator: Generator
) -> tuple[Traces, dict[str, str]]:
    """One row of each part a client, and how each part came to the clients."""
    wanted = None if clients is None else as_count("clients", clients, SettingError)
    trace = recorded.availability
    if trace is None:
        trace = generator.availability_trace(wanted or 40, seed)
    rows = np.flatnonzero(trace.shares >= least)
    if not len(rows):
        raise SettingError(f"no client is available {least:g} of the time: lower least_availability")
    if recorded.availability is not None and wanted is not None:
        if wanted > len(rows):
            raise SettingError(f"there are records of {len(rows)} clients, but {wanted} are wanted: none is used twice")
        rows = np.sort(round_rng(seed, "recorded clients", 0).choice(rows, wanted, replace=False))
    trace = trace.take(rows)
    devices, by_device = _joined("devices", recorded.devices, trace.ids, seed, join)
    links, by_link = _joined("links", recorded.links, trace.ids, seed, join)
    count = len(trace.ids)
    together = Traces(
        trace,
        generator.device_trace(count, seed) if devices is None else devices,
        generator.link_trace(count, seed) if links is None else links,
    )
    of_clients = "generated" if recorded.availability is None else "recorded"
    return together, {"availability": of_clients, "devices": by_device, "links": by_link}


def _joined(name: str, part: Any, clients: Sequence[str], seed: int, join: str) -> tuple[Any, str]:
    """The row of each client: by its id, or drawn with replacement."""
    if part is None:
        return None, "generated"
    alike = named_alike(clients, part.ids)
    if join == "ids" and not alike:
        missing = next(one for one in clients if one not in set(part.ids))
        raise SettingError(f"join='ids': {name} has no client {missing!r}; use join='draw', or name the clients alike")
    if alike and join != "draw":
        row_of = {one: row for row, one in enumerate(part.ids)}
        return part.take(np.array([row_of[one] for one in clients])), "by id"
    drawn = round_rng(seed, f"recorded {name}", 0).integers(0, len(part.ids), len(clients))
    return part.take(drawn), f"drawn from {len(part.ids)}"


def _spread(deviations: FloatArray, way: Throughput) -> FloatArray:
    """Of the logarithm of a throughput with these deviations."""
    spread: FloatArray = np.sqrt(np.log1p((deviations / way.means) ** 2))
    return spread


def _refuse_crawling(links: LinkTrace, down: Throughput, up: Throughput, model_size: float) -> None:
    slowest = np.minimum(down.means, up.means)
    seconds = model_size / slowest
    if seconds.max() > LONGEST_TRANSFER:
        worst = int(seconds.argmax())
        raise SettingError(
            f"a model of {model_size:g} megabits takes {seconds[worst]:.0f} s over the link {links.ids[worst]!r} of "
            f"{slowest[worst]:g} Mbps: more than {LONGEST_TRANSFER:g} s is not credible; is a unit wrong?"
        )
