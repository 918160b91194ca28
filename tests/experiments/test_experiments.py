from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from turnout.errors import SettingError
from turnout.experiments.framework.claims import Claim
from turnout.experiments.framework.experiment import Findings, Runs
from turnout.experiments.framework.report import render_report
from turnout.experiments.framework.reproduce import Result, plans_of, reproduce, verdict_counts, write_results
from turnout.experiments.paper.catalogue import EXPERIMENTS, GROUPS, find_experiments
from turnout.experiments.paper.comparison import Queues, weight_label
from turnout.kernel.fairness import FairnessQueues
from turnout.store import RunStore

SEEDS, ROUNDS = 2, 60


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunStore]:
    with RunStore(tmp_path_factory.mktemp("experiments") / "runs.turnout") as opened:
        yield opened


@pytest.fixture(scope="module")
def results(store: RunStore) -> list[Result]:
    return reproduce(find_experiments("numerical"), store, seeds=SEEDS, rounds=ROUNDS, workers=1)


def result_of(results: list[Result], name: str) -> Result:
    return next(result for result in results if result.experiment.name == name)


def test_the_three_figures_of_the_paper_share_their_runs() -> None:
    shared = [EXPERIMENTS[name] for name in ("queues", "training-time", "pull-record")]
    assert len(plans_of(shared, 20)) == 6 * 20
    assert {plan.rounds for plan in plans_of(shared, 20)} == {500}
    weights = {plan.settings.get("speed_weight") for plan in plans_of(shared, 1)}
    assert weights == {1.0, 5.0, 20.0, 50.0, None}


def test_long_runs_are_as_long_as_the_study_says() -> None:
    assert {plan.rounds for plan in plans_of([EXPERIMENTS["theory"]], 1)} == {20_000, 500}
    assert {plan.rounds for plan in plans_of([EXPERIMENTS["trade-off"]], 1)} == {5000}


@pytest.mark.parametrize("name", GROUPS["numerical"])
def test_every_experiment_finds_something(results: list[Result], name: str) -> None:
    findings = result_of(results, name).findings
    assert findings.tables
    assert len(findings.claims) == {"overview": 0, "horizon": 4}.get(name, 3)
    for claim in findings.claims:
        assert claim.verdict in ("holds", "does not hold", "not decided")
        assert claim.numbers
    for table in findings.tables.values():
        assert len({len(np.asarray(column)) for column in table.values()}) == 1


def test_the_queues_are_those_that_the_kernel_keeps(results: list[Result], store: RunStore) -> None:
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


def test_random_is_slower_and_fedcs_faster_even_in_a_short_run(results: list[Result]) -> None:
    claims = {claim.name: claim for claim in result_of(results, "training-time").findings.claims}
    assert claims["random slowest"].verdict in ("holds", "not decided")
    table = result_of(results, "training-time").findings.tables["training-time-totals"]
    minutes = dict(zip(np.asarray(table["contender"]), np.asarray(table["minutes"]), strict=True))
    assert minutes["FedCS(3)"] < minutes[weight_label(20)] < minutes["random"]


def test_a_second_reproduction_plays_nothing(store: RunStore, results: list[Result]) -> None:
    again: list[int] = []
    reproduce([EXPERIMENTS["queues"]], store, seeds=SEEDS, rounds=ROUNDS, watch=again.append)
    assert again == []
    assert results


def test_findings_of_runs_that_were_not_played_are_refused(store: RunStore) -> None:
    experiment = EXPERIMENTS["queues"]
    with pytest.raises(SettingError, match="seed 0, is not in the store: play it first"):
        experiment.findings(Runs(experiment.plans(1, 77), store))


def test_results_are_written_as_figures_data_and_claims(results: list[Result], tmp_path: Path) -> None:
    write_results(results, tmp_path)
    for name in GROUPS["numerical"]:
        assert (tmp_path / f"{name}.svg").read_text().startswith("<?xml")
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    with (tmp_path / "queues.csv").open() as opened:
        rows = list(csv.DictReader(opened))
    assert len(rows) == ROUNDS
    assert float(rows[-1]["RBCS-F, weight 50 mean"]) > float(rows[-1]["RBCS-F, weight 1 mean"])
    claims = json.loads((tmp_path / "claims.json").read_text())
    assert len(claims) == 19
    assert set(claims[0]) == {"experiment", "name", "statement", "verdict", "numbers", "panel"}


def test_a_figure_drawn_twice_is_the_same_to_the_byte(results: list[Result], tmp_path: Path) -> None:
    for folder in ("one", "two"):
        write_results([result_of(results, "pull-record")], tmp_path / folder)
    assert (tmp_path / "one" / "pull-record.svg").read_bytes() == (tmp_path / "two" / "pull-record.svg").read_bytes()


def test_a_folder_that_cannot_be_written_is_refused(results: list[Result], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingError, match="cannot write"):
        write_results(results[:1], tmp_path / "file" / "results")


def test_names_and_groups_are_known_and_near_ones_suggested() -> None:
    assert [one.name for one in find_experiments("queues")] == ["queues"]
    assert tuple(one.name for one in find_experiments("numerical")) == GROUPS["numerical"]
    with pytest.raises(SettingError, match=r"unknown experiment 'queus' \(did you mean 'queues'\?\)"):
        find_experiments("queus")


class Page(HTMLParser):
    """What a browser would fetch, run or find twice."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "xlink:href"):
                self.links.append(value or "")

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def page_of(results: list[Result], title: str = "Title") -> str:
    return render_report(
        results,
        title=title,
        lead="What was done.",
        headings=("policy", "mean round"),
        rows=[("rbcsf", "7.6 s")],
        settings={"rounds": ROUNDS},
        command="turnout demo",
    )


def test_the_report_stands_on_its_own(results: list[Result]) -> None:
    page = Page(page_of(results))
    assert "script" not in page.tags
    assert page.tags.count("svg") == len(results)
    inside = {link[1:] for link in page.links if link.startswith("#")}
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in page.links)
    assert len(set(page.ids)) == len(page.ids)
    assert inside <= set(page.ids)
    words = " ".join(page.words)
    for result in results:
        assert result.experiment.title in words
        for claim in result.findings.claims:
            assert claim.statement in words
    assert re.search(r"Claims: .*holds", words)


def test_words_of_others_do_no_harm_in_the_report(results: list[Result]) -> None:
    wicked = Claim("x", "<img src=x onerror=alert(1)>", "holds", {"<b>": "<script>"})
    experiment = result_of(results, "queues")
    page = page_of(
        [Result(experiment.experiment, Findings([wicked], experiment.findings.tables))], "<script>1</script>"
    )
    assert "<img" not in page
    assert "<script" not in page


def test_verdicts_are_counted(results: list[Result]) -> None:
    claims = [claim for result in results for claim in result.findings.claims]
    assert sum(verdict_counts(claims).values()) == len(claims) == 19
