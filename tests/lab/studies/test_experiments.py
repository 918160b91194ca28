"""Experiments: their plans, findings, figures and files."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from lab.studies.made_up import reproduce
from lab.studies.stored import RESULTS
from turnout.errors import SettingError
from turnout.kernel.fairness import FairnessQueues
from turnout.lab import RunStore
from turnout.lab.analysis.promise import shortfalls
from turnout.lab.drawing.style import as_svg
from turnout.lab.studies.catalogue import EXPERIMENTS, GROUPS, find_experiments
from turnout.lab.studies.framework.claims import Claim
from turnout.lab.studies.framework.experiment import (
    Findings,
    Result,
    Runs,
    plans_of,
    render_report,
    verdict_summary,
    write_results,
)
from turnout.lab.studies.paper.comparison import (
    FAIR_PACE,
    LABELS,
    RATE,
    PromiseComparison,
    Queues,
    TrainingTime,
    weight_label,
)

SEEDS, ROUNDS = 2, 40


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunStore]:
    with RunStore(tmp_path_factory.mktemp("experiments") / "runs.turnout") as opened:
        yield opened


@pytest.fixture(scope="module")
def results(store: RunStore) -> list[Result]:
    return reproduce(find_experiments("numerical"), store, seeds=SEEDS, rounds=ROUNDS, workers=1)


#: A figure of two panels without claims, and one of curves with claims.
FEW = ("overview", "queues")


@pytest.fixture(scope="module", params=["few", pytest.param("all", marks=pytest.mark.thorough)])
def shown(request: pytest.FixtureRequest, results: list[Result]) -> list[Result]:
    """Returns the results that are drawn. That every figure can be drawn is tested with the stored tables, too."""
    return [result for result in results if request.param == "all" or result.experiment.name in FEW]


def result_of(results: list[Result], name: str) -> Result:
    return next(result for result in results if result.experiment.name == name)


def test_experiments_share_runs_of_the_documented_length_and_are_found_by_name() -> None:
    shared = [EXPERIMENTS[name] for name in ("queues", "training-time", "pull-record")]
    assert len(plans_of(shared, 20)) == 6 * 20
    assert {plan.rounds for plan in plans_of(shared, 20)} == {500}
    weights = {plan.settings.get("speed_weight") for plan in plans_of(shared, 1)}
    assert weights == {1.0, 5.0, 20.0, 50.0, None}
    assert {plan.rounds for plan in plans_of([EXPERIMENTS["theory"]], 1)} == {20_000}
    assert {plan.rounds for plan in plans_of([EXPERIMENTS["stability"]], 1)} == {20_000}
    assert {plan.rounds for plan in plans_of([EXPERIMENTS["lemma"]], 1)} == {500}
    assert {plan.rounds for plan in plans_of([EXPERIMENTS["trade-off"]], 1)} == {5000}
    assert [experiment.name for experiment in find_experiments("queues")] == ["queues"]
    assert tuple(experiment.name for experiment in find_experiments("numerical")) == GROUPS["numerical"]
    with pytest.raises(SettingError, match=r"unknown experiment 'queus' \(did you mean 'queues'\?\)"):
        find_experiments("queus")


@pytest.mark.parametrize(
    "name",
    [name if name != "overview" else pytest.param(name, marks=pytest.mark.thorough) for name in GROUPS["numerical"]],
)
def test_every_experiment_has_tables_and_claims(results: list[Result], name: str) -> None:
    findings = result_of(results, name).findings
    assert findings.tables
    counts = {"overview": 0, "theory": 2, "stability": 7, "lemma": 4, "horizon": 4}
    assert len(findings.claims) == counts.get(name, 3)
    for claim in findings.claims:
        assert claim.verdict in ("holds", "does not hold", "not decided")
        assert claim.numbers
    for table in findings.tables.values():
        assert len({len(np.asarray(column)) for column in table.values()}) == 1


@pytest.mark.parametrize("name", GROUPS["numerical"])
def test_the_tables_have_the_columns_of_the_stored_ones(results: list[Result], name: str) -> None:
    for table, columns in result_of(results, name).findings.tables.items():
        with (RESULTS / "numerical" / f"{table}.csv").open(newline="") as opened:
            assert next(csv.reader(opened)) == list(columns)


def test_the_mean_owed_equals_that_of_the_kernels_queues(results: list[Result], store: RunStore) -> None:
    label = weight_label(20)
    means = []
    for columns in Runs(Queues().plans(SEEDS, ROUNDS), store).of(label):
        queues, owed = FairnessQueues(40, 0.15), []
        for record in columns.records():
            queues.advance(record.report.clients)
            owed.append(queues.owed.mean())
        means.append(owed)
    table = result_of(results, "queues").findings.tables["queues"]
    np.testing.assert_allclose(np.asarray(table[f"{label} mean"]), np.mean(means, axis=0), rtol=1e-12)


def test_random_is_slowest_and_fedcs_fastest_in_a_short_run(results: list[Result]) -> None:
    claims = {claim.name: claim for claim in result_of(results, "training-time").findings.claims}
    assert claims["random slowest"].verdict in ("holds", "not decided")
    table = result_of(results, "training-time").findings.tables["training-time-totals"]
    minutes = dict(zip(np.asarray(table["contender"]), np.asarray(table["minutes"]), strict=True))
    assert minutes["FedCS(3)"] < minutes[weight_label(20)] < minutes["random"]
    saved = dict(zip(np.asarray(table["contender"]), np.asarray(table["time_saved"]), strict=True))
    assert saved["FedCS(3)"] > saved[weight_label(20)] > saved["random"] == 0


def test_runs_that_are_stored_are_not_played_and_missing_ones_are_named(store: RunStore, results: list[Result]) -> None:
    played: list[int] = []
    reproduce([EXPERIMENTS["queues"]], store, seeds=SEEDS, rounds=ROUNDS, watch=played.append)
    assert played == []
    assert results
    experiment = EXPERIMENTS["queues"]
    with pytest.raises(SettingError, match="seed 0, is not in the store: play it first"):
        experiment.findings(Runs(experiment.plans(1, 77), store))


@pytest.mark.thorough
def test_results_are_written_as_figures_data_and_claims(shown: list[Result], tmp_path: Path) -> None:
    write_results(shown, tmp_path)
    for result in shown:
        assert (tmp_path / f"{result.experiment.name}.svg").read_text().startswith("<?xml")
        assert (tmp_path / f"{result.experiment.name}.png").read_bytes().startswith(b"\x89PNG")
    with (tmp_path / "queues.csv").open() as opened:
        rows = list(csv.DictReader(opened))
    assert len(rows) == ROUNDS
    assert float(rows[-1]["RBCS-F, weight 50 mean"]) > float(rows[-1]["RBCS-F, weight 1 mean"])
    claims = json.loads((tmp_path / "claims.json").read_text())
    assert [claim["name"] for claim in claims] == [claim.name for result in shown for claim in result.findings.claims]
    assert set(claims[0]) == {"experiment", "name", "statement", "verdict", "numbers", "panel"}


def test_a_folder_that_cannot_be_written_is_rejected(results: list[Result], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingError, match="cannot write"):
        write_results(results[:1], tmp_path / "file" / "results")


class Page(HTMLParser):
    """Collects tags, ids, links and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "xlink:href"):
                self.links.append(value or "")

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def page_of(results: list[Result], title: str = "Title") -> str:
    return render_report(
        results,
        title=title,
        lead="A summary.",
        headings=("policy", "mean round"),
        rows=[("rbcsf", "7.6 s")],
        settings={"rounds": ROUNDS},
        command="turnout demo",
        conclusion=("Use <it>.", "It is short."),
    )


@pytest.fixture(scope="module")
def report(shown: list[Result]) -> str:
    return page_of(shown)


def test_the_report_is_self_contained(shown: list[Result], report: str) -> None:
    page = Page(report)
    assert "script" not in page.tags
    assert page.tags.count("svg") == len(shown)
    inside = {link[1:] for link in page.links if link.startswith("#")}
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in page.links)
    assert len(set(page.ids)) == len(page.ids)
    assert inside <= set(page.ids)
    text = " ".join(page.texts)
    for result in shown:
        assert result.experiment.title in text
        for claim in result.findings.claims:
            assert claim.statement in text
    assert re.search(r"Claims: .*holds", text)


def test_the_report_has_a_conclusion_a_glossary_a_dark_theme_and_labels_for_narrow_screens(report: str) -> None:
    assert "<p>Use &lt;it&gt;.</p><p>It is short.</p>" in report
    assert "prefers-color-scheme: dark" in report
    assert '<td class="n" data-label="mean round">7.6 s</td>' in report
    assert all(f"<dt>{term}</dt>" in report for term in ("turn", "promise", "shortfall", "status", "seed"))


def test_the_report_escapes_foreign_text(results: list[Result]) -> None:
    malicious = Claim("x", "<img src=x onerror=alert(1)>", "holds", {"<b>": "<script>"})
    experiment = result_of(results, "queues")
    page = page_of(
        [Result(experiment.experiment, Findings([malicious], experiment.findings.tables))], "<script>1</script>"
    )
    assert "<img" not in page
    assert "<script" not in page


def test_verdicts_are_counted_and_drawing_is_deterministic(results: list[Result]) -> None:
    claims = [claim for result in results for claim in result.findings.claims]
    counts = re.findall(r"(\d+) (?:holds|does not hold|not decided)", verdict_summary(results))
    assert sum(map(int, counts)) == len(claims) == 29
    result = result_of(results, "training-time")
    one, two = (as_svg(result.experiment.draw(result.findings)) for _ in range(2))
    assert one == two


@pytest.fixture(scope="module")
def promise(store: RunStore) -> Result:
    return reproduce([PromiseComparison()], store, seeds=SEEDS, rounds=ROUNDS, workers=1)[0]


def test_the_comparison_adds_one_policy_to_the_runs_of_the_paper() -> None:
    assert len(plans_of([PromiseComparison(), TrainingTime()], SEEDS)) == (1 + 6) * SEEDS
    assert next(iter(PromiseComparison().plans(1))) == FAIR_PACE == LABELS[0]


def test_the_largest_shortfall_is_that_of_the_worst_seed_and_curves_are_means(promise: Result, store: RunStore) -> None:
    points, curves = promise.findings.tables["promise"], promise.findings.tables["promise-by-round"]
    runs = Runs(PromiseComparison().plans(SEEDS, ROUNDS), store)
    for index, label in enumerate(LABELS):
        missing = [shortfalls(columns, RATE) for columns in runs.of(label)]
        assert np.asarray(points["largest_shortfall"])[index] == max(one.largest for one in missing)
        assert np.asarray(curves[label])[-1] == pytest.approx(np.mean([one.at_end for one in missing]))
        assert len(np.asarray(curves[label])) == ROUNDS


def test_fair_pace_keeps_the_tolerance_and_the_figure_shows_every_contender(promise: Result) -> None:
    by_name = {claim.name: claim.verdict for claim in promise.findings.claims}
    assert by_name["within the tolerance"] == "holds"
    drawn = promise.experiment.draw(promise.findings)
    (legend,) = drawn.legends
    assert [text.get_text() for text in legend.get_texts()] == list(LABELS)
    left, right = drawn.axes
    assert len(right.lines) == len(LABELS) + 1  # and the tolerance
    assert left.get_xscale() == "log"
    shortfall = np.asarray(promise.findings.tables["promise"]["largest_shortfall"])
    shown = left.get_xticks()
    assert len(shown) >= 3
    assert shortfall.min() / 2 < min(shown)
    assert max(shown) < shortfall.max() * 2
