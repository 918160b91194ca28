from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.browser import PROGRAMS
from benchmarks.dashboard import PAGES, measure_browser
from turnout.bench.dashboard import ROUTES, dashboard_of, get_json, make_fleet, measure_dashboard
from turnout.errors import StoreError
from turnout.live import FleetReader


def test_a_measured_dashboard_has_all_its_figures(folder: Path) -> None:
    steps: list[str] = []
    figures = measure_dashboard(clients=2000, cohort=20, rounds=6, repeats=2, folder=folder, watch=steps.append)
    assert (figures.clients, figures.rounds) == (2000, 6)
    assert 0 < figures.start < figures.read
    assert set(figures.answers) == set(figures.cached_answers) == {f"/api/{name}" for name in ROUTES}
    assert min(*figures.answers.values(), *figures.cached_answers.values()) > 0
    assert figures.answers[figures.slowest] == max(figures.answers.values())
    assert figures.file_bytes > 100_000
    assert figures.memory_bytes is not None
    assert figures.memory_bytes > 10_000_000
    assert steps == ["creating the fleet", "reading the fleet", "requesting every route"]
    assert list(folder.iterdir()) == []


@pytest.mark.thorough
@pytest.mark.skipif(not any(map(shutil.which, PROGRAMS)), reason="Chromium is not installed: apt install chromium")
def test_the_dashboard_is_measured_in_a_browser(folder: Path) -> None:
    steps: list[str] = []
    figures = measure_browser(clients=2000, cohort=20, rounds=6, repeats=3, folder=folder, watch=steps.append)
    assert (figures.clients, figures.rounds) == (2000, 6)
    assert figures.first_paint > 0
    assert 0 < figures.first_numbers <= figures.first_charts
    assert tuple(figures.pages) == PAGES
    assert min(figures.pages.values()) > 0
    assert figures.file_bytes > 100_000
    assert steps[0] == "creating the fleet"
    assert steps[-2:] == ["opening the first page, 3 of 3", "opening every page"]
    assert list(folder.iterdir()) == []
    assert replace(figures, first_paint=2.0, first_numbers=2.0).met
    assert not replace(figures, first_paint=0.1, first_numbers=2.1).met
    assert not replace(figures, first_paint=2.1, first_numbers=0.1).met


def test_the_measured_fleet_has_the_requested_size(folder: Path) -> None:
    path = folder / "fleet.turnout"
    make_fleet(path, clients=1000, cohort=10, rounds=3)
    with FleetReader(path) as scheduler:
        assert (len(scheduler.clients), scheduler.round) == (1000, 3)
        assert sum(scheduler.certificate().turns) == 30
    with dashboard_of(path) as url:
        assert get_json(f"{url}/api/store")["kind"] == "fleet"


def test_a_dashboard_that_does_not_start_reports_why(tmp_path: Path) -> None:
    not_started = pytest.raises(StoreError, match=r"the dashboard did not start: error: .*nothing")
    with not_started, dashboard_of(tmp_path / "nothing"):
        pass
