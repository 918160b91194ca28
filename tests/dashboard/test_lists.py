"""Lists: pagination, sorting, search, invalid parameters, ids with special characters; the table of runs."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import numpy as np
import pytest

from benchmarks.browser import Page
from benchmarks.dashboard import SETTLED, turn_to
from dashboard.contract import CLIENT
from dashboard.readings import random_columns
from dashboard.served import Served, Stored, needs_browser, run_store, served, served_run, small_fleet, used
from live.fleets import offered
from turnout.dashboard.views import comparing
from turnout.dashboard.views.common import plain
from turnout.dashboard.views.comparing import _bounds
from turnout.kernel.certificate import STATUSES
from turnout.live import Scheduler

IDS = [f"{kind}-{index:02}" for index in range(13) for kind in ("Phone", "tablet")]
#: Ids that need escaping in HTML, JSON, addresses or terminals.
SPECIAL_IDS = [
    "<img src=x onerror=alert(1)>",
    "</script><script>alert('x')</script>",
    "it's \"quoted\" & 'both'",
    "two\nlines\r\nand\ta tab",
    "שלום עולם \u202e right to left \u202c",
    "a" * 300,
    "50%25 of /api/client?id=1&run=2#frag",
    "../../etc/passwd",
    "null",
    "NaN",
    "\U0001f4f1 \ufeff",
    "\u2028 and \u2029",
    "\\u003cescaped\\",
    "0",
]


@pytest.fixture(scope="module")
def fleet(directory: Path) -> Iterator[Served]:
    """Serves a fleet in which some clients were never chosen or never available."""
    path = directory / "fleet.turnout"
    small_fleet(path, rounds=24, ids=IDS, is_open=False)
    with Scheduler.open(path) as scheduler:
        scheduler.register(["never-available-1", "never-available-2"])
    with served(path) as server:
        server.wait_read()
        yield server


def list_clients(server: Served, **query: Any) -> Any:
    return server.json(f"/api/clients?{urlencode(query)}")


@pytest.mark.parametrize("size", [1, 7, 500])
@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("sort", ["owed", "id", "mean_seconds"])
def test_the_pages_of_the_list_contain_every_client_once(fleet: Served, sort: str, order: str, size: int) -> None:
    first = list_clients(fleet, sort=sort, order=order, size=size)
    assert first["total"] == 28
    assert first["pages"] == math.ceil(28 / size)
    ids = []
    for page in range(1, first["pages"] + 1):
        data = list_clients(fleet, sort=sort, order=order, size=size, page=page)
        assert (data["page"], data["size"], data["sort"], data["order"]) == (page, size, sort, order)
        assert len(data["rows"]) == min(size, 28 - (page - 1) * size)
        ids += [row["id"] for row in data["rows"]]
    assert sorted(ids) == sorted([*IDS, "never-available-1", "never-available-2"])


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("sort", [name for name in CLIENT if name not in ("tolerance", "flags")])
def test_the_list_is_sorted_with_unknown_values_last(fleet: Served, sort: str, order: str) -> None:
    rows = list_clients(fleet, sort=sort, order=order, size=500)["rows"]
    joined = {
        row["id"]: index for index, row in enumerate(list_clients(fleet, sort="id", order="asc", size=500)["rows"])
    }
    if sort == "id":
        assert [joined[row["id"]] for row in rows] == sorted(joined.values(), reverse=order == "desc")
        return
    values = [row[sort] for row in rows]
    if sort == "status":
        values = [STATUSES.index(value) for value in values]
    known = [value for value in values if value is not None]
    assert values == [*known, *[None] * (len(values) - len(known))]
    assert known == sorted(known, reverse=order == "desc")
    ties = [(value, joined[row["id"]]) for value, row in zip(values, rows, strict=True)]
    for (value, before), (other, after) in itertools.pairwise(ties):
        assert value != other or before < after, "ties keep the order of joining"
    if sort in ("mean_seconds", "last_round", "share"):
        assert None in values, "the fleet must have unknown values"


def test_a_search_matches_any_part_of_an_id_and_ignores_case(fleet: Served) -> None:
    assert {row["id"] for row in list_clients(fleet, search="PHONE-0", size=500)["rows"]} == {
        client for client in IDS if client.startswith("Phone-0")
    }
    data = list_clients(fleet, search="tablet", size=5, page=3, sort="id", order="asc")
    assert (data["total"], data["pages"], data["page"]) == (13, 3, 3)
    assert list_clients(fleet, search="  tablet-03 ")["rows"][0]["id"] == "tablet-03"
    empty = list_clients(fleet, search="no such client")
    assert (empty["total"], empty["pages"], empty["rows"]) == (0, 1, [])
    assert list_clients(fleet, search="")["total"] == 28
    assert list_clients(fleet, search="%")["total"] == 0, "no wildcards"


def test_a_run_is_searched_by_digits(folder: Path) -> None:
    with served_run(folder, {"cohort_size": 3}, random_columns(5, 120)) as server:
        matches = {row["id"] for row in list_clients(server, search="11", size=500)["rows"]}
        assert matches == {str(row) for row in range(120) if "11" in str(row)}
        for name in ("17", "c17", "client 17"):
            assert server.json(f"/api/client?id={quote(name)}")["id"] == "17"
        for wrong in ("120", "-1", "1.5", "seventeen", "", "²", "c", "1" * 999):
            answer = server.get(f"/api/client?id={quote(wrong)}")
            assert answer.status == 404, wrong
            assert "the clients of this run are 0 to 119" in json.loads(answer.body)["detail"]


def test_a_page_beyond_the_last_is_the_last(fleet: Served) -> None:
    data = list_clients(fleet, page=10**9, size=10)
    assert (data["page"], data["pages"], len(data["rows"])) == (3, 3, 8)
    assert fleet.json("/api/rounds?page=999&size=7")["page"] == 4
    assert fleet.json("/api/turns?page=77")["page"] == 1


REFUSED = [
    ("/api/clients?sort=beauty", "sort must be one of"),
    ("/api/clients?order=sideways", "order: input should be 'asc' or 'desc'"),
    ("/api/clients?order=owed", "order: input should be 'asc' or 'desc'"),
    ("/api/clients?page=0", "page"),
    ("/api/clients?page=two", "page"),
    ("/api/clients?page=99999999999999999999", "page"),
    ("/api/clients?size=0", "size"),
    ("/api/clients?size=501", "size"),
    ("/api/clients?size=NaN", "size"),
    ("/api/clients?search=" + "x" * 1001, "search"),
    ("/api/turns?order=desc", "order: input should be 'behind', 'owed', 'id' or 'turns'"),
    ("/api/turns?page=0", "page"),
    ("/api/rounds?size=0", "size"),
    ("/api/rounds?page=x", "page"),
    ("/api/round?number=0", "number"),
    ("/api/round?number=x", "number"),
    ("/api/explain?id=tablet-00&round=0", "round"),
    ("/api/explain", "id"),
    ("/api/client", "id"),
    ("/api/client?id=" + "x" * 1001, "id"),
    ("/api/overview?run=x", "run"),
    ("/api/overview?run=0", "run"),
]


MISSING = [
    ("/api/client?id=unknown", "there is no client 'unknown'"),
    ("/api/client?id=", "there is no client"),
    ("/api/explain?id=unknown", "there is no client 'unknown'"),
    ("/api/round?number=25", "choose one from 1 to 24"),
    ("/api/explain?id=tablet-00&round=25", "there is no round 25"),
    ("/api/round?number=99999999999999999999999", "there is no round 99999999999999999999999"),
    ("/api/explain?id=tablet-00&round=99999999999999999999999", "there is no round 99999999999999999999999"),
]


@pytest.mark.parametrize(
    ("path", "message", "status"),
    [*((*case, 400) for case in REFUSED), *((*case, 404) for case in MISSING)],
    ids=lambda value: str(value)[:50],
)
def test_invalid_parameters_missing_clients_and_missing_rounds_are_refused_with_a_message(
    fleet: Served, path: str, message: str, status: int
) -> None:
    answer = fleet.get(path)
    assert answer.status == status
    assert answer.headers["content-type"] == "application/problem+json"
    error = json.loads(answer.body)["detail"]
    assert message in error
    assert "\n" not in error


def test_a_missing_run_is_reported(folder: Path) -> None:
    with served_run(folder, {"cohort_size": 3}, random_columns(5, 10)) as server:
        for route in ("overview", "clients", "compare", "system", "training"):
            answer = server.get(f"/api/{route}?run=7")
            assert answer.status == 404
            assert "there is no run 7 in runs.turnout" in json.loads(answer.body)["detail"]


# Ids


def test_ids_with_special_characters_are_returned_unchanged(folder: Path) -> None:
    path = folder / "fleet.turnout"
    with Scheduler.open(path, settings={"cohort_size": 4}, deadline=9.0, allow_infeasible=True) as scheduler:
        for round_ in range(20):
            for client in scheduler.choose(offered(*SPECIAL_IDS)):
                if round_ % 3:
                    scheduler.report(client, 1.0 + len(client) / 100)
                else:
                    scheduler.report_failure(client, f"why? {client}")
            scheduler.close_round()
        scheduler.choose(offered(*SPECIAL_IDS))
    with served(path) as server:
        server.wait_read()
        assert [row["id"] for row in server.json("/api/clients?sort=id&order=asc")["rows"]] == SPECIAL_IDS
        assert server.json("/api/turns?order=id")["ids"] == SPECIAL_IDS
        assert set(server.json("/api/fairness")["taken_vs_promised"]["ids"]) == set(SPECIAL_IDS)
        seen, reasons = set(), set()
        for number in range(1, 22):
            data = server.json(f"/api/round?number={number}")
            seen |= {row["id"] for row in data["rows"]}
            reasons |= {row["why"] for row in data["rows"] if row["why"] is not None}
        assert seen == set(SPECIAL_IDS)
        assert reasons
        assert reasons <= {f"why? {client}" for client in SPECIAL_IDS}
        for client in SPECIAL_IDS:
            data = server.json(f"/api/client?id={quote(client, safe='')}")
            assert data["id"] == client
            matches = server.json(f"/api/clients?search={quote(client, safe='')}")["rows"]
            assert client in [row["id"] for row in matches]
            assert server.json(f"/api/explain?id={quote(client, safe='')}&round=20")["client"] == client
        answer = server.get("/api/clients")
        assert answer.headers["content-type"] == "application/json", "a browser must not render it as a page"


# Runs


CURVES = "document.querySelector('[data-chart=compare-curves]').data"


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stored, Served]]:
    path = tmp_path_factory.mktemp("runs") / "runs.turnout"
    runs = run_store(path, rounds=40)
    with served(path) as server:
        yield runs, server


# The data


def test_every_run_has_its_settings_and_the_figures_of_the_comparison(stored: tuple[Stored, Served]) -> None:
    runs, server = stored
    data = server.json("/api/runs")
    assert (data["pending"], data["total"]) == (0, len(data["rows"]))
    rows = {row["id"]: row for row in data["rows"]}
    assert rows[runs.fast[0]]["settings"] == {"speed_weight": "50"}
    assert {row["policy"] for row in rows.values() if row["true_times"]} == {"fedcs"}
    for group in server.json(f"/api/compare?run={runs.fast[0]}")["groups"]:
        figures = [rows[run]["figures"] for run in group["runs"]]
        assert group["mean_round"]["mean"] == pytest.approx(np.mean([one["mean_round"] for one in figures]), rel=1e-4)
        assert group["true_times"] == (group["policy"] == "fedcs")
    assert not rows[runs.unfinished]["finished"]


def test_figures_that_take_long_follow_with_later_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_store(tmp_path / "runs.turnout", rounds=12, seeds=1)
    with served(tmp_path / "runs.turnout") as server:
        monkeypatch.setattr(comparing, "FIGURES_SECONDS", -1.0)
        first = server.json_now("/api/runs")
        assert first["pending"] == len(first["rows"])
        assert all(row["figures"] is None for row in first["rows"])
        monkeypatch.undo()
        assert all(row["figures"] for row in server.json("/api/runs")["rows"])


def test_only_picked_runs_of_one_world_are_compared(stored: tuple[Stored, Served]) -> None:
    runs, server = stored
    picked = [*runs.fair, runs.random[0]]
    data = server.json(f"/api/compare?runs={','.join(map(str, [*picked, runs.training[0]]))}")
    assert sorted(run for group in data["groups"] for run in group["runs"]) == sorted(picked)
    assert data["left_out"] == 1
    curves = server.json(f"/api/training?run={runs.training[0]}&runs={runs.training[0]}")["groups"]
    assert [group["runs"] for group in curves] == [1]
    answer = server.get("/api/compare?runs=1;2")
    assert answer.status == 400
    assert b"runs must be numbers separated by commas" in answer.body


def test_confidence_bands_stay_within_the_possible_values() -> None:
    rounds = np.array([1, 2], dtype=np.int64)
    values, half = np.array([[0.1, 0.95], [0.2, 0.99]]), np.array([0.5, 0.5])
    assert plain(_bounds("accuracy", rounds, values, half)) == {"low": [0, 0.47], "high": [0.65, 1]}
    assert plain(_bounds("loss", rounds, values, half)["high"]) == [0.65, 1.47]
    assert plain(_bounds("reward", rounds, values - 1, half)["low"]) == [-1.35, -0.53]
    assert _bounds("accuracy", rounds, values[:1], half) == {"low": None, "high": None}


# The pages


def open_page(page: Page, url: str, name: str) -> None:
    page.open(url)
    page.wait_for(SETTLED % name)


def cells(page: Page, column: int) -> list[str]:
    result: list[str] = page.evaluate(
        f"[...document.querySelectorAll('#page tbody tr')].map(row => row.children[{column}].textContent)"
    )
    return result


@pytest.fixture
def compared(empty_page: Page, stored: tuple[Stored, Served]) -> Iterator[Page]:
    """A page that compares runs."""
    runs, server = stored
    with used(empty_page) as page:
        open_page(page, f"{server.url}/#/compare?run={runs.fast[0]}", "compare")
        yield page


@pytest.mark.thorough
@needs_browser
def test_a_store_opens_on_its_runs_to_sort_filter_and_pick(empty_page: Page, stored: tuple[Stored, Served]) -> None:
    runs, server = stored
    with used(empty_page) as page:
        open_page(page, server.url, "runs")
        assert len(cells(page, 0)) == 11
        page.click("th:nth-child(3) .sort")
        page.wait_for("location.hash.includes('sort=mean_round')")
        page.click("th:nth-child(3) .sort")
        page.wait_for("location.hash.includes('order=asc')")
        page.wait_for(SETTLED % "runs")
        times = [float(text) for text in cells(page, 2)]
        assert times == sorted(times)
        page.click("#runs-find")
        page.type("rbcsf speed_weight=1 ")
        page.wait_for("document.querySelectorAll('#page tbody tr').length === 2")
        turn_to(page, "runs")
        for run in (*runs.fair, *runs.random):
            page.click(f"[aria-label='Pick run {run}']")
        picked = ",".join(map(str, sorted([*runs.fair, *runs.random])))
        page.wait_for(f"decodeURIComponent(location.hash).includes('pick={picked}')")
        link = page.evaluate("document.querySelector('a.button').getAttribute('href')")
        assert page.console == []
        page.reset()
        open_page(page, f"{server.url}/{link}", "compare")  # the address keeps the view
        assert len(cells(page, 0)) == 2
        assert not any("true times" in name for name in cells(page, 0))
        colours = page.evaluate(f"{CURVES}.map(trace => [trace.name, trace.line.color])")
        turn_to(page, "overview", pick=picked, run=str(runs.fair[0]))
        own = page.evaluate("document.querySelector('[data-chart=overview-rounds]').data.at(-1).line.color")
        assert own in dict(colours).values()
        assert len({colour for _, colour in colours}) == 2
        assert page.console == []


@pytest.mark.thorough
@needs_browser
def test_policies_that_are_given_the_true_times_are_never_best(compared: Page, stored: tuple[Stored, Served]) -> None:
    runs, _ = stored
    turn_to(compared, "compare", run=str(runs.fast[0]))
    rows = compared.evaluate(
        "[...document.querySelectorAll('#page tbody tr')].map(row => [row.cells[0].textContent, row.textContent])"
    )
    assert any("best" in text for _, text in rows)
    oracle = [text for name, text in rows if "fedcs" in name]
    assert len(oracle) == 1
    assert "true times" in oracle[0]
    assert "best" not in oracle[0]
    compared.click("#page tbody tr:nth-child(2) .swatch-button")
    compared.wait_for("location.hash.includes('show=')")
    compared.wait_for(f"{CURVES}.some(trace => trace.opacity < 1)")
    assert compared.console == []


@needs_browser
@pytest.mark.thorough
def test_every_chart_is_saved_as_picture_and_as_numbers(compared: Page, stored: tuple[Stored, Served]) -> None:
    runs, _ = stored
    turn_to(compared, "compare", run=str(runs.fast[0]))
    compared.evaluate("""(() => {
        window.saved = [];
        const make = URL.createObjectURL;
        URL.createObjectURL = (blob) => { window.saved.push(blob); return make(blob); };
        HTMLAnchorElement.prototype.click = () => {};
    })()""")
    charts = compared.evaluate("document.querySelectorAll('#page figure').length")
    assert compared.evaluate("document.querySelectorAll('#page figure .tool').length") == 2 * charts
    compared.evaluate("[...document.querySelectorAll('#page figure:last-child .tool')].forEach(tool => tool.click())")
    compared.wait_for("['image/png', 'text/csv'].every(type => window.saved.some(blob => blob.type === type))")
    text = compared.evaluate("window.saved.find(blob => blob.type === 'text/csv').text()")
    rows = list(csv.DictReader(io.StringIO(text)))
    shown = compared.evaluate(f"{CURVES}.map(trace => trace.x.length)")
    assert len(rows) == sum(shown)
    assert all(math.isfinite(float(row["y"])) for row in rows)
    assert compared.evaluate("window.saved.find(blob => blob.type === 'image/png').size") > 5000
    compared.evaluate(
        "void window.Plotly.relayout(document.querySelector('[data-chart=compare-front]'), "
        "{'xaxis.range[0]': 2, 'xaxis.range[1]': 9})"
    )
    compared.wait_for("decodeURIComponent(location.hash).includes('zoom=compare-front~2~9~')")
    assert compared.console == []


@needs_browser
@pytest.mark.thorough
def test_phones_have_hints_at_wide_tables_and_large_targets(empty_page: Page, stored: tuple[Stored, Served]) -> None:
    _, server = stored
    with used(empty_page, width=360, height=740, phone=True) as page:
        for name in ("runs", "compare"):
            open_page(page, f"{server.url}/#/{name}", name)
            assert page.evaluate("document.documentElement.scrollWidth") <= 360
            assert page.evaluate("getComputedStyle(document.querySelector('.wide-table .hint')).display") == "block"
            small = page.evaluate("""[...document.querySelectorAll('button, input, select, td a, th a, nav a')]
                .map(element => [element.outerHTML.slice(0, 120), element.getBoundingClientRect()])
                .filter(([, box]) => box.width && (box.width < 24 || box.height < 24)).map(([text]) => text)""")
            assert small == []
        page.evaluate("document.querySelector('.info').click()")
        assert page.evaluate("document.getElementById('glossary').open")
        assert page.evaluate("document.querySelectorAll('#glossary-list .current').length") == 1
        assert page.console == []


@needs_browser
@pytest.mark.thorough
def test_words_intervals_and_smoothed_lines(compared: Page) -> None:
    def call(file: str, expression: str) -> Any:
        return json.loads(compared.evaluate(f"import('/static/{file}').then(m => JSON.stringify({expression}))"))

    assert call("format.js", "[m.plural(1, 'client'), m.plural(2, 'client')]") == ["1 client", "2 clients"]
    assert call("format.js", "m.plusMinus({mean: 0.98, half: 0.05}, 1, 2, [0, 1])") == "0.98 (0.93 to 1.00)"
    assert call("format.js", "m.plusMinus({mean: 0.9, half: 0.05}, 1, 2, [0, 1])") == "0.90 ± 0.05"
    rough = [float(index % 2) for index in range(60)]
    assert call("lines.js", f"m.isNoisy({rough})") is True
    assert call("lines.js", f"m.isNoisy({list(range(60))})") is False
    average = call("lines.js", f"m.smoothed({rough})")
    assert len(average) == 60
    assert all(abs(value - 0.5) < 0.2 for value in average)
    apart = call("lines.js", "m.spread([1, 1, 1.2, 5], 1)")
    assert all(later - earlier >= 1 - 1e-9 for earlier, later in pairwise(apart))
