"""Interfaces for programs: /metrics, /healthz and the stream of changes."""

from __future__ import annotations

import json
import threading
from contextlib import AbstractContextManager
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest

from dashboard.readings import random_columns, write_random_run
from dashboard.served import Served, first_chunk_only, play_rounds, run_store, served, served_fleet, small_fleet
from prometheus_text import Sample, parse_metrics, value_of
from requesting import read_fields, streaming
from turnout.dashboard import app as app_module
from turnout.dashboard import watch as watch_module
from turnout.errors import ReportError
from turnout.lab import RunStore
from turnout.live import Scheduler
from turnout.web.prometheus import metrics_text
from waiting import MAX_WAIT, wait_until


def metrics_of(server: Served) -> dict[Sample, float]:
    answer = server.get("/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return parse_metrics(answer.body.decode())[1]


def test_metrics_show_the_age_of_the_open_round_and_its_reports(folder: Path) -> None:
    path = folder / "fleet.turnout"
    with Scheduler.open(path, settings={"cohort_size": 2}, deadline=60.0) as scheduler, served(path) as server:
        cohort = scheduler.choose(["a", "b", "c"])
        server.wait_read()
        opened = metrics_of(server)
        assert value_of(opened, "turnout_open_round_seconds") > 0
        assert value_of(opened, "turnout_open_round_reports") == 0
        assert value_of(opened, "turnout_log_bytes") > 0
        scheduler.report(cohort[0], 1.0)
        reported = metrics_of(server)
        assert value_of(reported, "turnout_open_round_reports") == 1
        assert 0 <= value_of(reported, "turnout_seconds_since_report") < MAX_WAIT
        scheduler.close_round()
        wait_until(lambda: value_of(metrics_of(server), "turnout_round") == 1)
        assert value_of(metrics_of(server), "turnout_open_round_seconds") == 0


def test_metrics_show_the_figures_of_the_writing_process(folder: Path) -> None:
    path = folder / "fleet.turnout"
    with Scheduler.open(path, settings={"cohort_size": 2}, deadline=60.0) as scheduler, served(path) as server:
        server.wait_read()
        names = {sample.name for sample in metrics_of(server)}
        assert "turnout_refused_reports_total" in names
        assert "turnout_commit_seconds_median" not in names  # no round is closed yet
        cohort = scheduler.choose(["a", "b", "c"])
        scheduler.report(cohort[0], 1.0)
        with pytest.raises(ReportError):
            scheduler.report(cohort[0], 2.0)
        scheduler.close_round()
        wait_until(lambda: value_of(metrics_of(server), "turnout_round") == 1)
        samples = metrics_of(server)
        assert value_of(samples, "turnout_refused_reports_total") == 1
        assert value_of(samples, "turnout_snapshot_age_rounds") == 1
        median, largest = (value_of(samples, f"turnout_commit_seconds_{name}") for name in ("median", "largest"))
        assert 0 < median <= largest


def test_metrics_agree_with_the_pages(folder: Path) -> None:
    with served_fleet(folder, 30) as server:
        samples, data = metrics_of(server), server.json("/api/overview")
        kinds, _ = parse_metrics(server.get("/metrics").body.decode())
        assert value_of(samples, "turnout_up") == 1
        assert value_of(samples, "turnout_store_bytes") == server.path.stat().st_size
        assert value_of(samples, "turnout_round", policy="rbcsf") == 30
        assert kinds["turnout_outcomes_total"] == "counter"
        assert value_of(samples, "turnout_clients") == 12
        assert value_of(samples, "turnout_round_seconds_total") == pytest.approx(data["total_time"], rel=1e-5)
        assert value_of(samples, "turnout_least_share") == pytest.approx(data["least_share"], rel=1e-5)
        debts = [row["owed"] for row in server.json("/api/clients")["rows"] if "retired" not in row["flags"]]
        assert value_of(samples, "turnout_worst_debt_turns") == pytest.approx(max(debts), rel=1e-5)
        level = ["kept", "behind", "broken"].index(data["about"]["certificate"]["status"])
        assert value_of(samples, "turnout_promise_status") == level
        outcomes = {
            dict(sample.labels)["outcome"]: count for sample, count in samples.items() if "outcomes" in sample.name
        }
        assert outcomes == data["outcomes"]
        last = server.json("/api/rounds")["rows"][0]
        assert value_of(samples, "turnout_last_round_seconds") == pytest.approx(last["seconds"], rel=1e-5)


def test_responses_about_a_partly_read_run_contain_its_progress(folder: Path) -> None:
    """The progress belongs to the requested run, not to another run that is being read."""
    stored = run_store(folder / "runs.turnout", rounds=60)
    newest, other = stored.unfinished, stored.fast[0]  # stored in chunks of 15 and 25 rounds
    with first_chunk_only() as read_the_rest, served(folder / "runs.turnout") as server:
        for run, reading in ((other, {"done": 25, "of": 60}), (newest, {"done": 15, "of": 30})):
            for route in ("overview", "fairness", "clients", "queues", "turns", "speed", "rounds", "round", "system"):
                about = server.json_now(f"/api/{route}?run={run}")["about"]
                assert (about["rounds"], about["reading"]) == (reading["done"], reading), route
        assert server.get(f"/api/round?run={other}&number=26").data["detail"].startswith("there is no round 26 yet")
        samples = metrics_of(server)
        assert value_of(samples, "turnout_read_ratio", run=str(newest)) == 0.5
        assert "turnout_round" not in {sample.name for sample in samples}  # no figures of a part of the run
        read_the_rest()
        server.wait_read(newest)
        assert server.json_now(f"/api/overview?run={newest}")["about"]["reading"] is None
        assert value_of(metrics_of(server), "turnout_read_ratio", run=str(newest)) == 1
        assert server.json(f"/api/overview?run={other}")["about"]["rounds"] == 60


def test_metrics_of_an_empty_store_and_of_runs(folder: Path) -> None:
    RunStore(folder / "empty.turnout").close()
    with served(folder / "empty.turnout") as server:
        names = {sample.name for sample in metrics_of(server)}
        assert names == {"turnout_up", "turnout_store_bytes", "turnout_log_bytes"}
    stored = run_store(folder / "runs.turnout", rounds=12)
    with served(folder / "runs.turnout") as server:
        server.wait_read()
        samples = metrics_of(server)
        assert value_of(samples, "turnout_round", run=str(stored.unfinished), policy="rbcsf") == 6


@pytest.mark.parametrize(
    "policy", ['quo"te', "back\\slash", "new\nline", 'all "of\\\n them\\n', "<b>é\u202e</b>", "x" * 300]
)
def test_special_characters_are_escaped_in_labels(folder: Path, policy: str) -> None:
    with RunStore(folder / "runs.turnout") as store:
        write_random_run(store, policy, {}, random_columns(5, 10))
    with served(folder / "runs.turnout") as server:
        assert value_of(metrics_of(server), "turnout_round", policy=policy, run="1") == 5
        assert server.json("/api/overview")["about"]["policy"] == policy


@pytest.mark.parametrize(
    ("value", "text"), [(123_456_789, "123456789.0"), (3, "3"), (0.1 + 0.2, "0.30000000000000004")]
)
def test_metric_values_are_exact(value: float, text: str) -> None:
    assert metrics_text({"turnout_store_bytes": {"": value}}).endswith(f"\nturnout_store_bytes {text}\n")


# The stream


def listening(server: Served) -> AbstractContextManager[HTTPResponse]:
    return streaming(server.port, "/api/live")


def next_change(stream: HTTPResponse) -> dict[str, Any]:
    """Waits for the next state of the stream."""
    fields = read_fields(stream)
    assert fields is not None, "the stream has ended"
    assert (set(fields), fields["event"]) == ({"event", "data"}, "change")
    data: dict[str, Any] = json.loads(fields["data"])
    assert set(data) == {"version", "reading", "last_error", "live"}
    return data


def test_the_stream_sends_the_state_at_once_and_after_every_change(folder: Path) -> None:
    with served_fleet(folder, 5, is_open=False) as server:
        with listening(server) as stream, listening(server) as other:
            first = next_change(stream)
            assert first == {"version": server.watch.state.version, "reading": None, "last_error": None, "live": False}
            assert next_change(other) == first
            with Scheduler.open(server.path) as scheduler:
                play_rounds(scheduler, 1, scheduler.clients)
                for listener in (stream, other):
                    data = first
                    while server.watch.state.version > data["version"] or data is first:
                        event = next_change(listener)
                        assert event["version"] > data["version"]
                        data = event
                    assert data["live"]
        server.wait_rounds(6)


def test_the_stream_reports_a_missing_file_and_one_that_is_no_longer_live_and_ends_with_the_watch(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served_fleet(folder, 2, is_open=False) as server, listening(server) as stream:
        next_change(stream)
        server.path.rename(folder / "away")
        assert "is missing" in next_change(stream)["last_error"]
        (folder / "away").rename(server.path)
        assert next_change(stream)["last_error"] is None
        Scheduler.open(server.path).close()
        while not next_change(stream)["live"]:
            pass
        monkeypatch.setattr(watch_module, "LIVE_SECONDS", 0.0)
        while (data := next_change(stream))["live"]:
            pass
        assert data["version"] == server.watch.state.version
        server.watch.request_stop()
        assert read_fields(stream) is None


def test_idle_streams_send_keep_alive_comments_and_closed_ones_leave_no_threads_behind(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closed connections must not keep the server from ending."""
    path = folder / "fleet.turnout"
    small_fleet(path, rounds=2, is_open=False)
    monkeypatch.setattr(app_module, "KEEPALIVE_SECONDS", 0.05)
    before = threading.active_count()
    with served(path) as server:
        server.wait_read()
        for _ in range(5):
            with listening(server) as stream:
                next_change(stream)
                assert stream.readline().startswith(b": ")
        assert server.json("/api/overview")["round"] == 2
    server.until(lambda: threading.active_count() <= before)
