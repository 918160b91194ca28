"""The time to an accuracy in Flower: the stored runs, the page that shows them, and the curves that are measured."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.flower_accuracy import SELECTIONS, TrainingCurve, summarize
from turnout.kernel.arrays import FloatArray
from turnout.lab.analysis.statistics import mean_confidence_interval

ROOT = Path(__file__).parents[2]
ROUNDS = 120


def stored_runs() -> list[dict[str, str]]:
    with (ROOT / "docs/results/flower/runs.csv").open() as file:
        return list(csv.DictReader(file))


def section() -> str:
    """Returns the section of the page, without line breaks within its paragraphs."""
    text = (ROOT / "docs/flower.md").read_text().partition("\n## What it brings and costs\n")[2].partition("\n## ")[0]
    return re.sub(r"(?<=\S)\n {0,2}(?=[^\s|-])", " ", text)


def test_the_table_of_the_page_shows_the_stored_runs() -> None:
    lines = [line for line in section().splitlines() if line.startswith("| ")]
    heading, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    stored = summarize(stored_runs())
    assert [row["selection"] for row in stored] == list(SELECTIONS)
    assert rows == [[row[name] for name in heading] for row in stored]
    assert {run["seed"] for run in stored_runs()} == set(map(str, range(8)))


def test_the_text_of_the_page_compares_the_stored_runs_seed_by_seed() -> None:
    def values(selection: str, measure: str) -> FloatArray:
        return np.array([float(run[measure]) for run in stored_runs() if run["selection"] == selection])

    def difference(selection: str, other: str, measure: str) -> str:
        mean, half_width = mean_confidence_interval(values(selection, measure) - values(other, measure))
        return f"{mean:.3f} ± {half_width:.3f}".replace("-", "−")

    fair = "FairPace, rate 0.1"
    shares = mean_confidence_interval(values(fair, "min to 0.85") / values("random", "min to 0.85"))
    losses = sorted(values("random", "same rounds") - values(fair, "same rounds"))[-2:]
    rate, large, strict = "FairPace, rate 0.2", f"{fair}, cohorts of 12", f"{fair}, tolerance 1"
    value = f"{fair}, value of losses"
    for sentence in (
        "0.85 after {:.2f} ± {:.2f} of random's time".format(*shares),
        f"the accuracy is {difference('random', fair, 'same rounds')} below random's",
        "in the two worst seeds {:.3f} and {:.3f}".format(*losses),
        f"After the same time it is {difference(fair, 'random', 'same time')} above random's",
        f"gains {difference(value, fair, 'same rounds')} in the same rounds, compared with the same rate without it",
        f"after the same time it is {difference(value, 'random', 'same time')} above random's",
        f"it is {difference('random', rate, 'same rounds')} below random's after the same rounds",
        f"and {difference(rate, 'random', 'same time')} above it after the same time",
        f"Cohorts of 12 gain {difference(large, fair, 'same rounds')} in the same rounds",
        f"A tolerance of 1 does not help ({difference(strict, fair, 'same rounds')})",
    ):
        assert sentence in section()


@pytest.mark.thorough
@pytest.mark.parametrize("selection", ["random", "FairPace, rate 0.1", "FairPace, rate 0.1, value of losses"])
def test_a_stored_run_can_be_repeated(selection: str) -> None:
    pytest.importorskip("flwr")
    from benchmarks.flower_training import train

    (stored,) = [run for run in stored_runs() if (run["selection"], run["seed"]) == (selection, "1")]
    policy, settings = SELECTIONS[selection]
    seconds, accuracy = train(policy, {**settings, "seed": 1} if policy == "random" else settings, 1, ROUNDS)
    measures = TrainingCurve(np.cumsum(seconds), np.array(accuracy)).measures(ROUNDS, sum(seconds))
    assert measures["round, s"] == pytest.approx(float(stored["round, s"]), rel=0.02)
    assert measures["same rounds"] == pytest.approx(float(stored["same rounds"]), abs=0.01)
    assert measures["min to 0.85"] == pytest.approx(float(stored["min to 0.85"]), rel=0.1)


def test_a_curve_is_measured_after_the_same_rounds_and_after_the_same_time() -> None:
    curve = TrainingCurve(np.linspace(60.0, 4800.0, 80), np.array([0.5, 0.75, 0.9, 0.95]).repeat(20))
    assert [curve.minutes_to(level) for level in (0.5, 0.7, 0.9, 0.99)] == [5.0, 24.0, 45.0, np.inf]
    measures = curve.measures(40, 60 * 60.0)
    assert (measures["round, s"], measures["same rounds"], measures["same time"]) == (60.0, 0.75, 0.9)
    (row,) = summarize([{"selection": "random", "seed": seed, **measures} for seed in range(2)])
    assert (row["min to 0.7"], row["min to 0.85"], row["same time"]) == ("24.0 ± 0.0", "44.0 ± 0.0", "0.900 ± 0.000")
    (row,) = summarize([{"selection": "random", "seed": 0, "min to 0.9": np.inf}])
    assert row["min to 0.9"] == "not reached"
