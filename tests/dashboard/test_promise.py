"""The promise on the pages, in the API and in the metrics: kept, behind or broken, for which client and since when."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.browser import Page
from benchmarks.dashboard import PAGES, SETTLED, turn_to
from dashboard.readings import fleet_ledger, run_source
from dashboard.served import TWELVE, Served, needs_browser, promise_fleet, served, used
from dashboard.test_machines import metrics_of
from live.fleets import named, play_round, take_snapshot
from prometheus_text import value_of
from turnout.kernel.certificate import STATUSES
from turnout.lab import RunPlan, RunStore, play_into
from turnout.live import FleetReader, Scheduler
from turnout.live.journal import changes

RATE, TOLERANCE = Fraction(1, 10), 2
ROUTES = ("overview", "fairness", "queues", "turns", "speed", "rounds", "round", "clients", "training", "compare")
OWED_WITH_SURPLUS = "the queue of owed turns never falls below 0, so early extra turns do not count against later turns"


@pytest.fixture(scope="module")
def broken_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serves a fleet whose promise is broken on purpose."""
    path = tmp_path_factory.mktemp("broken") / "fleet.turnout"
    promise_fleet(path, "rbcsf", speed_weight=20.0)
    with served(path) as server:
        server.wait_read()
        yield server


@pytest.fixture(scope="module")
def broken(broken_server: Served) -> Path:
    return broken_server.path


@pytest.fixture(scope="module")
def fair_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = tmp_path_factory.mktemp("fair") / "fleet.turnout"
    promise_fleet(path, "fair-pace")
    with served(path) as server:
        server.wait_read()
        yield server


def turns_by_round(path: Path) -> dict[str, list[int]]:
    """Returns the turns of each client after each round, counted from the exported events."""
    counts: dict[str, list[int]] = {client: [] for client in TWELVE}
    with FleetReader(path) as scheduler:
        for event in scheduler.export():
            if event["kind"] == "round":
                for client, turns in counts.items():
                    turns.append((turns[-1] if turns else 0) + (client in event["clients"]))
    return counts


def broken_since(turns: list[int], rate: Fraction = RATE, tolerance: float = TOLERANCE) -> int:
    """Returns the round since which a client is beyond the tolerance without a break; 0 if it is not at the end."""
    since = 0
    for number in range(len(turns), 0, -1):
        if number * rate - turns[number - 1] <= tolerance:
            break
        since = number
    return since


# The API and the metrics


def test_the_api_and_the_metrics_say_who_is_beyond_the_tolerance_how_far_and_since_when(
    broken: Path, broken_server: Served
) -> None:
    turns = turns_by_round(broken)
    behind = {client: 12 - counts[-1] for client, counts in turns.items()}
    beyond = [client for client, value in behind.items() if value > TOLERANCE]
    worst = max(behind, key=lambda client: behind[client])
    since = broken_since(turns[worst])
    assert len(beyond) >= 6
    for route in ROUTES:
        certificate = broken_server.json(f"/api/{route}")["about"]["certificate"]
        assert certificate["status"] == "broken", route
        assert certificate["text"] == (
            f"broken: {worst} is {behind[worst]:.2f} turns behind, beyond the tolerance of 2, since round {since}; "
            f"{len(beyond)} of 12 clients are beyond it."
        )
    data = broken_server.json("/api/overview")
    error = {"level": "error", "text": f"The promise is {certificate['text']}", "id": None}
    assert data["warnings"][0] == error
    assert data["worst"]["id"] == worst
    rows = broken_server.json("/api/clients?sort=status&order=desc")["rows"]
    assert [row["id"] for row in rows][: len(beyond)] == beyond
    assert [row["id"] for row in rows if row["status"] == "broken"] == beyond
    assert {row["id"]: row["behind"] for row in rows} == behind
    assert {row["id"]: row["counted"] for row in rows} == {client: counts[-1] for client, counts in turns.items()}
    assert {(row["promised"], row["tolerance"]) for row in rows} == {(12, TOLERANCE)}
    furthest = broken_server.json("/api/clients")["rows"]
    assert [row["behind"] for row in furthest] == sorted(behind.values(), reverse=True)
    for client in TWELVE:
        page = broken_server.json(f"/api/client?id={client}")
        assert (page["status"] == "broken", page["behind"]) == (client in beyond, behind[client])
        own_since = broken_since(turns[client])
        assert re.findall(r"since round (\d+)", page["promise_text"]) == ([str(own_since)] if own_since else [])
    samples = metrics_of(broken_server)
    assert value_of(samples, "turnout_promise_status", policy="rbcsf") == 2
    assert value_of(samples, "turnout_promise_broken_clients") == len(beyond)
    assert value_of(samples, "turnout_promise_largest_shortfall_turns") == behind[worst]
    assert value_of(samples, "turnout_promise_tolerance_turns") == TOLERANCE


def test_the_documented_alert_fires_for_a_broken_promise_only(broken_server: Served, fair_server: Served) -> None:
    documented = (Path(__file__).parents[2] / "examples/monitoring/alerts.yml").read_text(encoding="utf-8")
    rules = re.findall(r"alert: PromiseBroken\n\s+expr: (\w+) == (\d+)\n", documented)
    assert "turnout_promise_status" in dict(rules)
    for server, fires in ((broken_server, True), (fair_server, False)):
        samples = metrics_of(server)
        assert all((value_of(samples, name) == float(value)) == fires for name, value in rules)


def test_a_fair_fleet_is_never_beyond_the_tolerance(fair_server: Served) -> None:
    turns = turns_by_round(fair_server.path)
    at_any_time = max(
        number * RATE - count for counts in turns.values() for number, count in enumerate(counts, start=1)
    )
    assert at_any_time <= TOLERANCE
    data, samples = fair_server.json("/api/overview"), metrics_of(fair_server)
    certificate = data["about"]["certificate"]
    assert certificate["status"] in ("kept", "behind")
    assert "since" not in certificate["text"]
    assert data["shortfall"]["ever"] == pytest.approx(float(at_any_time))
    assert not any(warning["level"] == "error" for warning in data["warnings"])
    level = STATUSES.index(certificate["status"])
    assert value_of(samples, "turnout_promise_status", policy="fair-pace") == level
    assert value_of(samples, "turnout_promise_broken_clients") == 0


@pytest.mark.parametrize("tolerance", [None, 5])
def test_a_run_is_judged_by_the_tolerance_of_its_policy_or_by_2(folder: Path, tolerance: float | None) -> None:
    path = folder / "runs.turnout"
    settings: dict[str, Any] = {"speed_weight": 50.0} | ({} if tolerance is None else {"tolerance": tolerance})
    with RunStore(path) as store:
        run = play_into(store, RunPlan("rbcsf", 60, 0, settings))
        columns = store.columns(run)
        certificate = run_source(store, run).ledger.certificate()
    rate, limit = Fraction(3, 20), 2.0 if tolerance is None else tolerance
    turns = np.cumsum(columns.chosen_mask, axis=0)
    behind = [60 * rate - count for count in turns[-1].tolist()]
    expected = ["broken" if value > limit else "kept" if value < 1 else "behind" for value in behind]
    assert "broken" in expected
    assert certificate is not None
    assert certificate.statuses.tolist() == expected
    assert certificate.broken_since is not None
    assert certificate.broken_since.tolist() == [broken_since(line.tolist(), rate, limit) for line in turns.T]
    with served(path) as server:
        samples = metrics_of(server)
        assert value_of(samples, "turnout_promise_status", run=str(run)) == 2
        assert value_of(samples, "turnout_promise_tolerance_turns") == limit
        assert value_of(samples, "turnout_promise_broken_clients") == expected.count("broken")


def test_a_policy_without_a_promise_has_no_status(folder: Path) -> None:
    path = folder / "runs.turnout"
    with RunStore(path) as store:
        play_into(store, RunPlan("random", 10, settings={"cohort_size": 3}, world_settings={"clients": 12}))
    with served(path) as server:
        certificate = server.json("/api/overview")["about"]["certificate"]
        assert certificate == {"status": None, "text": "This policy guarantees no turns."}
        assert not any(sample.name.startswith("turnout_promise") for sample in metrics_of(server))


def test_the_snapshot_says_since_when_a_client_is_beyond_the_tolerance_if_that_was_before_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large fleet deletes old availability with a snapshot, and the ledger starts with the snapshot."""
    path = folder / "fleet.turnout"
    monkeypatch.setattr(changes, "KEEP_AVAILABILITY_UP_TO", 3)
    promise_fleet(path, "rbcsf", 60, speed_weight=20.0)
    with Scheduler.open(path) as scheduler:
        take_snapshot(scheduler)
    promise_fleet(path, "rbcsf", 60, speed_weight=20.0)
    source, ledger = fleet_ledger(path)
    with closing(source):
        start = ledger.fairness_series["rounds"][0] - 1
        certificate = ledger.certificate()
    assert certificate is not None
    assert certificate.broken_since is not None
    turns = turns_by_round(path)
    already = 0
    for row, client in enumerate(TWELVE):
        since = broken_since(turns[client])
        assert certificate.broken_since[row] == since
        already += 0 < since <= start
    assert start >= 60
    assert already > 0


# Explanations


def test_the_next_turn_is_that_of_the_explanation(broken_server: Served, fair_server: Served) -> None:
    for server in (broken_server, fair_server):
        waiting = 0
        with FleetReader(server.path) as scheduler:
            for client in list(TWELVE)[::2]:
                expected, answer = scheduler.explain(client, 120), server.json(f"/api/explain?id={client}&round=120")
                assert answer["rounds_until"] == expected.rounds_until
                assert "next turn" not in server.json(f"/api/client?id={client}")["next"]
                if expected.outcome == "chosen":
                    assert answer["next"].startswith("It was chosen in round 120")
                elif expected.rounds_until is None:
                    assert "How long it has to wait is unknown" in expected.sentence
                    assert "How long it waits for its next turn is unknown" in answer["next"]
                else:
                    waiting += 1
                    count = "1 round" if expected.rounds_until == 1 else f"{expected.rounds_until:,} rounds"
                    assert count in expected.sentence
                    assert f"Its next turn comes in about {count}, counted from round 120" in answer["next"]
        assert waiting > 0


def test_the_price_of_a_turn_is_explained(fair_server: Served) -> None:
    detail = fair_server.json("/api/round?number=100")
    assert detail["unit"] == "seconds"
    priced = 0
    for row in detail["rows"]:
        why = fair_server.json(f"/api/explain?id={row['id']}&round=100")
        assert (why["unit"], why["exact"]) == ("seconds", True)
        assert row["usual"] == pytest.approx(why["usual"], rel=1e-4)
        assert row["behind"] == pytest.approx(why["behind"], rel=1e-4, abs=1e-9)
        if not why["urgent"]:
            priced += 1
            assert row["price"] == pytest.approx(why["owed"], rel=1e-4)
            assert re.search(
                r"usually takes [\d,.]+ s, now .* share of such a round is [\d,.]+/2.8 = ", why["sentence"]
            )
    assert priced > 0


def test_owed_turns_of_clients_with_a_surplus_are_explained(folder: Path) -> None:
    path = folder / "fleet.turnout"
    rules = {
        "cohort_size": 2,
        "guaranteed_rate": 0.2,
        "accrual": "available",
        "counts": "selected",
        "speed_weight": 0.0,
    }
    with Scheduler.open(path, policy="rbcsf", settings=rules, allow_infeasible=True) as scheduler:
        for number in range(1, 31):  # two clients take all turns of the first rounds, then they share with four others
            play_round(scheduler, named(2 if number <= 15 else 6), 5.0)
        certificate = scheduler.certificate()
    with_surplus = (certificate.behind < 0) & (certificate.owed > 0)
    assert with_surplus.any()
    assert not with_surplus.all()
    with served(path) as server:
        server.wait_read()
        for route in ("fairness", "queues"):
            note = server.json(f"/api/{route}")["owed_note"]
            assert note.startswith(f"{int(with_surplus.sum())} client")
            assert OWED_WITH_SURPLUS in note
        for row, client in enumerate(named(6)):
            assert (OWED_WITH_SURPLUS in server.json(f"/api/client?id={client}")["promise_text"]) == with_surplus[row]


def test_clients_that_were_there_for_too_few_rounds_are_named(folder: Path) -> None:
    path = folder / "fleet.turnout"
    rules = {"cohort_size": 2, "guaranteed_rate": 0.2, "accrual": "available", "speed_weight": 0.0}
    with Scheduler.open(path, policy="rbcsf", settings=rules, allow_infeasible=True) as scheduler:
        for _ in range(20):
            play_round(scheduler, named(4), 5.0)
        scheduler.register(["guest"])
        play_round(scheduler, named(4), 5.0)
    with served(path) as server:
        server.wait_read()
        data = server.json("/api/fairness")
        assert data["unserved"] == {"total": 1, "ids": ["guest"]}
        assert "1 client was there for too few rounds to be served" in data["about"]["certificate"]["text"]
        rows = server.json("/api/clients")["rows"]
        assert [row["id"] for row in rows if "too_few_rounds" in row["flags"]] == ["guest"]
        assert "it was there for too few rounds to be served" in server.json("/api/client?id=guest")["promise_text"]


# Round times and shares


def test_a_round_takes_what_the_server_waited_for(folder: Path) -> None:
    """Failed clients count with the time for which the server waited for them; surplus clients do not count."""
    path = folder / "fleet.turnout"
    options: Any = {"settings": {"cohort_size": 2}, "overcommit": 2.0, "deadline": 60.0, "allow_infeasible": True}
    with Scheduler.open(path, policy="rbcsf", **options) as scheduler:
        scheduler.report_many(dict(zip(scheduler.choose(named(6)), (5.0, 9.0, 30.0, 40.0), strict=True)))
        scheduler.close_round()
        second = scheduler.choose(named(6))
        scheduler.report(second[0], 7.0)
        for client in second[1:]:
            scheduler.report_failure(client, "disk full")
        record = scheduler.close_round()
    with FleetReader(path) as reader:
        recorded = [closed.duration for closed in reader.closed_rounds()]
    assert recorded == [9.0, record.report.duration]
    with served(path) as server:
        data = server.json("/api/overview")
        assert [row["seconds"] for row in reversed(server.json("/api/rounds")["rows"])] == recorded
        assert data["total_time"] == pytest.approx(sum(recorded))


@pytest.mark.parametrize(
    ("accrual", "of"), [("always", "all rounds"), ("available", "the rounds it was available for")]
)
def test_shares_are_named_by_the_rounds_that_they_are_a_share_of(folder: Path, accrual: str, of: str) -> None:
    path = folder / "fleet.turnout"
    rules = {"cohort_size": 2, "accrual": accrual}
    with Scheduler.open(path, policy="rbcsf", settings=rules, allow_infeasible=True) as scheduler:
        for number in range(1, 11):
            play_round(scheduler, named(4)[number % 2 :], 5.0)
    with served(path) as server:
        data = server.json("/api/clients?sort=id&order=asc")
        assert data["about"]["share_of"] == data["about"]["promise"]["of"] == of
        rows = {row["id"]: row for row in data["rows"]}
        sometimes, always = (rows[client] for client in named(2))
        assert always["share"] == pytest.approx(always["turns"] / 10)
        joined_after = 1  # the first round was offered without this client
        rounds = 10 - joined_after if accrual == "always" else 5
        assert sometimes["share"] == pytest.approx(sometimes["turns"] / rounds)


# In a browser

BADGE = "document.querySelector('#promise .badge')"
MARK = "document.querySelector('#promise .mark').textContent"


@pytest.fixture
def broken_page(empty_page: Page, broken_server: Served) -> Iterator[Page]:
    """A page of the dashboard of the fleet whose promise is broken."""
    with used(empty_page) as page:
        page.open(broken_server.url)
        page.wait_for(SETTLED % "overview")
        yield page


def text_of(page: Page, selector: str) -> str:
    return str(page.evaluate(f"document.querySelector({json.dumps(selector)}).textContent"))


@needs_browser
@pytest.mark.thorough
def test_the_badge_of_every_page_says_broken_and_the_chart_shows_the_tolerance(broken_page: Page, broken: Path) -> None:
    with FleetReader(broken) as scheduler:
        certificate, ids = scheduler.certificate(), scheduler.clients
    summary = certificate.summary()
    assert summary.worst is not None
    for name in (name for name in PAGES if name != "compare"):  # its table has a status for each group
        turn_to(broken_page, name, **({"id": "h11"} if name == "client" else {}))
        broken_page.wait_for(f"{BADGE} !== null")
        assert broken_page.evaluate(f"{BADGE}.className") == "badge bad", name
        assert text_of(broken_page, "#promise .badge").endswith("Broken"), name
        sentence = text_of(broken_page, "#promise")
        assert f"{ids[summary.worst]} is {summary.worst_behind:.2f} turns behind" in sentence, name
        assert "since round" in sentence, name
        assert "books balance" not in text_of(broken_page, "body"), name
    chart = "document.querySelector('[data-chart=\"turns-behind\"]')"
    turn_to(broken_page, "fairness")
    broken_page.wait_for(f"{chart}.layout?.shapes?.length > 0")
    assert broken_page.evaluate(f"[{chart}.layout.shapes[0].y0, {chart}.layout.shapes[0].y1]") == [2, 2]
    drawn = broken_page.evaluate(f"Object.fromEntries({chart}.data.map(trace => [trace.name, trace.x.length]))")
    assert drawn == {"Kept": summary.kept, "Behind": summary.behind, "Broken": summary.broken}
    assert len(set(broken_page.evaluate(f"{chart}.data.map(trace => trace.marker.symbol)"))) == 3
    assert broken_page.console == []


@pytest.mark.thorough
@needs_browser
def test_statuses_differ_in_word_mark_and_colour(empty_page: Page, folder: Path) -> None:
    plans = {
        "kept": RunPlan("fair-pace", 5, settings={"cohort_size": 4, "guaranteed_rate": 0.1}),
        "behind": RunPlan("rbcsf", 60, settings={"speed_weight": 50.0, "tolerance": 1000}),
        "broken": RunPlan("rbcsf", 60, settings={"speed_weight": 50.0}),
    }
    path = folder / "runs.turnout"
    with RunStore(path) as store:
        runs = {status: play_into(store, plan) for status, plan in plans.items()}
    seen = []
    with served(path) as server, used(empty_page) as page:
        page.open(server.url)
        for status, run in runs.items():
            server.wait_read(run)
            turn_to(page, "overview", run=str(run))
            page.wait_for(f"document.getElementById('promise').dataset.status === '{status}'")
            assert text_of(page, "#promise .badge").endswith(status.capitalize())
            colour = page.evaluate(f"getComputedStyle({BADGE}).color")
            seen.append((page.evaluate(MARK), colour))
        assert page.console == []
    marks, colours = zip(*seen, strict=True)
    assert len(set(marks)) == len(set(colours)) == 3


@pytest.mark.thorough
@needs_browser
def test_the_client_page_shows_the_explanation_and_one_estimate_of_the_next_turn(
    broken_page: Page, broken: Path
) -> None:
    with FleetReader(broken) as scheduler:
        why = next(
            explanation
            for explanation in (scheduler.explain(client, 120) for client in TWELVE)
            if explanation.outcome == "not chosen" and explanation.rounds_until is not None
        )
    estimate = f"in about {why.rounds_until:,} rounds, counted from round 120"
    turn_to(broken_page, "client", id=why.client, round="120")
    broken_page.wait_for(f"document.getElementById('page').textContent.includes({json.dumps(why.sentence)})")
    broken_page.evaluate("document.activeElement.blur()")
    broken_page.press("ArrowLeft")
    broken_page.wait_for("location.hash.includes('round=119')")
    for round_ in ("120", "60"):  # the estimate is that of the newest round, whichever round is explained
        turn_to(broken_page, "client", id=why.client, round=round_)
        broken_page.wait_for("document.getElementById('next-turn') !== null")
        assert estimate in text_of(broken_page, "#next-turn")
    assert broken_page.console == []
