"""Fleets of the benchmarks are in their conditions, and what is measured with them happens."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.fleets import CONDITIONS, PACED_CONDITIONS, RBCSFFleet
from benchmarks.literal_oort import LiteralOort, outcomes_of
from benchmarks.oort import HISTORY, OortFleet, oort
from benchmarks.slots import decisions_of
from turnout.kernel.rounds import RoundOffer, RoundReport
from turnout.policies import Oort


@pytest.mark.parametrize("condition", CONDITIONS["rbcsf"])
def test_a_fleet_of_rbcsf_is_in_its_condition(condition: str) -> None:
    fleet = CONDITIONS["rbcsf"][condition](6000, 60, np.random.default_rng(0))
    assert isinstance(fleet, RBCSFFleet)
    times = fleet.policy.time_model.optimistic(fleet.contexts, 0.1)
    owed = fleet.policy.owed
    assert (owed >= 0).all()
    conditions: dict[str, Callable[[], bool]] = {
        "mixed": lambda: abs(np.corrcoef(times, owed)[0, 1]) < 0.1 and (times > 0).mean() > 0.9,
        "settled": lambda: np.corrcoef(times, owed)[0, 1] > 0.3,
        "mostly cold": lambda: 0.85 < (times == 0).mean() < 0.99,
        "cold": lambda: (times == 0).all() and len(set(owed.tolist())) == 1,
        "all ties": lambda: len(set(times.tolist())) == 1 and times[0] > 0 and len(set(owed.tolist())) == 1,
        "heavy-tailed": lambda: times.max() > 30 * np.median(times),
        "adverse": lambda: (np.diff(owed[np.argsort(times, kind="stable")]) >= 0).mean() > 0.99,
    }
    assert conditions[condition]()


@pytest.mark.parametrize("condition", PACED_CONDITIONS)
def test_a_fleet_of_fair_pace_is_in_its_condition(condition: str) -> None:
    fleet = PACED_CONDITIONS[condition](6000, 60, np.random.default_rng(0))
    policy, rows = fleet.policy, np.arange(6000)
    times = policy.learned()[0].optimistic(fleet.contexts, 0.0)
    pace = policy.pace()
    slack = pace.slack(rows) / pace.units_per_turn
    assert fleet.available.mean() == pytest.approx(0.8, abs=0.05)
    conditions: dict[str, Callable[[], bool]] = {
        "mixed": lambda: abs(np.corrcoef(times, slack)[0, 1]) < 0.1 and slack.min() > 0,
        "settled": lambda: np.corrcoef(times, slack)[0, 1] < -0.3 and slack.min() > 0,
        "mostly cold": lambda: (policy.turns == 0).mean() > 0.85 and slack.min() > 0,
        "all urgent": lambda: slack.max() <= 0 and (policy.turns == 0).mean() > 0.98,
        "all ties": lambda: len(set(times.tolist())) == len(set(slack.tolist())) == 1 and slack[0] > 0,
    }
    assert conditions[condition]()


def test_a_full_round_of_rbcsf_selects_learns_and_counts_turns() -> None:
    fleet = CONDITIONS["rbcsf"]["mixed"](3000, 30, np.random.default_rng(0))
    assert isinstance(fleet, RBCSFFleet)
    chosen = fleet.policy.ask(RoundOffer(1, fleet.available, fleet.contexts)).clients
    bank = fleet.policy.time_model.bank.copy()
    fleet.full_round()
    assert fleet.policy.turns.sum() == 30
    assert np.flatnonzero((fleet.policy.time_model.bank != bank).any(axis=0)).tolist() == chosen.tolist()


def test_a_full_round_of_fair_pace_selects_learns_accrues_and_counts_turns() -> None:
    fleet = PACED_CONDITIONS["mixed"](3000, 30, np.random.default_rng(0))
    policy = fleet.policy
    chosen = policy.ask(RoundOffer(1, fleet.available, fleet.contexts)).clients
    bank, turns, rounds = policy.learned()[0].bank.copy(), policy.turns.copy(), policy.debts.rounds
    fleet.full_round()
    assert np.flatnonzero(policy.turns - turns).tolist() == chosen.tolist()
    assert (policy.debts.rounds - rounds).astype(bool).tolist() == fleet.available.tolist()
    assert np.flatnonzero((policy.learned()[0].bank != bank).any(axis=0)).tolist() == chosen.tolist()
    assert fleet.considered(30) < 3000
    read = sum(array.nbytes for array in fleet.arrays())
    assert read == 3000 * (3 * 8 + 3 * 8 + 4 * 8 + 8 + 4 + 1)
    assert fleet.held_bytes() == read + 3000 * (6 * 8 + 8)


@pytest.mark.parametrize("condition", PACED_CONDITIONS)
def test_a_decision_gives_one_turn_and_everybody_earns(condition: str) -> None:
    fleet = PACED_CONDITIONS[condition](2000, 1, np.random.default_rng(0))
    fleet.available[:] = True
    turns, rounds = fleet.policy.turns.copy(), np.asarray(fleet.policy.debts.accounts().rounds).copy()
    decide = decisions_of(fleet)
    for _ in range(3):
        decide()
    assert int((fleet.policy.turns - turns).sum()) == 3
    assert (np.asarray(fleet.policy.debts.accounts().rounds) - rounds == 3).all()


# Oort, and the same rules with one dict per client


def test_half_of_the_fleet_takes_part_once_before_oort_is_measured() -> None:
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


class IgnoresFailures(LiteralOort):
    """Does not remember which clients failed."""

    def gain(self, row: int, typical: float) -> float:
        self.clients[row]["failed"] = False
        return super().gain(row, typical)


def test_a_literal_oort_with_other_rules_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.oort.LiteralOort", IgnoresFailures)
    with pytest.raises(RuntimeError, match="selected other cohorts"):
        oort(clients=400, cohort=40, repeats=20)


def test_the_outcomes_of_a_report_have_the_time_and_loss_of_each_client() -> None:
    times, losses = np.array([2.0, 5.0]), np.array([0.5, np.nan])
    report = RoundReport(3, np.array([4, 9]), np.ones((2, 3)), times, outcomes=["arrived", "failed"], losses=losses)
    assert outcomes_of(report) == {
        4: {"outcome": "arrived", "time": 2.0, "loss": 0.5},
        9: {"outcome": "failed", "time": 5.0, "loss": None},
    }
    assert outcomes_of(RoundReport(1, np.array([0]), np.ones((1, 3)), np.array([1.0])))[0]["outcome"] == "arrived"
