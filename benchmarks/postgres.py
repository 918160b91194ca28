"""Compares fleets in a PostgreSQL database with those in files, on the same disk."""

from __future__ import annotations

import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cluster import is_installed, running_cluster
from benchmarks.harness import MILLION, Clients, Repeats, Result, Target, announce
from benchmarks.live import client_id
from turnout.errors import StoreError
from turnout.live import FleetStatus, Scheduler
from turnout.live._internals import session_of
from turnout.storage.store import Location

#: A commit, and opening, may take so many times as long as with a file; so many reports per second, or this share of
#: those into a file, must be accepted.
MAX_COMMIT, MAX_OPEN, MIN_REPORTS, MIN_SHARE = 3.0, 3.0, 5000.0, 0.25
#: The clients and the rounds of the fleets that report, and the reports of one transaction.
REPORTING, ROUNDS, BATCH = 2000, 5, 1000


def postgres(clients: Clients = MILLION, repeats: Repeats = 200) -> Result:
    """Compare fleets in PostgreSQL and in files: commits, reports in batches, registering, opening and snapshots.

    The benchmark starts a PostgreSQL server of its own, whose data and the files are on the disk of the temporary
    folder. Both flush each commit. The two are measured alternately; seconds are those of the clock.

    Example: python -m benchmarks postgres --clients 100000
    """
    if not is_installed():
        raise StoreError("PostgreSQL is not installed: install the package postgresql")
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        folder.chmod(0o755)
        cluster = stack.enter_context(running_cluster({"shared_buffers": "256MB", "autovacuum": "on"}, folder))
        locations: dict[str, tuple[Location, Location]] = {
            "file": (folder / "small.turnout", folder / "large.turnout"),
            "PostgreSQL": (cluster.address("small"), cluster.address("large")),
        }
        announce("single reports")
        commits, calls = _commits([small for small, _ in locations.values()], repeats)
        announce("reports in batches")
        reports = [_reports_per_second(small) for small, _ in locations.values()]
        large = []
        for engine, (_, location) in locations.items():
            announce(f"registering and opening clients: {engine}")
            large.append(_large(location, clients))
    names = ("commit of a report, ms", "call of report, ms", "reports in batches per second")
    columns = [*zip(names, (commits, calls, reports), strict=True)]
    columns += [(f"{name}, s", [figures[name] for figures in large]) for name in large[0]]
    rows = [{"task": task, **dict(zip(locations, values, strict=True))} for task, values in columns]
    opened = [figures["opening"] for figures in large]
    return Result(
        f"Fleets in PostgreSQL and in files, {clients:,} clients",
        rows,
        targets=[
            Target("median report, with its commit / into a file", calls[1] / calls[0], MAX_COMMIT),
            Target(
                f"reports per second, or {MIN_SHARE:.0%} of those into a file",
                reports[1],
                min(MIN_REPORTS, MIN_SHARE * reports[0]),
                is_minimum=True,
            ),
            Target("opening / opening a file", opened[1] / opened[0], MAX_OPEN),
        ],
    )


def _commits(locations: list[Location], repeats: int) -> tuple[list[float], list[float]]:
    """Returns the median milliseconds of a commit, and of a call of `report`, of each fleet."""
    calls: list[list[float]] = [[] for _ in locations]
    with ExitStack() as stack:
        schedulers = [stack.enter_context(_open(location, REPORTING)) for location in locations]
        chosen = [_choose(scheduler, REPORTING)[:repeats] for scheduler in schedulers]
        for number in range(len(chosen[0])):
            for scheduler, cohort, seconds in zip(schedulers, chosen, calls, strict=True):
                start = time.perf_counter()
                scheduler.report(cohort[number], 2.0)
                seconds.append(time.perf_counter() - start)
        commits = [scheduler.metrics().commit_seconds_median or 0.0 for scheduler in schedulers]
        for scheduler in schedulers:
            scheduler.close_round()
    return [1e3 * seconds for seconds in commits], [1e3 * statistics.median(seconds) for seconds in calls]


def _reports_per_second(location: Location) -> float:
    """Measures rounds in which all clients report in batches; each batch is one transaction."""
    seconds, reported = 0.0, 0
    with _open(location, REPORTING) as scheduler:
        for _ in range(ROUNDS):
            chosen = _choose(scheduler, REPORTING)
            start = time.perf_counter()
            for first in range(0, len(chosen), BATCH):
                reported += scheduler.report_many(dict.fromkeys(chosen[first : first + BATCH], 2.0))
            seconds += time.perf_counter() - start
            scheduler.close_round()
    return reported / seconds


def _large(location: Location, clients: int) -> dict[str, float]:
    """Returns the seconds of the tasks of a large fleet."""
    seconds: dict[str, float] = {}

    def measure(task: str, call: Any) -> Any:
        start = time.perf_counter()
        result = call()
        seconds[task] = time.perf_counter() - start
        return result

    with Scheduler.open(location, settings={"cohort_size": 100, "guaranteed_rate": 50 / clients}) as scheduler:
        measure("registering", lambda: scheduler.register([client_id(row) for row in range(clients)]))
        measure("a round", lambda: _play(scheduler, clients))
        measure("a snapshot", session_of(scheduler).snapshot)
        for _ in range(4):
            _play(scheduler, clients)
    for _ in range(2):  # the second time, the pages are in the cache of both
        measure("opening", lambda: Scheduler.open(location)).close()
    return seconds


def _play(scheduler: Scheduler, clients: int) -> None:
    scheduler.report_many(dict.fromkeys(_choose(scheduler, clients), 2.0))
    scheduler.close_round()


def _open(location: Location, clients: int) -> Scheduler:
    scheduler = Scheduler.open(location, policy="random", settings={"cohort_size": clients}, deadline=60.0)
    scheduler.register([client_id(row) for row in range(clients)])
    return scheduler


def _choose(scheduler: Scheduler, clients: int) -> list[str]:
    return scheduler.choose(FleetStatus({"free_cpu": np.ones(clients), "bandwidth": np.ones(clients)}))
