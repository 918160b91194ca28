"""The table of runs, picked runs on other pages, and what every chart and table offers."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.browser import Page
from benchmarks.dashboard import SETTLED, turn_to
from dashboard.served import Served, Stored, needs_browser, run_store, served, used
from turnout.dashboard.views import comparing
from turnout.dashboard.views.common import plain
from turnout.dashboard.views.comparing import _bounds

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


@needs_browser
def test_a_store_opens_on_its_runs_which_are_sorted_filtered_and_picked(
    empty_page: Page, stored: tuple[Stored, Served]
) -> None:
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
    size = compared.evaluate("window.saved.find(blob => blob.type === 'image/png').size")
    assert size > 5000
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
