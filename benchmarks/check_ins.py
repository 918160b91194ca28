"""Devices that check in by themselves, against a server that gives its slots to those that come first."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol
from unittest.mock import patch

import numpy as np

from turnout import ClientStatus, GivenTurn, Scheduler, Selection, Wait
from turnout.lab import PaperWorld

#: The seconds in which all devices check in first, and the mean seconds from a result to the next check-in.
START, PAUSE = 60.0, 20.0
#: The part of the turns at the beginning that the figures leave out.
WARM_UP = 0.1
#: When the simulated time begins, by the wall clock.
BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
#: The size of the model, in the unit of the bandwidth per second.
MODEL_SIZE = 20.0


class Server(Protocol):
    """What a device talks to."""

    def check_in(self, client: str, status: ClientStatus | None = None) -> GivenTurn | Wait: ...

    def report(self, client: str | int, seconds: float | None = None) -> bool: ...


class FirstCome:
    """A server that gives a free slot to the device that comes first; the others wait as in `ServerPace.plain_wait`.

    Args:
        slots: The number of slots.
        clients: The number of devices.
        time: The simulated clock.
    """

    def __init__(self, slots: int, clients: int, time: Clock) -> None:
        self._slots, self._clients, self._time = slots, clients, time
        self._given = 0
        self._under_way: dict[int, str] = {}
        self._recent: deque[float] = deque(maxlen=50)

    def check_in(self, client: str, status: ClientStatus | None = None) -> GivenTurn | Wait:  # noqa: ARG002
        """Gives a turn if a slot is free."""
        if len(self._under_way) < self._slots:
            self._given += 1
            self._recent.append(self._time.now)
            self._under_way[self._given] = client
            return GivenTurn(self._given, client, None)
        span = self._time.now - self._recent[0]
        return Wait(self._clients * span / (8 * len(self._recent)) if span else 1.0, "all slots are in use")

    def report(self, client: str | int, seconds: float | None = None) -> bool:  # noqa: ARG002
        """Frees the slot."""
        assert isinstance(client, int)
        del self._under_way[client]
        return True


@dataclass(slots=True)
class Clock:
    """The simulated time in seconds."""

    now: float = 0.0


@dataclass(frozen=True, slots=True)
class CheckInFigures:
    """What happened, without the beginning.

    Attributes:
        updates_per_second: The turns that ended per second.
        calls_per_turn: How often devices called the server for each turn.
        largest_shortfall: How many turns any device was ever behind its promise, at any time; NaN without a promise.
        fewest_turns: The smallest number of turns of a device, as a part of the mean.
        collected_after: The mean seconds from the decision to the call with which the device got its turn.
    """

    updates_per_second: float
    calls_per_turn: float
    largest_shortfall: float
    fewest_turns: float
    collected_after: float


def play_devices(
    server: Server,
    time: Clock,
    *,
    devices: int,
    turns: int,
    seed: int = 0,
    judge: Scheduler | None = None,
    connected: bool = False,
) -> CheckInFigures:
    """Simulates devices of the paper's four classes until this many turns have ended.

    Args:
        server: The server.
        time: The clock, which follows the events.
        devices: The number of devices.
        turns: The number of turns.
        seed: The seed of all random numbers.
        judge: The scheduler whose certificate is read after every decision, if there is one.
        connected: Whether devices stay connected while their check-ins are kept, so that the server can send them a
            turn as soon as another one has ended. Otherwise they get it when they check in again.
    """
    rng = np.random.default_rng(seed)
    world = PaperWorld(seed=seed, clients=devices, availability=1.0, model_size=MODEL_SIZE)
    events = list[tuple[float, int, int]]()  # when, which device, and which turn ends; a check-in has turn −1
    next_call = rng.uniform(0, START, devices).tolist()
    for row, at in enumerate(next_call):
        heapq.heappush(events, (at, row, -1))

    def call_at(row: int, at: float) -> None:
        next_call[row] = at
        heapq.heappush(events, (at, row, -1))

    counts = np.zeros(devices, dtype=np.int64)
    seconds_of, decided, delays = dict[int, float](), dict[int, float](), list[float]()
    ended, calls, shortfall, last = 0, 0, -np.inf, 0
    began = (0.0, 0, 0)
    while ended < turns:
        time.now, row, turn = heapq.heappop(events)
        if turn >= 0:
            server.report(turn, seconds_of.pop(turn))
            ended += 1
            if ended == int(WARM_UP * turns):
                began = (time.now, ended, calls)
            call_at(row, time.now + float(rng.exponential(PAUSE)))
            for given in judge.fill([]) if connected and judge is not None else ():
                call_at(int(given.client[1:]), time.now)
            continue
        if next_call[row] != time.now:
            continue  # the device was sent a turn before
        calls += 1
        offer = world.offer(calls)
        context = offer.contexts[row]
        answer = server.check_in(f"d{row}", ClientStatus(1 / float(context[0]), MODEL_SIZE / float(context[2])))
        if judge is not None and judge.round > last:
            decided |= dict.fromkeys(range(last + 1, judge.round + 1), time.now)
            last = judge.round
            shortfall = max(shortfall, float(judge.certificate().behind.max()))
        if isinstance(answer, Wait):
            call_at(row, time.now + answer.seconds)
            continue
        delays.append(time.now - decided.pop(answer.id, time.now))
        counts[row] += 1
        played = world.play(offer, Selection(offer.round, np.array([row]), {}))
        seconds_of[answer.id] = float(played.exchange_times[0])
        heapq.heappush(events, (time.now + seconds_of[answer.id], row, answer.id))
    span, done = time.now - began[0], ended - began[1]
    return CheckInFigures(
        updates_per_second=done / span,
        calls_per_turn=(calls - began[2]) / done,
        largest_shortfall=shortfall if judge is not None else float("nan"),
        fewest_turns=float(counts.min() / counts.mean()),
        collected_after=float(np.mean(delays)),
    )


@contextmanager
def simulated_clock() -> Iterator[Clock]:
    """Replaces the clocks by which schedulers give turns: the monotonic one, and the wall clock."""
    time = Clock()
    with (
        patch("turnout.live.clock.monotonic_seconds", lambda: time.now),
        patch("turnout.live.clock.now", lambda: (BEGINNING + timedelta(seconds=time.now)).isoformat()),
    ):
        yield time


def check_in_fleet(
    folder: Path,
    *,
    devices: int = 200,
    slots: int = 8,
    turns: int = 3000,
    share: float = 0.75,
    ttl: float = 5.0,
    connected: bool = False,
) -> tuple[CheckInFigures, CheckInFigures]:
    """Returns the figures of a scheduler, and of a server that gives its slots to those that come first.

    Args:
        folder: Where the file of the fleet is written.
        devices: The number of devices.
        slots: The number of slots.
        turns: The number of turns.
        share: The guaranteed part of an equal share of the turns.
        ttl: The seconds for which a check-in is kept.
        connected: Whether devices stay connected for that time.
    """
    settings = {"guaranteed_rate": f"{round(share * 1000)}/{1000 * devices}", "tolerance": 1.0, "paid": "chosen"}
    with (
        simulated_clock() as time,
        Scheduler.open(folder / "devices.turnout", concurrency=slots, status_ttl=ttl, settings=settings) as scheduler,
    ):
        own = play_devices(scheduler, time, devices=devices, turns=turns, judge=scheduler, connected=connected)
    time = Clock()
    first = FirstCome(slots, devices, time)
    return own, play_devices(first, time, devices=devices, turns=turns)
