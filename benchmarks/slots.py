"""Measures fleets without rounds: one decision among many idle clients, and a server with many slots."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from benchmarks.choose import reader_of
from benchmarks.fleets import PACED_CONDITIONS, FairPaceFleet
from benchmarks.harness import MILLION, Clients, Repeats, Result, Target, alternate, announce, memory_folder, silenced
from turnout.kernel.rounds import RoundOffer
from turnout.kernel.slots.turns import RunningTurns, TurnStart
from turnout.live import RunningTurn, Scheduler

#: The log of live fleets, which would repeat that the promise is broken.
SCHEDULER_LOG = "turnout.live"
#: The target of a decision, in reads of what it must look at.
MAX_READS = 1.3
#: The targets of a check-in that is given a turn in a fleet of a million clients, and of the first one after the file
#: was opened, which looks up the rows of all clients once: milliseconds of CPU time.
MAX_TURN, MAX_FIRST = 20.0, 1000.0
#: Check-ins before the measured ones: in the first turns, estimates of the whole fleet change often.
WARM_UP = 30


def slots(
    clients: Clients = MILLION,
    slots: Annotated[
        int, typer.Option(min=1, help="Number of slots of the live fleet, which has 5 times as many clients.")
    ] = 1000,
    turns: Annotated[int, typer.Option(min=1, help="Number of turns of the live fleet.")] = 100_000,
    repeats: Repeats = 9,
) -> Result:
    """Measure a decision among many idle clients in reads of memory, and turns of a live fleet without rounds.

    Example: python -m benchmarks slots --turns 10000
    """
    targets = []
    for condition in PACED_CONDITIONS:
        announce(f"decisions, {condition}")
        reads = measure_decision(clients, condition, repeats)
        targets.append(Target(f"decision, {clients:,} idle clients, {condition}: reads", reads, MAX_READS))
    announce(f"{turns:,} turns")
    with memory_folder() as folder:
        figures = measure_server(folder / "fleet.turnout", 5 * slots, slots, turns)
        announce("check-ins")
        first, turn = measure_check_ins(folder / "devices.turnout", clients, repeats)
    targets.append(Target(f"check-in that is given a turn, {clients:,} clients: ms of CPU time", turn, MAX_TURN))
    targets.append(Target(f"the first one after opening, {clients:,} clients: ms of CPU time", first, MAX_FIRST))
    title = f"A live fleet without fsyncs, {5 * slots:,} clients, {slots:,} slots, {turns:,} turns"
    return Result(title, figures=figures, targets=targets)


def measure_decision(clients: int, condition: str, repeats: int) -> float:
    """Returns the CPU time of a decision in units of one read of what it must look at, measured alternately."""
    fleet = PACED_CONDITIONS[condition](clients, 1, np.random.default_rng(0))
    fleet.available[:] = True
    tasks = {"decision": decisions_of(fleet), "read": reader_of(fleet.arrays())}
    seconds = alternate(tasks, repeats, time.thread_time)
    return seconds["decision"] / seconds["read"]


def decisions_of(fleet: FairPaceFleet) -> Callable[[], None]:
    """Returns a function that makes the next decision, about a slot that is free."""
    running = RunningTurns(fleet.policy.clients)
    made = 0

    def decide() -> None:
        nonlocal made
        made += 1
        offer = RoundOffer.trusted(made, fleet.available, fleet.contexts, places=1)
        (row,) = fleet.policy.ask(offer).clients.tolist()
        turn = TurnStart.trusted(made, row, fleet.available, running.capped(made, fleet.policy.debts))
        fleet.policy.tell_started(turn)
        running.start(turn)
        running.finish(row)

    return decide


def measure_check_ins(path: Path, clients: int, repeats: int) -> tuple[float, float]:
    """Returns the CPU time of the first check-in after the file was opened, and of one that is given a turn, in ms.

    One slot is free at a time, so that each check-in settles a turn and is given the next one.
    """
    settings = {"guaranteed_rate": f"1/{2 * clients}", "tolerance": 1.0}
    status = {"free_cpu": 1.5, "bandwidth": 3.0}
    with silenced(SCHEDULER_LOG):
        with Scheduler.open(path, concurrency=2, settings=settings) as scheduler:
            scheduler.register([f"client-{row}" for row in range(clients)])
        with Scheduler.open(path) as scheduler:

            def check_in(number: int) -> float:
                start = time.process_time()
                turn = scheduler.check_in(f"client-{number % clients}", status)
                seconds = time.process_time() - start
                assert isinstance(turn, RunningTurn), turn
                scheduler.report(turn.id, 1.0 + number % 7)
                return 1000 * seconds

            first = check_in(0)
            turns = [check_in(number) for number in range(1, WARM_UP + 10 * repeats)]
    return first, statistics.median(turns[WARM_UP - 1 :])


def measure_server(path: Path, clients: int, slots: int, turns: int) -> list[tuple[str, float, str]]:
    """Plays turns in a live fleet, in which half of the slots are free at a time."""
    rng = np.random.default_rng(0)
    ids = [f"client-{row}" for row in range(clients)]
    usual = dict(zip(ids, rng.uniform(1.0, 10.0, clients).tolist(), strict=True))
    settings = {"guaranteed_rate": f"3/{4 * clients}", "tolerance": 1.0}
    given, seconds, most_behind = 0, 0.0, 0.0
    with silenced(SCHEDULER_LOG), Scheduler.open(path, concurrency=slots, settings=settings) as scheduler:
        scheduler.register(ids)
        while given < turns:
            start = time.thread_time()
            given += len(scheduler.fill(ids))
            running = [turn.client for turn in scheduler.running()]
            back = rng.choice(running, max(slots // 2, 1), replace=False).tolist()
            scheduler.report_many({client: usual[client] for client in back})
            seconds += time.thread_time() - start
            most_behind = max(most_behind, float(scheduler.certificate().behind.max()))
    return [
        ("a turn: decision, record, result and learning", seconds / given * 1e3, "ms of CPU time"),
        ("size of the file", path.stat().st_size / 1e6, "MB"),
        ("most turns that any client was ever behind, tolerance 1", most_behind, "turns"),
    ]
