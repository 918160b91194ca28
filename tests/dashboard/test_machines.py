"""Interfaces for programs: /metrics, /healthz and the stream of changes; what an operator must not miss."""

from __future__ import annotations

import json
import re
import threading
from contextlib import AbstractContextManager
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest

from benchmarks.browser import Page
from benchmarks.dashboard import DRAWN, turn_to
from cli import in_process
from dashboard.readings import random_columns, write_random_run
from dashboard.served import (
    Served,
    first_chunk_only,
    needs_browser,
    play_rounds,
    promise_fleet,
    run_store,
    served,
    served_fleet,
    small_fleet,
    used,
    watching,
)
from live.turns.slots.played import open_slots, play_turns
from prometheus_text import Sample, parse_metrics, value_of
from requesting import read_fields, streaming
from turnout.dashboard import app as app_module
from turnout.dashboard import watch as watch_module
from turnout.dashboard.sources.fleet import FleetSource
from turnout.dashboard.views.system import metrics
from turnout.dashboard.watch import Watch
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


def test_metrics_show_the_open_round_its_reports_and_the_figures_of_the_writing_process(folder: Path) -> None:
    path = folder / "fleet.turnout"
    with Scheduler.open(path, settings={"cohort_size": 2}, deadline=60.0) as scheduler, served(path) as server:
        cohort = scheduler.choose(["a", "b", "c"])
        server.wait_read()
        opened = metrics_of(server)
        assert value_of(opened, "turnout_open_round_seconds") > 0
        assert value_of(opened, "turnout_open_round_reports") == 0
        assert value_of(opened, "turnout_log_bytes") > 0
        names = {sample.name for sample in opened}
        assert "turnout_refused_reports_total" in names
        assert "turnout_commit_seconds_median" not in names  # no round is closed yet
        scheduler.report(cohort[0], 1.0)
        with pytest.raises(ReportError):
            scheduler.report(cohort[0], 2.0)
        reported = metrics_of(server)
        assert value_of(reported, "turnout_open_round_reports") == 1
        assert 0 <= value_of(reported, "turnout_seconds_since_report") < MAX_WAIT
        scheduler.close_round()
        wait_until(lambda: value_of(metrics_of(server), "turnout_round") == 1)
        samples = metrics_of(server)
        assert value_of(samples, "turnout_open_round_seconds") == 0
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
        assert value_of(metrics_of(server), "turnout_round", run=str(stored.unfinished), policy="rbcsf") == 6


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
    monkeypatch.setattr(app_module, "KEEPALIVE_SECONDS", 0.05)
    before = threading.active_count()
    with served_fleet(folder, 2, is_open=False) as server:
        for _ in range(5):
            with listening(server) as stream:
                next_change(stream)
                assert stream.readline().startswith(b": ")
        assert server.json("/api/overview")["round"] == 2
    server.until(lambda: threading.active_count() <= before)


# What an operator must not miss


ALL = 60.0  # seconds, more than enough to read everything
HEALTHY, FLAKY = "steady", "flaky"


def flaky_fleet(path: Path, rounds: int = 30, **settings: Any) -> None:
    """Writes a fleet in which one client fails whenever it is selected, and all the others return."""
    rules = {"cohort_size": 2, "guaranteed_rate": 0.1, **settings}
    with Scheduler.open(path, settings=rules, deadline=60.0, allow_infeasible=True) as scheduler:
        for _ in range(rounds):
            for client in scheduler.choose([HEALTHY, FLAKY, "c", "d", "e", "f"]):
                if client == FLAKY:
                    scheduler.report_failure(client, "the battery ran out")
                else:
                    scheduler.report(client, 5.0)
            scheduler.close_round()


def samples(watch: Watch) -> dict[str, float]:
    """Returns the metrics without their labels."""
    return {name: value for name, values in metrics(watch).items() for value in values.values()}


def test_rounds_of_back_off_have_their_own_column_map_and_sentences(tmp_path: Path) -> None:
    """The client page also tells selections from turns, and says when the back-off ends."""
    flaky_fleet(tmp_path / "fleet.turnout")
    with served(tmp_path / "fleet.turnout") as server:
        rows = {row["id"]: row for row in server.json("/api/clients?size=500")["rows"]}
        flaky = rows[FLAKY]
        assert flaky["backed_off"] > 10 > rows[HEALTHY]["backed_off"] == 0
        assert flaky["backed_off"] + flaky["offered"] == 30
        page = server.json("/api/turns")
        row = page["ids"].index(FLAKY)
        assert sum(page["resting"][row]) == flaky["backed_off"]
        assert all(
            not (rests and there) for rests, there in zip(page["resting"][row], page["available"][row], strict=True)
        )
        client = server.json(f"/api/client?id={FLAKY}")
        assert f"without {flaky['backed_off']} rounds of back-off" in client["promise_text"]
        assert client["strip"]["resting"] == page["resting"][row]
        sentence = f"1 client earned nothing in {flaky['backed_off']} rounds of back-off after missed turns."
        assert client["about"]["certificate"]["text"].endswith(sentence)
        why = server.json_now(f"/api/explain?id={FLAKY}")
    assert client["counted"] == 0 < client["turns"]
    assert f"was selected {client['turns']} times in 30 rounds" in client["next"]
    assert "0 of these count as turns" in client["next"]
    last = re.search(r"up to and including round (\d+)", why["sentence"])
    assert last is not None
    assert f"does not come before round {int(last[1]) + 1}." in client["next"]
    assert (why["outcome"], why["unit"]) == ("resting", "seconds")  # as the page of the round has it


def test_a_client_without_accrual_by_availability_loses_nothing_in_back_off(tmp_path: Path) -> None:
    flaky_fleet(tmp_path / "fleet.turnout", accrual="always")
    with served(tmp_path / "fleet.turnout") as server:
        client = server.json(f"/api/client?id={FLAKY}")
    assert client["backed_off"] > 0
    assert "back-off" not in client["promise_text"] + client["about"]["certificate"]["text"]


def test_decisions_of_back_off_are_counted_too(tmp_path: Path) -> None:
    with open_slots(tmp_path / "fleet.turnout") as scheduler:
        play_turns(scheduler, 20)
        names = list(scheduler.clients)
        for _ in range(40):
            for turn in scheduler.fill(names):
                if turn.client == names[0]:
                    scheduler.report_failure(turn.id, "broken")
                else:
                    scheduler.report(turn.id, 5.0)
    with served(tmp_path / "fleet.turnout") as server:
        rows = {row["id"]: row["backed_off"] for row in server.json("/api/clients?size=500")["rows"]}
    assert rows[names[0]] > 0
    assert not any(rows[name] for name in names[1:])


def test_the_latest_failures_have_their_reasons_on_the_overview(tmp_path: Path) -> None:
    flaky_fleet(tmp_path / "fleet.turnout")
    with Scheduler.open(tmp_path / "fleet.turnout") as scheduler:
        scheduler.retire("f")
        scheduler.amend(deadline=90.0)
    with served(tmp_path / "fleet.turnout") as server:
        events = server.json("/api/overview")["events"]
    assert [event["kind"] for event in events[:2]] == ["retired", "amended"]
    assert (events[0]["id"], events[1]["text"]) == ("f", "deadline = 90.0")
    failed = [event for event in events if event["kind"] == "failed"]
    assert failed
    assert {(event["id"], event["text"]) for event in failed} == {(FLAKY, "the battery ran out")}
    assert [event["round"] for event in events] == sorted((event["round"] for event in events), reverse=True)


def test_metrics_have_no_figures_until_the_file_was_read_once(tmp_path: Path) -> None:
    small_fleet(tmp_path / "fleet.turnout", 30)
    with watching(tmp_path / "fleet.turnout") as watch, watch.locked_source() as source:
        assert isinstance(source, FleetSource)
        source.read_on(-1.0)
        assert set(samples(watch)) == {"turnout_up", "turnout_store_bytes", "turnout_log_bytes", "turnout_read_ratio"}
        source.read_on(ALL)
        assert samples(watch)["turnout_round"] == 30
        with Scheduler.open(tmp_path / "fleet.turnout") as scheduler:
            scheduler.close_round()
        source.read_on(-1.0)  # a part that is read later does not remove them
        assert samples(watch)["turnout_round"] >= 30


def test_metrics_have_the_deadline_and_whether_a_scheduler_is_running(tmp_path: Path) -> None:
    path = tmp_path / "fleet.turnout"
    small_fleet(path, 5, deadline=7.5)
    with watching(path) as watch:
        watch.poll()
        known = samples(watch)
        assert (known["turnout_deadline_seconds"], known["turnout_scheduler_running"]) == (7.5, 0)
        with Scheduler.open(path) as scheduler:
            assert samples(watch)["turnout_scheduler_running"] == 1
            scheduler.close_round()
        watch.poll()
        assert "turnout_deadline_seconds" not in samples(watch)


@pytest.mark.parametrize(("policy", "has_queue"), [("fair-pace", False), ("rbcsf", True)])
def test_only_policies_that_select_by_a_queue_show_what_they_owe(tmp_path: Path, policy: str, has_queue: bool) -> None:
    promise_fleet(tmp_path / "fleet.turnout", policy, 30)
    with served(tmp_path / "fleet.turnout") as server:
        page, client = server.json("/api/queues"), server.json("/api/client?id=h11")
        text = server.get("/metrics").body.decode()
    assert page["about"]["has_queue"] is has_queue
    assert {page["now"] is None, page["curve"] is None, client["owed"] is None} == {not has_queue}
    assert ("turnout_worst_debt_turns" in text) is has_queue
    assert (page["empty_reason"] is None) is has_queue


@pytest.mark.thorough
@needs_browser
def test_an_overdue_round_without_a_scheduler_is_a_red_card(empty_page: Page, tmp_path: Path) -> None:
    with served_fleet(tmp_path, 5, deadline=0.01) as server, used(empty_page) as page:
        page.open(f"{server.url}/#/overview")
        page.wait_for(DRAWN % "overview")
        card = page.evaluate("document.querySelector('#page [role=alert]').textContent")
        assert "Overdue" in card
        assert re.search(r"Round 6 is .+ overdue, no scheduler has the file open", card)
        assert "Overdue" not in page.evaluate("document.querySelector('#page .cards').textContent")
        turn_to(page, "fairness")
        assert page.evaluate("document.querySelector('#page [role=alert]')") is None


@needs_browser
def test_an_address_without_a_page_says_so(empty_page: Page, tmp_path: Path) -> None:
    with served_fleet(tmp_path, 5) as server, used(empty_page) as page:
        page.open(f"{server.url}/#/client/site-07")
        page.wait_for("document.querySelector('#page .empty')")
        assert "There is no such page" in page.evaluate("document.getElementById('page').textContent")
        page.evaluate("document.querySelector('#page .empty a').click()")
        page.wait_for(DRAWN % "overview")


@pytest.mark.thorough
@needs_browser
def test_readers_choose_columns_and_all_numbers_of_one_have_the_same_decimals(empty_page: Page, tmp_path: Path) -> None:
    names = "[...document.querySelectorAll('thead .sort')].map(cell => cell.textContent.split('\\u00a0')[0])"
    with served_fleet(tmp_path, 30) as server, used(empty_page, width=1280) as page:
        page.open(f"{server.url}/#/fairness")
        page.wait_for(DRAWN % "fairness")
        before = page.evaluate(names)
        assert not page.evaluate("document.querySelector('.wide-table.cut')")
        cells = page.evaluate("[...document.querySelectorAll('#page tbody tr')].map(row => row.cells[2].textContent)")
        assert {len(cell.partition(".")[2]) for cell in cells} == {2}
        assert "times chosen" not in before
        box = "[...document.querySelectorAll('.columns label')].find(label => label.textContent.includes('%s'))"
        page.evaluate(f"({box % 'times chosen'}).querySelector('input').click()")
        page.wait_for(f"({names}).includes('times chosen')")
        page.evaluate(f"({box % 'promised'}).querySelector('input').click()")
        page.wait_for(f"!({names}).includes('promised')")
        assert page.evaluate("location.hash").count("columns=turns%2Cpromised") == 1


def test_runs_and_groups_are_judged_as_the_command_line_judges_them(tmp_path: Path) -> None:
    store = tmp_path / "runs.turnout"
    arguments = ("simulate", "fair-pace", "random", "--rounds", "40", "--seeds", "2", "--store", store, "--json")
    printed = json.loads(in_process.run(*arguments).stdout)["policies"]
    with served(store) as server:
        data, runs = server.json("/api/compare"), server.json("/api/runs")
    groups = {group["policy"]: group for group in data["groups"]}
    assert (data["reference_rate"], data["share_of"]) == (0.15, "of the rounds it was available for")
    assert (runs["reference_rate"], runs["share_of"]) == (data["reference_rate"], data["share_of"])
    for policy in printed:
        group, seeds = groups[policy["policy"]], policy["per_seed"]
        assert (group["status"], group["tolerance"]) == (policy["status"], policy["tolerance"])
        assert group["worst_shortfall"]["mean"] == pytest.approx(policy["largest_shortfall"])
        for name in ("least_share", "shortfall"):
            assert group[name]["mean"] == pytest.approx(policy[name]["mean"], rel=1e-5)
        rows = {run["seed"]: run for run in runs["rows"] if run["policy"] == policy["policy"]}
        assert [rows[seed["seed"]]["status"] for seed in seeds] == [seed["status"] for seed in seeds]
        for row in rows.values():
            summary = in_process.json_of("runs", "show", store, str(row["id"]))["summary"]
            assert (summary["status"], summary["share_of"]) == (row["status"], f"{runs['share_of']}")
            assert summary["largest_shortfall"] == pytest.approx(row["figures"]["shortfall"], rel=1e-5)
            assert summary["least_share"] == pytest.approx(row["figures"]["least_share"], rel=1e-5)
