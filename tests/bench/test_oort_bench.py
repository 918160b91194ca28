from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks.literal_oort import LiteralOort, outcomes_of
from benchmarks.oort import MIN_SPEEDUP, OortComparison, check_same_cohorts, compare_oort
from turnout.bench.oort import HISTORY, OortFigures, OortFleet, measure_oort
from turnout.cli.app import app
from turnout.kernel.rounds import RoundReport
from turnout.policies import Oort

SMALL = ["bench", "oort", "--clients", "1000", "--cohort", "10", "--repeats", "1"]


def test_a_measured_round_of_oort_has_all_its_figures() -> None:
    figures = measure_oort(clients=400, cohort=10, repeats=2)
    assert (figures.clients, figures.cohort) == (400, 10)
    assert min(figures.round_seconds, figures.random_seconds) > 0
    assert OortFigures(400, 10, 0.02, 0.005).ratio == pytest.approx(4)


def test_half_of_the_fleet_takes_part_once_before_the_measurement() -> None:
    reports = OortFleet(400).history()
    assert [report.round for report in reports] == list(range(1, HISTORY + 1))
    rows = np.concatenate([report.clients for report in reports])
    assert len(rows) == len(set(rows.tolist())) == 200


def test_a_played_round_selects_available_clients_and_teaches_the_policy() -> None:
    fleet, policy = OortFleet(400), Oort(400, cohort_size=10)
    cohort = fleet.play_round(policy, 1)
    assert len(cohort) == 10
    assert fleet.available[cohort].all()
    assert np.flatnonzero(policy.turns).tolist() == cohort


def test_the_command_prints_both_times_and_their_ratio() -> None:
    shown = CliRunner().invoke(app, SMALL).stdout
    assert "A round of Oort, 1,000 clients, 10 per round:" in shown
    assert "A round of random selection:" in shown
    figures = json.loads(CliRunner().invoke(app, [*SMALL, "--json"]).stdout)
    assert figures["clients"] == 1000
    assert figures["ratio"] == pytest.approx(figures["round_seconds"] / figures["random_seconds"])


# The comparison with one dict per client


def test_a_comparison_of_oort_has_all_its_figures() -> None:
    figures = compare_oort(clients=400, cohort=10, repeats=2)
    assert (figures.clients, figures.cohort) == (400, 10)
    assert min(figures.round_seconds, figures.literal_seconds) > 0


def test_the_speedup_is_the_time_of_the_literal_oort_in_units_of_ours() -> None:
    assert OortComparison(10, 1, 0.01, 0.01 * MIN_SPEEDUP).met
    assert OortComparison(10, 1, 0.01, 0.1).speedup == pytest.approx(10)
    assert not OortComparison(10, 1, 0.01, 0.1).met


class IgnoresFailures(LiteralOort):
    """Does not remember which clients failed."""

    def gain(self, row: int, typical: float) -> float:
        self.clients[row]["failed"] = False
        return super().gain(row, typical)


class WrongInLargeFleets(LiteralOort):
    """Follows the rules only in a fleet of 40 clients."""

    def choose(self, available: list[int], round_: int) -> list[int]:
        chosen = super().choose(available, round_)
        return chosen if len(self.clients) == 40 else chosen[1:]


def test_different_rules_are_detected_before_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    check_same_cohorts()
    monkeypatch.setattr("benchmarks.oort.LiteralOort", IgnoresFailures)
    with pytest.raises(AssertionError, match="selected another cohort in round"):
        compare_oort(clients=400, cohort=10, repeats=1)


def test_different_cohorts_are_detected_in_the_measured_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.oort.LiteralOort", WrongInLargeFleets)
    with pytest.raises(AssertionError, match="selected other cohorts"):
        compare_oort(clients=400, cohort=10, repeats=1)


def test_the_outcomes_of_a_report_have_the_time_and_loss_of_each_client() -> None:
    times, losses = np.array([2.0, 5.0]), np.array([0.5, np.nan])
    report = RoundReport(3, np.array([4, 9]), np.ones((2, 3)), times, outcomes=["arrived", "failed"], losses=losses)
    assert outcomes_of(report) == {
        4: {"outcome": "arrived", "time": 2.0, "loss": 0.5},
        9: {"outcome": "failed", "time": 5.0, "loss": None},
    }
    assert outcomes_of(RoundReport(1, np.array([0]), np.ones((1, 3)), np.array([1.0])))[0]["outcome"] == "arrived"
