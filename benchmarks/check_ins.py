"""Devices that check in by themselves, against a server that gives its slots to those that come first."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated
from unittest.mock import patch

import numpy as np
import typer

from benchmarks.harness import Result
from turnout import ClientStatus, RunningTurn, Scheduler, Selection, Wait
from turnout.lab import PaperWorld

#: The seconds in which all devices check in first, and the mean seconds from a result to the next check-in.
START, PAUSE = 60.0, 20.0
#: The part of the turns at the beginning that the figures leave out.
WARM_UP = 0.1
#: When the simulated time begins, by the wall clock.
BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
#: The size of the model, in the unit of the bandwidth per second.
MODEL_SIZE = 20.0


def check_ins(
    devices: Annotated[int, typer.Option(min=1, help="Number of devices.")] = 200,
    slots: Annotated[int, typer.Option(min=1, help="Number of slots.")] = 8,
    turns: Annotated[int, typer.Option(min=10, help="Number of turns.")] = 1800,
    ttl: Annotated[float, typer.Option(help="Seconds for which a check-in is kept.")] = 5.0,
    connected: Annotated[bool, typer.Option(help="Whether devices stay connected for that time.")] = False,
    folder: Annotated[Path | None, typer.Option(help="Folder in which the file of the fleet is kept.")] = None,
) -> Result:
    """Simulate devices that check in by themselves, against a server that serves those that come first (minutes).

    Each device is guaranteed three quarters of an equal share of the turns.

    Example: python -m benchmarks check-ins --devices 50 --turns 400 --connected
    """
    settings = {"guaranteed_rate": f"3/{4 * devices}", "tolerance": 1.0, "counts": "selected"}
    with (
        TemporaryDirectory() as temporary,
        simulated_clock() as time,
        Scheduler.open(
            (folder or Path(temporary)) / "devices.turnout", concurrency=slots, status_ttl=ttl, settings=settings
        ) as scheduler,
    ):
        fair = play_devices(scheduler, time, devices, turns, connected)
    time = Clock()
    first = play_devices(FirstCome(slots, devices, time), time, devices, turns)
    title = f"{devices} devices, {slots} slots, {turns:,} turns"
    return Result(title, [{"server": "turnout", **fair}, {"server": "first come", **first}])


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
        self._running: set[int] = set()
        self._recent: deque[float] = deque(maxlen=50)

    def check_in(self, client: str, status: ClientStatus) -> RunningTurn | Wait:  # noqa: ARG002
        """Gives a turn if a slot is free."""
        if len(self._running) < self._slots:
            self._given += 1
            self._recent.append(self._time.now)
            self._running.add(self._given)
            return RunningTurn(self._given, client, None)
        span = self._time.now - self._recent[0]
        return Wait(self._clients * span / (8 * len(self._recent)) if span else 1.0, "all slots are in use")

    def report(self, turn: int, seconds: float) -> None:  # noqa: ARG002
        """Frees the slot."""
        self._running.remove(turn)


@dataclass(slots=True)
class Clock:
    """The simulated time in seconds."""

    now: float = 0.0


def play_devices(
    server: Scheduler | FirstCome, time: Clock, devices: int, turns: int, connected: bool = False
) -> dict[str, float | None]:
    """Simulates devices of the paper's four classes until this many turns have ended, and returns what happened.

    The figures leave out the beginning, except for the turns that a device was behind its promise at any time, which
    are unknown without a promise.

    Args:
        server: The server.
        time: The clock, which follows the events.
        devices: The number of devices.
        turns: The number of turns.
        connected: Whether devices stay connected while their check-ins are kept, so that the server can send them a
            turn as soon as another one has ended. Otherwise they get it when they check in again.
    """
    judge = server if isinstance(server, Scheduler) else None  # its certificate is read after every decision
    rng = np.random.default_rng(0)
    world = PaperWorld(seed=0, clients=devices, availability=1.0, model_size=MODEL_SIZE)
    events = list[tuple[float, int, int]]()  # when, which device, and which turn ends; a check-in has turn −1
    next_call = rng.uniform(0, START, devices).tolist()
    for row, at in enumerate(next_call):
        heapq.heappush(events, (at, row, -1))

    def call_at(row: int, at: float) -> None:
        next_call[row] = at
        heapq.heappush(events, (at, row, -1))

    counts = np.zeros(devices, dtype=np.int64)
    seconds_of = dict[int, float]()
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
            last = judge.round
            shortfall = max(shortfall, float(judge.certificate().behind.max()))
        if isinstance(answer, Wait):
            call_at(row, time.now + answer.seconds)
            continue
        counts[row] += 1
        played = world.play(offer, Selection(offer.round, np.array([row]), {}))
        seconds_of[answer.id] = float(played.exchange_times[0])
        heapq.heappush(events, (time.now + seconds_of[answer.id], row, answer.id))
    span, done = time.now - began[0], ended - began[1]
    return {
        "updates per second": done / span,
        "calls per turn": (calls - began[2]) / done,
        "fewest turns / mean": float(counts.min() / counts.mean()),
        "most turns behind": shortfall if judge is not None else None,
    }


@contextmanager
def simulated_clock() -> Iterator[Clock]:
    """Replaces the clocks by which schedulers give turns: the monotonic one, and the wall clock."""
    time = Clock()
    with (
        patch("turnout.live.clock.monotonic_seconds", lambda: time.now),
        patch("turnout.live.clock.now", lambda: (BEGINNING + timedelta(seconds=time.now)).isoformat()),
    ):
        yield time
