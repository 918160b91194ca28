"""Fleets: amended settings, rounds that are no longer kept, the time of the day, and metrics of a Flower run."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapters.flower.in_process import model
from benchmarks.browser import Page
from benchmarks.dashboard import DRAWN
from dashboard.readings import FOREVER, assert_same_certificate, audit_of, fleet_ledger
from dashboard.served import needs_browser, promise_fleet, served, small_fleet, used
from live.fleets import World, named, offered, play_round, take_snapshot
from requesting import running
from turnout.adapters.flower.resume.saved_run import RunFiles, SavedRun
from turnout.dashboard.app import make_app
from turnout.dashboard.serving import FleetPages
from turnout.dashboard.sources.fleet import FleetSource
from turnout.dashboard.views.overview import outcomes
from turnout.dashboard.watch import Watch
from turnout.kernel.arrays import FloatArray
from turnout.live import Feature, Features, FleetReader, Scheduler
from turnout.live._internals import StaleError
from turnout.live.journal import changes
from turnout.storage.training_log import Metrics
from turnout.web.access import SharedToken
from turnout.web.serving import LIMITS, Server

# Amended settings


POLICIES: Mapping[str, Mapping[str, Any]] = {
    "fair-pace": {"settings": {"cohort_size": 2, "guaranteed_rate": 0.15}},
    "capped rbcsf": {"policy": "rbcsf", "settings": {"cohort_size": 2, "guaranteed_rate": 0.15, "max_owed": 0.8}},
    "rbcsf with the default cap": {
        "policy": "rbcsf",
        "settings": {"cohort_size": 1, "guaranteed_rate": "1/2", "speed_weight": 0.01},
    },
    "with-guarantee": {"policy": "with-guarantee", "settings": {"policy": "random", "settings": {"cohort_size": 2}}},
}
CHANGES: tuple[Mapping[str, Any], ...] = (
    {"guaranteed_rate": "1/7", "tolerance": 0.9},
    {"cohort_size": 3, "deadline": 90.0},
    {"guaranteed_rate": 0.3},
    {"tolerance": 4.0, "guaranteed_rate": 0.1},
)


def play(scheduler: Scheduler, rounds: int) -> list[FloatArray]:
    """Plays rounds in which some clients are available and some fail; returns the debts after each."""
    world, debts = World(7), []
    for _ in range(rounds):
        number = scheduler.round + 1
        there = [client for client in world.clients if (number * 5 + int(client[1:]) * 3) % 4]
        statuses = {client: world.statuses(number)[client] for client in there}
        for client in scheduler.choose(statuses):
            if (number + int(client[1:])) % 5:
                scheduler.report(client, world.seconds(number, client, statuses[client]))
            else:
                scheduler.report_failure(client, "no power")
        scheduler.close_round()
        debts.append(scheduler.certificate().owed)
    return debts


def assert_same(source: FleetSource, scheduler: Scheduler, debts: list[FloatArray]) -> None:
    """Compares the certificates, and the largest debts after the last rounds."""
    result, expected = source.ledger.certificate(), scheduler.certificate()
    assert_same_certificate(result, expected)
    assert result is not None
    assert result.summary() == expected.summary()
    np.testing.assert_array_equal(source.ledger.fairness_series["worst"], [owed.max() for owed in debts])


@pytest.mark.parametrize("name", POLICIES)
def test_the_ledger_has_the_certificate_and_the_debts_of_the_scheduler(name: str, tmp_path: Path) -> None:
    path = tmp_path / "fleet.turnout"
    with Scheduler.open(path, **POLICIES[name], deadline=500.0, allow_infeasible=True) as scheduler:
        debts = play(scheduler, 6)
        with closing(FleetSource(FleetReader(path))) as live:
            for changes in CHANGES:
                live.catch_up(FOREVER)
                scheduler.amend(**changes)
                live.catch_up(FOREVER)
                assert_same(live, scheduler, debts)
                debts.extend(play(scheduler, 7))
                live.catch_up(FOREVER)
                assert_same(live, scheduler, debts)
            sentences = [notice for notice in live.notices() if "amended" in notice]
        late, _ = fleet_ledger(path)
        with closing(late):
            assert_same(late, scheduler, debts)
    assert len(sentences) == 4
    assert sentences[1].startswith("The settings were amended after round 13: cohort_size from ")


def test_a_large_fleet_is_read_from_its_snapshot_with_the_settings_of_that_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "KEEP_AVAILABILITY_UP_TO", 3)
    path = tmp_path / "fleet.turnout"
    with Scheduler.open(path, **POLICIES["capped rbcsf"], deadline=500.0, allow_infeasible=True) as scheduler:
        play(scheduler, 6)
        scheduler.amend(guaranteed_rate="1/7")
        play(scheduler, 3)
        take_snapshot(scheduler)
        debts = play(scheduler, 2)
        scheduler.amend(guaranteed_rate=0.3)
        debts.extend(play(scheduler, 4))
        source, ledger = fleet_ledger(path)
        with closing(source):
            assert ledger.fairness_series["rounds"].tolist() == list(range(10, 16))
            assert_same(source, scheduler, debts)
            assert sum("amended" in notice for notice in source.notices()) == 2


def test_a_fleet_without_a_time_model_is_read_after_its_features_were_amended(tmp_path: Path) -> None:
    """The model that the ledger trains has the former features; it learns and predicts nothing more."""
    path = tmp_path / "fleet.turnout"
    with Scheduler.open(path, policy="random", settings={"cohort_size": 2}, deadline=500.0) as scheduler:
        play_round(scheduler, offered(*named(3)))
        scheduler.amend(features=Features.of(Feature("battery", 0.0, 1.0)))
        play_round(scheduler, {name: {"battery": 0.5} for name in named(3)})
    source, ledger = fleet_ledger(path)
    with closing(source):
        assert ledger.round_column("rounds").tolist() == [1, 2]
        assert np.isnan(ledger.turn_column("predicted")[2:]).all()


# Rounds that are no longer kept


KEPT_ROUNDS, KEPT = 40, 12


def played(path: Path, name: str, **options: Any) -> Scheduler:
    scheduler = Scheduler.open(path, **POLICIES[name], **options, deadline=500.0, allow_infeasible=True)
    play(scheduler, KEPT_ROUNDS - 6)
    scheduler.retire("c3")
    play(scheduler, 6)
    scheduler.compact()
    return scheduler


@pytest.mark.parametrize("name", POLICIES)
def test_totals_and_debts_are_those_of_a_fleet_that_keeps_everything(name: str, tmp_path: Path) -> None:
    kept, whole = tmp_path / "kept.turnout", tmp_path / "whole.turnout"
    with ExitStack() as opened:
        scheduler = opened.enter_context(played(kept, name, keep_rounds=KEPT))
        played(whole, name).close()
        source, complete = (opened.enter_context(closing(FleetSource(FleetReader(path)))) for path in (kept, whole))
        source.catch_up(FOREVER)
        complete.catch_up(FOREVER)
        assert source.ledger.first_after == KEPT_ROUNDS - KEPT
        assert source.ledger.round_column("rounds").tolist() == list(range(KEPT_ROUNDS - KEPT + 1, KEPT_ROUNDS + 1))
        for counter in ("turns", "offered", "last_round", "joined"):
            np.testing.assert_array_equal(
                source.ledger.counters[counter], complete.ledger.counters[counter], err_msg=counter
            )
        assert outcomes(source.ledger) == outcomes(complete.ledger)
        np.testing.assert_array_equal(source.ledger.retired, complete.ledger.retired)
        np.testing.assert_allclose(source.ledger.seconds, complete.ledger.seconds)
        np.testing.assert_array_equal(source.ledger.history.arrived, complete.ledger.history.arrived)
        np.testing.assert_array_equal(source.ledger.history.lost, complete.ledger.history.lost)
        np.testing.assert_allclose(source.ledger.shares(), complete.ledger.shares())
        result, expected = source.ledger.certificate(), scheduler.certificate()
        assert result is not None
        np.testing.assert_array_equal(result.broken_since, expected.broken_since)
        assert any("Rounds up to 28 are no longer kept" in notice for notice in source.notices())
        play(scheduler, 3)
        source.catch_up(FOREVER)
        assert source.ledger.last_round == KEPT_ROUNDS + 3
        assert_same_certificate(source.ledger.certificate(), scheduler.certificate())


def test_a_page_that_fell_behind_what_is_kept_is_read_again_and_debts_begin_with_kept_rounds(tmp_path: Path) -> None:
    path = tmp_path / "fleet.turnout"
    with Scheduler.open(
        path, **POLICIES["fair-pace"], deadline=500.0, allow_infeasible=True, keep_rounds=KEPT
    ) as fleet:
        play(fleet, 5)
        with closing(FleetSource(FleetReader(path))) as source:
            debts = play(fleet, KEPT_ROUNDS)
            fleet.compact()
            with pytest.raises(StaleError):
                source.catch_up(FOREVER)
        with closing(FleetSource(FleetReader(path))) as source:
            source.catch_up(FOREVER)
            assert_same(source, fleet, debts[-KEPT:])


# The time of the day


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


@pytest.mark.thorough
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
    promise_fleet(tmp_path / "kept.turnout", "fair-pace", 40)
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


# Metrics of a Flower run


pytest.importorskip("flwr")


ROUNDS_BEFORE = 4  # rounds of the fleet before this run
METRICS: dict[str, Metrics] = {
    "train": {number: {"train_loss": 1 / number, "waited": number, "turnout-asked": 8} for number in range(1, 7)},
    "evaluate": {2: {"accuracy": 0.5, "per_class": [0.1, 0.9]}, 4: {"accuracy": 0.75}},
    "server": {0: {"accuracy": 0.1}, 3: {"accuracy": 0.6}, 6: {"accuracy": 0.9, "name": "x"}, 9: {"accuracy": 0.95}},
}


def saved(number: int) -> SavedRun:
    shapes, arrays = {"weights": [2]}, model(1.0, 2.0)
    return SavedRun(server_round=number, fleet_round=number + ROUNDS_BEFORE, begun_with=shapes, arrays=arrays)


def test_metrics_of_a_flower_run_have_rounds_and_times_and_those_of_open_rounds_are_hidden(folder: Path) -> None:
    path = folder / "fleet.turnout"
    small_fleet(path, rounds=10, is_open=False)
    files, elapsed = RunFiles(path), np.cumsum(audit_of(path, Fraction(1, 6)).durations)
    with served(path) as server:
        server.wait_read()
        assert server.json("/api/training")["groups"] == []
        files.write(saved(6))
        files.write_metrics(METRICS)
        server.until(lambda: server.json("/api/training")["groups"])
        data = server.json("/api/training")
        assert data["metric"] == "accuracy"
        assert data["metrics"] == ["accuracy", "clients' accuracy", "training train_loss", "training waited"]
        (group,) = data["groups"]
        assert (group["rounds"], group["mean"]) == ([4, 7, 10], [0.1, 0.6, 0.9])
        assert group["seconds"] == pytest.approx([elapsed[3], elapsed[6], elapsed[9]], rel=1e-5)
        (group,) = server.json("/api/training?metric=clients%27%20accuracy")["groups"]
        assert (group["rounds"], group["mean"]) == ([6, 8], [0.5, 0.75])
        assert server.get("/api/training?metric=nonsense").status == 400
        files.finish()
        assert not files.metrics.exists()
        server.until(lambda: server.json("/api/training")["groups"])
        assert server.json("/api/training")["groups"][0]["mean"] == [0.1, 0.6, 0.9]


def test_damaged_metrics_are_reported_only_on_the_training_page(folder: Path) -> None:
    path = folder / "fleet.turnout"
    small_fleet(path, rounds=3, is_open=False)
    RunFiles(path).metrics.write_bytes(b"[]\n")
    with served(path) as server:
        server.wait_rounds(3)
        answer = server.get("/api/training")
        assert answer.status == 503
        assert b"cannot be read from fleet.turnout.run.jsonl" in answer.body
        assert server.get("/healthz").status == 200
