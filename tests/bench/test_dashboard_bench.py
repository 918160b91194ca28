from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from turnout.bench.browser import PROGRAMS
from turnout.bench.dashboard import PAGES, dashboard_of, make_fleet, measure_dashboard, told
from turnout.errors import StoreError
from turnout.scheduler import Scheduler


@pytest.mark.skipif(not any(map(shutil.which, PROGRAMS)), reason="no Chromium is installed: apt install chromium")
def test_the_dashboard_is_measured_in_a_browser(folder: Path) -> None:
    steps: list[str] = []
    found = measure_dashboard(clients=2000, cohort=20, rounds=6, repeats=2, folder=folder, watch=steps.append)
    assert (found.clients, found.rounds) == (2000, 6)
    assert 0 < found.start < found.read
    assert found.first_paint > 0
    assert 0 < found.first_numbers <= found.first_charts
    assert tuple(found.pages) == PAGES
    assert {"/api/overview", "/api/client", "/api/compare"} <= set(found.answers)
    assert found.file_bytes > 100_000
    assert found.memory_bytes > 10_000_000
    assert steps[0] == "making the fleet"
    assert steps[-1] == "turning the pages"
    assert list(folder.iterdir()) == []
    assert replace(found, first_paint=2.0, first_numbers=2.0).met
    assert not replace(found, first_paint=0.1, first_numbers=2.1).met
    assert not replace(found, first_paint=2.1, first_numbers=0.1).met


def test_the_measured_fleet_is_what_was_asked_for(folder: Path) -> None:
    path = folder / "fleet.turnout"
    make_fleet(path, clients=1000, cohort=10, rounds=3)
    with Scheduler.open(path, read_only=True) as scheduler:
        assert (len(scheduler.clients), scheduler.round) == (1000, 3)
        assert sum(scheduler.certificate().turns) == 30
    with dashboard_of(path) as url:
        assert told(f"{url}/api/store")["kind"] == "fleet"


def test_a_dashboard_that_does_not_start_says_why(tmp_path: Path) -> None:
    refused = pytest.raises(StoreError, match=r"the dashboard did not start: error: there is no file .*nothing")
    with refused, dashboard_of(tmp_path / "nothing"):
        pass
