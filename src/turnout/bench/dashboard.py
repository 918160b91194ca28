"""Measures how soon the dashboard's server answers for a large fleet."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from turnout.bench.timing import stop_server
from turnout.errors import StoreError
from turnout.live import FleetStatus, Scheduler
from turnout.live._internals import session_of

ROUTES = ("overview", "fairness", "queues", "turns", "speed", "rounds", "client", "training", "compare", "system")
TIMEOUT = 300.0  # seconds


@dataclass(frozen=True, slots=True)
class DashboardFigures:
    """Wall-clock seconds of the server.

    Attributes:
        start: Until the server accepts requests.
        read: Until it has read the whole fleet, counted from the same moment as `start`.
        answers: The first answer of each route, for which the server has nothing cached.
        cached_answers: The median of later answers to the same requests.
    """

    clients: int
    rounds: int
    file_bytes: int
    start: float
    read: float
    answers: dict[str, float]
    cached_answers: dict[str, float]
    memory_bytes: int | None

    @property
    def slowest(self) -> str:
        """The route with the slowest first answer."""
        return max(self.answers, key=lambda route: self.answers[route])


def measure_dashboard(
    *,
    clients: int = 1_000_000,
    cohort: int = 100,
    rounds: int = 100,
    repeats: int = 3,
    folder: Path | None = None,
    watch: Callable[[str], None] = lambda _: None,
) -> DashboardFigures:
    """Creates a fleet, serves it with `turnout dashboard` and requests every route.

    Args:
        clients: Size of the fleet.
        cohort: Clients per round.
        rounds: Closed rounds in the fleet's file.
        repeats: Requests per route after the first one.
        folder: Where the temporary fleet is written; by default in the system's temporary folder.
        watch: Called with a description of each step.
    """
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        path = Path(temporary) / "fleet.turnout"
        watch("creating the fleet")
        make_fleet(path, clients=clients, cohort=cohort, rounds=rounds)
        watch("reading the fleet")
        started = time.monotonic()
        with dashboard_of(path) as url:
            start = time.monotonic() - started
            wait_until_read(url)
            read = time.monotonic() - started
            watch("requesting every route")
            urls = {f"/api/{name}": _url_of(url, name, clients) for name in ROUTES}
            answers = {route: _seconds_to_get(address) for route, address in urls.items()}
            cached = {route: [_seconds_to_get(address) for _ in range(repeats)] for route, address in urls.items()}
            memory = get_json(f"{url}/api/system")["memory_bytes"]
        return DashboardFigures(
            clients=clients,
            rounds=rounds,
            file_bytes=path.stat().st_size,
            start=start,
            read=read,
            answers=answers,
            cached_answers={route: float(np.median(seconds)) for route, seconds in cached.items()},
            memory_bytes=memory,
        )


def make_fleet(path: Path, *, clients: int, cohort: int, rounds: int) -> None:
    """Writes a fleet in which 90 % of the clients are available and times follow the contexts within 20 %."""
    rng = np.random.default_rng(0)
    speed, bandwidth = rng.uniform(0.5, 2.0, clients), rng.uniform(1.0, 5.0, clients)
    settings = {"cohort_size": cohort, "guaranteed_rate": cohort / clients / 2}
    with Scheduler.open(path, settings=settings, deadline=60.0) as scheduler:
        scheduler.register([client_id(row) for row in range(clients)])
        for _ in range(rounds):
            rows = np.flatnonzero(rng.random(clients) < 0.9)
            status = FleetStatus({"free_cpu": speed[rows], "bandwidth": bandwidth[rows]}, rows)
            chosen = scheduler.choose(status)
            at = np.array([session_of(scheduler).row(client) for client in chosen])
            seconds = (2 / speed[at] + 10 / bandwidth[at]) * rng.uniform(0.8, 1.2, len(at))
            scheduler.report_many(dict(zip(chosen, seconds.tolist(), strict=True)))
            scheduler.close_round()


def client_id(row: int) -> str:
    """Returns the id that `make_fleet` gives to the client in this row."""
    return f"client-{row:07d}"


@contextmanager
def dashboard_of(path: Path, *options: str) -> Iterator[str]:
    """Runs `turnout dashboard` on a free port until the block ends, and yields its address."""
    command = [sys.executable, "-m", "turnout", "dashboard", str(path), "--port", "0", *options]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if " at http" not in line:
            raise StoreError(f"the dashboard did not start: {line}{process.stdout.read()}")
        yield line.rsplit(" at ", 1)[1].strip().rstrip("/")
    finally:
        stop_server(process)
        process.stdout.close()


def get_json(url: str) -> Any:
    """Returns the JSON document at `url`."""
    with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
        return json.load(answer)


def wait_until_read(url: str) -> None:
    """Waits until the server has read the whole fleet."""
    until = time.monotonic() + TIMEOUT
    while get_json(f"{url}/api/system")["about"]["reading"] is not None:
        if time.monotonic() > until:
            raise StoreError(f"the dashboard did not read the fleet within {TIMEOUT:g} s")
        time.sleep(0.05)


def _url_of(url: str, name: str, clients: int) -> str:
    query = urllib.parse.urlencode({"id": client_id(clients // 2)}) if name == "client" else ""
    return f"{url}/api/{name}?{query}".rstrip("?")


def _seconds_to_get(url: str) -> float:
    start = time.monotonic()
    get_json(url)
    return time.monotonic() - start
