"""Measures how soon a browser shows the dashboard of a large fleet."""

from __future__ import annotations

import json
import tempfile
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.browser import Browser, Page
from turnout.bench.dashboard import ROUTES, TIMEOUT, client_id, dashboard_of, make_fleet, wait_until_read

MAX_SECONDS = 2.0  # target for the first paint, and for the numbers of the first page
PAGES = ROUTES
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


@dataclass(frozen=True, slots=True)
class BrowserFigures:
    """Wall-clock seconds in the browser.

    `first_paint`, `first_numbers` and `first_charts` are the maxima over several visits with an empty cache.
    `pages` has the seconds from the click on a page to its last chart.
    """

    clients: int
    rounds: int
    file_bytes: int
    first_paint: float
    first_numbers: float
    first_charts: float
    pages: dict[str, float]

    @property
    def met(self) -> bool:
        """Whether the first paint and the numbers come within the target."""
        return max(self.first_paint, self.first_numbers) <= MAX_SECONDS


def measure_browser(
    *,
    clients: int = 1_000_000,
    cohort: int = 100,
    rounds: int = 100,
    repeats: int = 3,
    folder: Path | None = None,
    watch: Callable[[str], None] = lambda _: None,
) -> BrowserFigures:
    """Creates a fleet, serves it with `turnout fleet dashboard` and opens every page in Chromium.

    Args:
        clients: Size of the fleet.
        cohort: Clients per round.
        rounds: Closed rounds in the fleet's file.
        repeats: Visits of the first page.
        folder: Where the temporary fleet is written; by default in the system's temporary folder.
        watch: Called with a description of each step.
    """
    with Browser() as browser, tempfile.TemporaryDirectory(dir=folder) as temporary:
        path = Path(temporary) / "fleet.turnout"
        watch("creating the fleet")
        make_fleet(path, clients=clients, cohort=cohort, rounds=rounds)
        watch("reading the fleet")
        with dashboard_of(path) as url:
            wait_until_read(url)
            visits = []
            for repeat in range(repeats):
                watch(f"opening the first page, {repeat + 1} of {repeats}")
                visits.append(_visit(browser, url))
            watch("opening every page")
            page = browser.page()
            page.open(url)
            page.wait_for(DRAWN % "overview", TIMEOUT)
            pages = {name: _seconds_to_open(page, name, client_id(clients // 2)) for name in PAGES}
        paints, numbers, charts = zip(*visits, strict=True)
        return BrowserFigures(
            clients=clients,
            rounds=rounds,
            file_bytes=path.stat().st_size,
            first_paint=max(paints),
            first_numbers=max(numbers),
            first_charts=max(charts),
            pages=pages,
        )


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
