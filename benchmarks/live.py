"""Measures a live fleet: opening, registering, rounds, snapshots, forgetting a client, and how its file grows."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.fleets import FairPaceFleet
from benchmarks.harness import (
    MILLION,
    Clients,
    Cohort,
    Repeats,
    Result,
    Target,
    alternate,
    announce,
    memory_folder,
    seconds_of,
)
from turnout.kernel.arrays import BoolArray
from turnout.live import FleetStatus, Scheduler
from turnout.live._internals import forget_in_steps, session_of
from turnout.policies.fair_pace import FairPace

#: Targets for a million clients: CPU seconds, and live rounds in units of the same round in memory.
MAX_REGISTER, MAX_OPEN, MAX_SNAPSHOT, MAX_FORGET, MAX_ROUND = 5.0, 2.0, 1.0, 0.5, 2.0
#: Registering, snapshots, opening and forgetting are measured at most so many times; the best time counts.
MAX_REPEATS = 3
#: The rounds between the last snapshot and the measured opening: one less than there can be.
UNSAVED_ROUNDS = 49
#: The size of the model in the contexts of the round in memory.
MODEL_SIZE = 20.0
#: Rounds of each kind before the measured ones: in the first rounds, estimates of the whole fleet change often.
WARM_UP = 15
#: The share of clients that are available in the second kind of rounds.
AVAILABLE = 0.8
#: The number of reports per transaction.
BATCH = 1000
#: The rounds of a year, one every ten minutes, and in how many parts the file is measured.
YEAR, PARTS = 365 * 24 * 6, 10


def live(clients: Clients = MILLION, cohort: Cohort = 100, repeats: Repeats = 9) -> Result:
    """Measure a live fleet: registering, opening, rounds, snapshots and forgetting a client, with their targets.

    The fleet is kept in memory, and CPU times are compared with the targets, which are for a million clients: fsyncs
    and other programs do not count. A live round (choose, report, close) is compared with the same round in memory.
    Of the longer tasks at most three are measured, and the shortest counts.

    Example: python -m benchmarks live --clients 100000
    """
    rng = np.random.default_rng(0)
    columns = {"free_cpu": rng.uniform(0.5, 2.0, clients), "bandwidth": rng.uniform(1.0, 5.0, clients)}
    ids = [client_id(row) for row in range(clients)]
    everyone, some = np.ones(clients, dtype=np.bool_), rng.random(clients) < AVAILABLE
    whole = FleetStatus(columns)
    partial = FleetStatus({name: column[some] for name, column in columns.items()}, np.flatnonzero(some))
    settings: dict[str, Any] = {"cohort_size": cohort, "guaranteed_rate": cohort / clients / 2}
    few = range(min(repeats, MAX_REPEATS))

    policy = FairPace(clients, accrual="available", counts="completed", allow_infeasible=True, **settings)
    features = [1 / columns["free_cpu"], np.ones(clients), MODEL_SIZE / columns["bandwidth"]]
    fleet = FairPaceFleet(policy, everyone, np.asfortranarray(np.column_stack(features)))

    def play_in_memory(available: BoolArray) -> None:
        fleet.available = available
        fleet.full_round()

    def play(scheduler: Scheduler, status: FleetStatus = whole) -> None:
        scheduler.report_many({client: float(rng.uniform(1, 10)) for client in scheduler.choose(status)})
        scheduler.close_round()

    with memory_folder() as folder:
        announce("registering clients")
        path = folder / "fleet.turnout"
        register = min(_register(path, settings, ids) for _ in few)
        with Scheduler.open(path) as scheduler:
            announce("playing rounds")
            tasks: dict[str, Callable[[], object]] = {
                "live": lambda: play(scheduler),
                "memory": lambda: play_in_memory(everyone),
                "partial live": lambda: play(scheduler, partial),
                "partial memory": lambda: play_in_memory(some),
            }
            for _ in range(WARM_UP):
                for task in tasks.values():
                    task()
            seconds = alternate(tasks, repeats, time.thread_time)
            announce("writing snapshots")
            snapshot = min(seconds_of(session_of(scheduler).snapshot, time.process_time) for _ in few)
            for _ in range(UNSAVED_ROUNDS):
                play(scheduler)
        announce("opening the file")
        opened = min(_open(path, ids[0]) for _ in few)
        size = path.stat().st_size
        announce("forgetting clients")
        with Scheduler.open(path) as scheduler:
            forgotten = [list(_step_seconds(forget_in_steps(scheduler, client))) for client in ids[: len(few)]]
    announce("reporting in batches")
    reports = _reports_per_second(min(clients, 10 * BATCH))
    first, longest = min(steps[0] for steps in forgotten), min(max(steps[1:], default=0.0) for steps in forgotten)
    ratio, partial_ratio = (seconds[f"{kind}live"] / seconds[f"{kind}memory"] for kind in ("", "partial "))
    after = f"{UNSAVED_ROUNDS} rounds after a snapshot"
    return Result(
        f"A live fleet of {clients:,} clients, {cohort} per round",
        figures=[
            ("a live round: choose, reports, close", seconds["live"] * 1e3, "ms of CPU time"),
            ("the same round in memory", seconds["memory"] * 1e3, "ms of CPU time"),
            (f"live round / in memory, {AVAILABLE:.0%} of the clients available", partial_ratio, "times as long"),
            (f"reports in batches of {BATCH:,}", reports, "per second"),
            ("size of the file", size / 1e6, "MB"),
        ],
        targets=[
            Target("registering all clients: seconds", register, MAX_REGISTER),
            Target(f"opening, {after}: seconds", opened, MAX_OPEN),
            Target("snapshot: seconds", snapshot, MAX_SNAPSHOT),
            Target("forgetting a client: first transaction, seconds", first, MAX_SNAPSHOT),
            Target("forgetting a client: longest other transaction, seconds", longest, MAX_FORGET),
            Target("live round / the same round in memory", ratio, MAX_ROUND),
        ],
    )


def _register(path: Path, settings: dict[str, float], ids: list[str]) -> float:
    """Creates a fleet in place of an earlier one, registers clients and looks one up."""
    for earlier in path.parent.iterdir():
        earlier.unlink()
    with Scheduler.open(path, settings=settings, deadline=60.0) as scheduler:
        return seconds_of(lambda: (scheduler.register(ids), session_of(scheduler).row(ids[0])), time.process_time)


def _open(path: Path, client: str) -> float:
    """Opens a fleet to write, which loads its whole state, and looks a client up; closing is not measured."""
    start = time.process_time()
    with Scheduler.open(path) as scheduler:
        session_of(scheduler).row(client)  # the first lookup of an id takes some time as well
        return time.process_time() - start


def _step_seconds(steps: Iterator[None]) -> Iterator[float]:
    """Yields the CPU time of each step."""
    start = time.process_time()
    for _ in steps:
        yield time.process_time() - start
        start = time.process_time()


def _reports_per_second(clients: int) -> float:
    """Measures ten rounds in which all clients report in batches; each batch is one transaction, on disk."""
    status = FleetStatus({"free_cpu": np.ones(clients), "bandwidth": np.ones(clients)})
    seconds, reported = 0.0, 0
    with (
        tempfile.TemporaryDirectory() as folder,
        Scheduler.open(
            Path(folder) / "fleet.turnout", policy="random", settings={"cohort_size": clients}, deadline=60.0
        ) as scheduler,
    ):
        scheduler.register([f"c{row}" for row in range(clients)])
        for _ in range(10):
            chosen = scheduler.choose(status)
            start = time.perf_counter()
            for first in range(0, len(chosen), BATCH):
                reported += scheduler.report_many(dict.fromkeys(chosen[first : first + BATCH], 2.0))
            seconds += time.perf_counter() - start
            if not scheduler.close_round().report.with_outcome("arrived").all():
                raise RuntimeError("a report was lost")
    return reported / seconds


def year(
    clients: Clients = 2000,
    cohort: Cohort = 50,
    rounds: Annotated[int, typer.Option(min=20, help="Number of rounds to play.")] = 500,
    keep_rounds: Annotated[int | None, typer.Option(help="How many rounds are kept; by default all.")] = None,
    keep_offers: Annotated[int | None, typer.Option(help="How many offers are kept; by default all.")] = None,
) -> Result:
    """Measure how the file of a live fleet grows, and what a year with a round every ten minutes takes.

    With --keep-rounds, play at least twice as many rounds: the file grows until then, and no more.

    Example: python -m benchmarks year --rounds 600 --keep-rounds 200 --keep-offers 50
    """
    measured = {max(rounds * part // PARTS, 1) for part in range(1, PARTS + 1)}
    with tempfile.TemporaryDirectory() as folder:
        played = play_rounds(
            Path(folder) / "fleet.turnout", clients, cohort, rounds, keep_rounds=keep_rounds, keep_offers=keep_offers
        )
        sizes = {
            number: sum(file.stat().st_size for file in Path(folder).iterdir())
            for number in played
            if number in measured
        }
    middle = list(sizes)[len(sizes) // 2 - 1]
    growth = (sizes[rounds] - sizes[middle]) / (rounds - middle)
    after_year = sizes[rounds] + max(growth, 0.0) * max(YEAR - rounds, 0)
    return Result(
        f"The file of a fleet, {clients:,} clients, {cohort} in a round",
        [{"rounds": number, "size of the file, MB": size / 1e6} for number, size in sizes.items()],
        [
            ("growth in the second half", growth / 1e3, "kB a round"),
            (f"after a year with a round every ten minutes ({YEAR:,} rounds)", after_year / 1e6, "MB"),
        ],
    )


def play_rounds(path: Path, clients: int, cohort: int, rounds: int, **options: Any) -> Iterator[int]:
    """Creates a fleet with `options`, plays rounds, and yields the number of each one after it was closed.

    Each client is available in 70 % of the rounds. Times follow the contexts within 20 %, and 5 % of the selected
    clients do not report.
    """
    rng = np.random.default_rng(0)
    settings = {"cohort_size": cohort, "guaranteed_rate": cohort / clients / 2}
    with Scheduler.open(path, settings=settings, deadline=60.0, **options) as scheduler:
        scheduler.register([client_id(row) for row in range(clients)])
        for number in range(1, rounds + 1):
            rows = np.flatnonzero(rng.random(clients) < 0.7)
            columns = {name: rng.uniform(0.5, 5.0, len(rows)) for name in ("free_cpu", "bandwidth")}
            chosen = scheduler.choose(FleetStatus(columns, rows))
            at = np.searchsorted(rows, [session_of(scheduler).row(client) for client in chosen])
            means = 2 / columns["free_cpu"][at] + 10 / columns["bandwidth"][at]
            times = zip(chosen, (means * rng.uniform(0.8, 1.2, len(at))).tolist(), strict=True)
            scheduler.report_many({client: seconds for client, seconds in times if rng.random() < 0.95})
            scheduler.close_round()
            yield number


def client_id(row: int) -> str:
    """Returns the id of the client in this row."""
    return f"client-{row:07d}"
