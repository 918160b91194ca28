"""Charts of a fleet over the time of the day, of all rounds or of the last hours, and the list of several fleets."""

from __future__ import annotations

import socket
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from benchmarks.browser import Page
from benchmarks.dashboard import DRAWN
from dashboard.served import needs_browser, promise_fleet, served, small_fleet, used
from requesting import running
from turnout.dashboard.app import make_app
from turnout.dashboard.choice import FleetPages
from turnout.dashboard.watch import Watch
from turnout.lab import RunPlan, RunStore, play_into
from turnout.live import FleetReader, Scheduler
from turnout.web.access import SharedToken
from turnout.web.serving import LIMITS, Server

ROUNDS, HOURS = 40, 2


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fleet with a round every two hours, the last one half an hour ago."""
    clock = [datetime.now(UTC) - timedelta(hours=HOURS * (ROUNDS - 1) + 0.5)]
    for module in ("serving.rounds", "serving.session", "operation.upkeep", "turns.rounds.choosing"):
        monkeypatch.setattr(f"turnout.live.{module}.now", lambda: clock[0].isoformat(timespec="milliseconds"))
    with Scheduler.open(tmp_path / "fleet.turnout", settings={"cohort_size": 2}) as scheduler:
        for number in range(ROUNDS):
            for client in scheduler.choose(["a", "b", "c", "d", "e"]):
                scheduler.report(client, 5.0 + number % 3)
            scheduler.close_round()
            clock[0] += timedelta(hours=HOURS)
    return tmp_path / "fleet.turnout"


def test_the_charts_of_a_fleet_can_be_limited_to_the_last_hours(path: Path) -> None:
    last = list(range(ROUNDS - 24 // HOURS + 1, ROUNDS + 1))
    with served(path) as server:
        page = server.json("/api/overview?since=86400")
        assert page["rounds"]["x"] == page["shortfall"]["x"] == page["about"]["clock"]["rounds"] == last
        between = [b - a for a, b in zip(page["about"]["clock"]["at"], page["about"]["clock"]["at"][1:], strict=False)]
        assert between == [HOURS * 3_600_000] * (len(last) - 1)
        assert server.json("/api/fairness?since=86400")["worst_over_time"]["x"] == last
        assert server.json("/api/speed?since=86400")["error"]["x"] == last
        none, every = server.json("/api/overview?since=60"), server.json("/api/overview")
    assert (none["rounds"]["x"], none["about"]["clock"]) == ([], {"rounds": [], "at": []})
    assert every["rounds"]["x"] == every["about"]["clock"]["rounds"] == list(range(1, ROUNDS + 1))
    assert {name: none[name] for name in ("round", "mean_round", "jain")} == {
        name: every[name] for name in ("round", "mean_round", "jain")
    }


def test_rounds_of_a_simulation_have_no_time_of_the_day(tmp_path: Path) -> None:
    with RunStore(tmp_path / "runs.turnout") as store:
        play_into(store, RunPlan("random", world_settings={"clients": 12}, settings={"cohort_size": 3}, rounds=5))
    with served(tmp_path / "runs.turnout") as server:
        assert server.json("/api/overview")["about"]["clock"] is None


@needs_browser
def test_readers_choose_the_clock_as_the_axis_and_the_last_hours(empty_page: Page, path: Path) -> None:
    axis = "document.querySelector('[data-chart=overview-rounds]').layout.xaxis"
    button = "[...document.querySelectorAll('#page .choice button')].find(button => button.textContent === '%s')"
    points = "document.querySelector('[data-chart=overview-shortfall]').data[0].x.length"
    with served(path) as server, used(empty_page) as page:
        page.open(f"{server.url}/#/overview")
        page.wait_for(DRAWN % "overview")
        page.wait_for(f"{axis}?.type === 'linear'")
        page.evaluate(f"({button % 'clock time'}).click()")
        page.wait_for(f"{axis}.type === 'date'")
        assert page.evaluate(points) == ROUNDS
        page.evaluate(f"({button % 'last 24 h'}).click()")
        page.wait_for(f"{points} === {24 // HOURS}")
        hours = f"(new Date({axis}.range[1]) - new Date({axis}.range[0])) / 3600000"
        assert page.evaluate(hours) == pytest.approx(24)
        page.evaluate(f"({button % 'last hour'}).click()")
        page.wait_for(f"{points} === 1")
        assert page.evaluate("location.hash").endswith("time=3600")


@needs_browser
def test_the_list_of_fleets_says_how_each_is_doing(empty_page: Page, tmp_path: Path) -> None:
    promise_fleet(tmp_path / "kept.turnout", "fair-pace", 30)
    small_fleet(tmp_path / "overdue.turnout", 5, deadline=0.01)
    files = {name: tmp_path / f"{name}.turnout" for name in ("kept", "overdue")}
    watches = {name: Watch(path, partial(FleetReader, path)) for name, path in files.items()}
    access = SharedToken(None)
    pages = FleetPages({name: make_app(watch, access, fleet=name) for name, watch in watches.items()}, access)
    ends = [watch.request_stop for watch in watches.values()]
    for watch in watches.values():
        watch.start()
    server = Server(pages, LIMITS, ends, shutdown_seconds=1)
    with socket.create_server(("127.0.0.1", 0)) as listener, running(server, listener), used(empty_page) as page:
        page.open(f"http://127.0.0.1:{listener.getsockname()[1]}/")
        row = "document.querySelector('[data-fleet=%s]').textContent"
        page.wait_for(f"{row % 'overdue'}.includes('no scheduler has the file open')")
        assert "Round 6 is" in page.evaluate(row % "overdue")
        page.wait_for(f"{row % 'kept'}.includes('Kept')")
        assert "overdue" not in page.evaluate(row % "kept")
    for watch in watches.values():
        watch.stop()
