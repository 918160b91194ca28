"""What an operator must not miss: overdue rounds, a server that is down, back-off, failures, partly read files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.browser import Page
from benchmarks.dashboard import DRAWN, turn_to
from cli import in_process
from dashboard.served import needs_browser, promise_fleet, served, served_fleet, small_fleet, used, watching
from live.turns.slots.played import open_slots, play_turns
from turnout.dashboard.sources.fleet import FleetSource
from turnout.dashboard.views.system import metrics
from turnout.dashboard.watch import Watch
from turnout.live import Scheduler

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


def test_rounds_of_back_off_have_their_own_column_map_and_sentence(tmp_path: Path) -> None:
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


def test_the_client_page_tells_selections_from_turns_and_says_when_the_back_off_ends(tmp_path: Path) -> None:
    flaky_fleet(tmp_path / "fleet.turnout")
    with served(tmp_path / "fleet.turnout") as server:
        client = server.json(f"/api/client?id={FLAKY}")
        why = server.json_now(f"/api/explain?id={FLAKY}")
    assert client["counted"] == 0 < client["turns"]
    assert f"was selected {client['turns']} times in 30 rounds" in client["next"]
    assert "0 of these count as turns" in client["next"]
    last = re.search(r"up to and including round (\d+)", why["sentence"])
    assert last is not None
    assert f"does not come before round {int(last[1]) + 1}." in client["next"]
    assert (why["outcome"], why["unit"]) == ("resting", "seconds")  # as the page of the round has it


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
        groups = {group["policy"]: group for group in server.json("/api/compare")["groups"]}
        runs = server.json("/api/runs")
    assert runs["share_of"] == "of the rounds it was available for"
    for policy in printed:
        group, seeds = groups[policy["policy"]], policy["per_seed"]
        assert (group["status"], group["tolerance"]) == (policy["status"], policy["tolerance"])
        assert group["worst_shortfall"]["mean"] == pytest.approx(policy["largest_shortfall"])
        assert group["least_share"]["mean"] == pytest.approx(policy["least_share"]["mean"], rel=1e-5)
        rows = {run["seed"]: run for run in runs["rows"] if run["policy"] == policy["policy"]}
        assert [rows[seed["seed"]]["status"] for seed in seeds] == [seed["status"] for seed in seeds]
        for row in rows.values():
            summary = in_process.json_of("runs", "show", store, str(row["id"]))["summary"]
            assert (summary["status"], summary["share_of"]) == (row["status"], f"{runs['share_of']}")
            assert summary["largest_shortfall"] == pytest.approx(row["figures"]["shortfall"], rel=1e-5)
