from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from turnout.bench.literal_oort import LiteralOort, fates_of
from turnout.bench.oort import LEAST, OortFigures, check_same_choices, measure_oort
from turnout.cli.app import app
from turnout.kernel.rounds import RoundReport

SMALL = ["bench", "oort", "--clients", "1000", "--cohort", "10", "--repeats", "1"]


def test_a_measured_round_of_oort_has_all_its_figures() -> None:
    figures = measure_oort(clients=400, cohort=10, repeats=2)
    assert (figures.clients, figures.cohort) == (400, 10)
    assert min(figures.round_seconds, figures.literal_seconds) > 0


def test_a_speedup_is_how_much_longer_dictionaries_take() -> None:
    assert OortFigures(10, 1, 0.01, 0.01 * LEAST).met
    assert OortFigures(10, 1, 0.01, 0.1).speedup == pytest.approx(10)
    assert not OortFigures(10, 1, 0.01, 0.1).met


class Forgetful(LiteralOort):
    """Does not remember who failed."""

    def gain(self, row: int, typical: float) -> float:
        self.clients[row]["failed"] = False
        return super().gain(row, typical)


class Hasty(LiteralOort):
    """Follows the rules in a small fleet only."""

    def choose(self, available: list[int], round_: int) -> list[int]:
        chosen = super().choose(available, round_)
        return chosen if len(self.clients) == 40 else chosen[1:]


def test_other_rules_are_noticed_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    check_same_choices()
    monkeypatch.setattr("turnout.bench.oort.LiteralOort", Forgetful)
    with pytest.raises(AssertionError, match="chose otherwise in round"):
        measure_oort(clients=400, cohort=10, repeats=1)


def test_other_choices_are_noticed_in_the_rounds_that_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnout.bench.oort.LiteralOort", Hasty)
    with pytest.raises(AssertionError, match="chose otherwise"):
        measure_oort(clients=400, cohort=10, repeats=1)


def test_fates_are_what_a_report_tells_of_each_client() -> None:
    times, losses = np.array([2.0, 5.0]), np.array([0.5, np.nan])
    report = RoundReport(3, np.array([4, 9]), np.ones((2, 3)), times, outcomes=["arrived", "failed"], losses=losses)
    assert fates_of(report) == {
        4: {"outcome": "arrived", "time": 2.0, "loss": 0.5},
        9: {"outcome": "failed", "time": 5.0, "loss": None},
    }
    assert fates_of(RoundReport(1, np.array([0]), np.ones((1, 3)), np.array([1.0])))[0]["outcome"] == "arrived"


def test_the_command_tells_both_times_their_ratio_and_the_target() -> None:
    shown = CliRunner().invoke(app, SMALL).stdout
    assert "A round of Oort, 1,000 clients, 10 chosen:" in shown
    assert "with one dictionary a client:" in shown
    assert "(target: at least 20, " in shown
    told = json.loads(CliRunner().invoke(app, [*SMALL, "--json"]).stdout)
    assert told["speedup"] == pytest.approx(told["literal_seconds"] / told["round_seconds"])
    assert (told["clients"], told["least"]) == (1000, 20)
    assert told["met"] == (told["speedup"] >= 20)
