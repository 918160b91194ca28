"""How soon the dashboard shows a large fleet, in a real browser."""

from __future__ import annotations

import json
import os
import signal
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

from turnout.bench.browser import Browser, Page
from turnout.errors import StoreError
from turnout.scheduler import FleetStatus, Scheduler

MOST_SECONDS = 2.0  # to the first paint, and to the numbers of the first page
PAGES = ("overview", "fairness", "queues", "turns", "speed", "rounds", "client", "training", "compare", "system")
PATIENCE = 300.0
#: The page of this name is there: nothing is being asked for any more, and every chart is drawn.
SETTLED = """(() => {
    const inside = document.querySelector("#page .inside");
    if (!inside || !inside.dataset.key.startsWith("%s ")) return false;
    if (inside.querySelector(".skeleton, [aria-busy='true']")) return false;
    const charts = [...inside.querySelectorAll("[data-chart]")];
    return charts.every(one => one.querySelector(".main-svg"));
})()"""
#: The numbers of the first page are there, whatever the charts do.
NUMBERS = """(() => !!document.querySelector("#page .card .value"))()"""


@dataclass(frozen=True, slots=True)
class DashboardFigures:
    """Seconds. `first_…` are the longest of several pages opened anew, the first of which finds nothing prepared."""

    clients: int
    rounds: int
    file_bytes: int
    start: float
    read: float
    first_paint: float
    first_numbers: float
    first_charts: float
    pages: dict[str, float]
    answers: dict[str, float]
    memory_bytes: int

    @property
    def met(self) -> bool:
        """Whether the first paint, and the numbers too, come within the target."""
        return max(self.first_paint, self.first_numbers) <= MOST_SECONDS


def measure_dashboard(
    *,
    clients: int = 1_000_000,
    cohort: int = 100,
    rounds: int = 100,
    repeats: int = 3,
    folder: Path | None = None,
    watch: Callable[[str], None] = lambda _: None,
) -> DashboardFigures:
    """Make a fleet of this size, serve it as `turnout dashboard` does, and look at every page in Chromium."""
    with Browser() as browser, tempfile.TemporaryDirectory(dir=folder) as nowhere:
        path = Path(nowhere) / "fleet.turnout"
        watch("making the fleet")
        make_fleet(path, clients=clients, cohort=cohort, rounds=rounds)
        watch("reading it")
        begun = time.monotonic()
        with dashboard_of(path) as url:
            start = time.monotonic() - begun
            _wait_read(url)
            read = time.monotonic() - begun
            paints, numbers, charts = [], [], []
            for repeat in range(repeats):
                watch(f"opening the page, {repeat + 1} of {repeats}")
                page = browser.page()
                one = time.monotonic()
                page.open(url)
                page.wait_for(NUMBERS, PATIENCE)
                numbers.append(time.monotonic() - one)
                page.wait_for(SETTLED % "overview", PATIENCE)
                charts.append(time.monotonic() - one)
                paints.append(page.first_paint()["first-contentful-paint"] / 1e3)
                page.close()
            watch("turning the pages")
            page = browser.page()
            page.open(url)
            page.wait_for(SETTLED % "overview", PATIENCE)
            turned = {name: _turned(page, name, f"client-{clients // 2:07d}") for name in PAGES}
            system = told(f"{url}/api/system")
        answers = {one["route"]: one["median_ms"] / 1e3 for one in system["requests"]}
        return DashboardFigures(
            clients=clients,
            rounds=rounds,
            file_bytes=path.stat().st_size,
            start=start,
            read=read,
            first_paint=max(paints),
            first_numbers=max(numbers),
            first_charts=max(charts),
            pages=turned,
            answers=answers,
            memory_bytes=system["memory_bytes"],
        )


def make_fleet(path: Path, *, clients: int, cohort: int, rounds: int) -> None:
    """A fleet in which nine in ten volunteer and everybody keeps to what its context says, more or less."""
    rng = np.random.default_rng(0)
    speed, bandwidth = rng.uniform(0.5, 2.0, clients), rng.uniform(1.0, 5.0, clients)
    settings = {"cohort_size": cohort, "guaranteed_rate": cohort / clients / 2}
    with Scheduler.open(path, settings=settings, deadline=60.0) as scheduler:
        scheduler.register([f"client-{row:07d}" for row in range(clients)])
        for _ in range(rounds):
            rows = np.flatnonzero(rng.random(clients) < 0.9)
            status = FleetStatus({"free_cpu": speed[rows], "bandwidth": bandwidth[rows]}, rows)
            chosen = scheduler.choose(status)
            at = scheduler.rows(chosen)
            seconds = (2 / speed[at] + 10 / bandwidth[at]) * rng.uniform(0.8, 1.2, len(at))
            scheduler.report_many(dict(zip(chosen, seconds.tolist(), strict=True)))
            scheduler.close_round()


@contextmanager
def dashboard_of(path: Path, *options: str) -> Iterator[str]:
    """`turnout dashboard` as a user starts it, on any free port; its address. It ends with the block."""
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
        process.send_signal(signal.SIGINT)
        process.wait()
        process.stdout.close()


def told(url: str) -> Any:
    """What the dashboard answers."""
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        return json.load(answer)


def _wait_read(url: str) -> None:
    until = time.monotonic() + PATIENCE
    while told(f"{url}/api/training")["about"]["reading"] is not None:
        if time.monotonic() > until:
            raise StoreError(f"the fleet was not read within {PATIENCE:g} s")
        time.sleep(0.05)


def turn_to(page: Page, name: str, **settings: str) -> None:
    """Choose a page of the dashboard and wait until all of it is there."""
    page.evaluate(f"location.hash = {json.dumps(f'#/{name}?{urllib.parse.urlencode(settings)}')}")
    page.wait_for(SETTLED % name, PATIENCE)


def _turned(page: Page, name: str, client: str) -> float:
    """Seconds from the choice of a page to all of it."""
    begun = time.monotonic()
    turn_to(page, name, **({"id": client} if name == "client" else {}))
    return time.monotonic() - begun
