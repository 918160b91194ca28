from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lab.studies.made_up import reproduce
from turnout.lab import RunStore
from turnout.lab.analysis.promise import shortfalls
from turnout.lab.studies.framework.experiment import Runs
from turnout.lab.studies.framework.reproduce import Result, plans_of
from turnout.lab.studies.paper.comparison import RATE, TrainingTime
from turnout.lab.studies.promise_comparison import FAIR_PACE, LABELS, PromiseComparison

SEEDS, ROUNDS = 2, 60


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("promise") / "runs.turnout"


@pytest.fixture(scope="module")
def result(store: Path) -> Result:
    with RunStore(store) as opened:
        return reproduce([PromiseComparison()], opened, seeds=SEEDS, rounds=ROUNDS, workers=1)[0]


def test_the_comparison_adds_one_policy_to_the_runs_of_the_paper() -> None:
    assert len(plans_of([PromiseComparison(), TrainingTime()], SEEDS)) == (1 + 6) * SEEDS
    assert next(iter(PromiseComparison().plans(1))) == FAIR_PACE == LABELS[0]


def test_the_largest_shortfall_is_that_of_the_worst_seed_and_the_curves_are_means(result: Result, store: Path) -> None:
    points, curves = result.findings.tables["promise"], result.findings.tables["promise-by-round"]
    with RunStore(store, read_only=True) as opened:
        runs = Runs(PromiseComparison().plans(SEEDS, ROUNDS), opened)
        for index, label in enumerate(LABELS):
            missing = [shortfalls(columns, RATE) for columns in runs.of(label)]
            assert np.asarray(points["largest_shortfall"])[index] == max(one.largest for one in missing)
            assert np.asarray(curves[label])[-1] == pytest.approx(np.mean([one.at_end for one in missing]))
            assert len(np.asarray(curves[label])) == ROUNDS


def test_fair_pace_keeps_the_tolerance_and_the_figure_shows_every_contender(result: Result) -> None:
    by_name = {claim.name: claim.verdict for claim in result.findings.claims}
    assert by_name["within the tolerance"] == "holds"
    drawn = result.experiment.draw(result.findings)
    (legend,) = drawn.legends
    assert [text.get_text() for text in legend.get_texts()] == list(LABELS)
    left, right = drawn.axes
    assert len(right.lines) == len(LABELS) + 1  # and the tolerance
    assert left.get_xscale() == "log"
    shortfall = np.asarray(result.findings.tables["promise"]["largest_shortfall"])
    shown = left.get_xticks()
    assert len(shown) >= 3
    assert shortfall.min() / 2 < min(shown)
    assert max(shown) < shortfall.max() * 2
