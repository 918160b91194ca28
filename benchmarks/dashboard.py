"""Measures how soon the dashboard of a large fleet answers, and how soon a browser shows it."""

from __future__ import annotations

import json
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.browser import Browser, Page
from benchmarks.harness import MILLION, Clients, Cohort, Result, Target, announce, seconds_of, served
from benchmarks.live import client_id, play_rounds

MAX_SECONDS = 2.0  # target for the first paint, and for the numbers of the first page
TIMEOUT = 300.0  # seconds
PAGES = ("overview", "fairness", "queues", "turns", "speed", "rounds", "client", "training", "compare", "system")
#: True if the page of this name is drawn: no request is pending and every chart is drawn.
DRAWN = """(() => {
    const inside = document.querySelector("#page .inside");
    if (!inside || !inside.dataset.key.startsWith("%s ")) return false;
    if (inside.dataset.address !== location.hash) return false;  // the page of the address before
    if (inside.querySelector(".skeleton, [aria-busy='true']")) return false;
    const charts = [...inside.querySelectorAll("[data-chart]")];
    return charts.every(chart => chart.querySelector(".main-svg"));
})()"""
#: True if the page of this name is complete: it is drawn, after everything was read and computed.
SETTLED = f"({DRAWN}) && !document.querySelector('#page [data-preliminary]')"
#: True if the first page shows its numbers; charts may follow.
NUMBERS = """(() => !!document.querySelector("#page .card .value"))()"""


def dashboard(
    clients: Clients = MILLION,
    cohort: Cohort = 100,
    rounds: Annotated[int, typer.Option(min=1, help="Number of closed rounds in the file.")] = 100,
    repeats: Annotated[int, typer.Option(min=1, help="Number of visits; the slowest one counts.")] = 3,
    browser: Annotated[bool, typer.Option(help="Whether the pages are opened in Chromium, too.")] = True,
) -> Result:
    """Measure how soon the dashboard of a large fleet answers, and how soon Chromium shows it.

    Example: python -m benchmarks dashboard --clients 100000 --no-browser
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fleet.turnout"
        announce("creating the fleet")
        list(play_rounds(path, clients, cohort, rounds))
        announce("reading the fleet")
        begin = time.monotonic()
        with served("dashboard", path) as server:
            url = server.url
            started = time.monotonic() - begin
            wait_until_read(url)
            read = time.monotonic() - begin
            announce("requesting every page")
            rows: list[dict[str, Any]] = [
                {"page": name, "answered, s": _seconds_to_get(url, name, client_id(clients // 2))} for name in PAGES
            ]
            memory = get_json(f"{url}/api/system")["memory_bytes"] or 0  # not known on Windows
            figures = [
                ("until the server accepts requests", started, "s"),
                ("until it has read the whole file", read, "s"),
                ("memory of the server", memory / 1e6, "MB"),
                ("size of the file", path.stat().st_size / 1e6, "MB"),
            ]
            title = f"The dashboard of {clients:,} clients, {rounds} rounds of {cohort}"
            if not browser:
                return Result(title, rows, figures)
            announce("opening every page in Chromium")
            with Browser() as running:
                paint, numbers, charts = map(max, zip(*(_visit(running, url) for _ in range(repeats)), strict=True))
                page = running.page()
                page.open(url)
                page.wait_for(DRAWN % "overview", TIMEOUT)
                for row in rows:
                    row["drawn, s"] = _seconds_to_open(page, row["page"], client_id(clients // 2))
    figures.append((f"all charts of the first page, slowest of {repeats} visits", charts, "s"))
    targets = [
        Target("first paint, seconds", paint, MAX_SECONDS),
        Target("numbers of the first page, seconds", numbers, MAX_SECONDS),
    ]
    return Result(title, rows, figures, targets)


def get_json(url: str) -> Any:
    """Returns the JSON document at `url`."""
    with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
        return json.load(answer)


def wait_until_read(url: str) -> None:
    """Waits until the server has read the whole fleet."""
    until = time.monotonic() + TIMEOUT
    while get_json(f"{url}/api/system")["about"]["reading"] is not None:
        if time.monotonic() > until:
            raise RuntimeError(f"the dashboard did not read the fleet within {TIMEOUT:g} s")
        time.sleep(0.05)


def _seconds_to_get(url: str, name: str, client: str) -> float:
    address = f"{url}/api/{name}" + (f"?{urllib.parse.urlencode({'id': client})}" if name == "client" else "")
    return seconds_of(lambda: get_json(address))


def turn_to(page: Page, name: str, condition: str = SETTLED, **settings: str) -> None:
    """Opens a page of the dashboard and waits until it is complete, or until another condition holds."""
    page.evaluate(f"location.hash = {json.dumps(f'#/{name}?{urllib.parse.urlencode(settings)}')}")
    page.wait_for(condition % name, TIMEOUT)


def _visit(browser: Browser, url: str) -> tuple[float, float, float]:
    """Returns the seconds to the first paint, the numbers and the charts of the first page."""
    page = browser.page()
    start = time.monotonic()
    page.open(url)
    page.wait_for(NUMBERS, TIMEOUT)
    numbers = time.monotonic() - start
    page.wait_for(DRAWN % "overview", TIMEOUT)
    charts = time.monotonic() - start
    paint = page.first_paint()["first-contentful-paint"] / 1e3
    page.close()
    return paint, numbers, charts


def _seconds_to_open(page: Page, name: str, client: str) -> float:
    start = time.monotonic()
    turn_to(page, name, DRAWN, **({"id": client} if name == "client" else {}))
    return time.monotonic() - start
