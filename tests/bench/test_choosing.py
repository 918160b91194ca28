from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from turnout.bench import choosing
from turnout.bench.choosing import MILLION, Case, Measured, large_case, measure, standard_cases, verdicts
from turnout.bench.fleets import CONDITIONS
from turnout.bench.paced_fleets import PACED_CONDITIONS
from turnout.bench.timing import interleaved
from turnout.kernel.rounds import RoundOffer


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_bench_fleet_is_in_its_condition(condition: str) -> None:
    fleet = CONDITIONS[condition](6000, 60, np.random.default_rng(0))
    times = fleet.policy.model.optimistic(fleet.contexts, 0.1)
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


def test_a_full_round_selects_learns_and_counts_turns() -> None:
    fleet = CONDITIONS["mixed"](3000, 30, np.random.default_rng(0))
    chosen = fleet.policy.ask(RoundOffer(1, fleet.available, fleet.contexts)).clients
    bank = fleet.policy.model.bank.copy()
    fleet.full_round()
    assert fleet.policy.turns.sum() == 30
    assert np.flatnonzero((fleet.policy.model.bank != bank).any(axis=0)).tolist() == chosen.tolist()


@pytest.mark.parametrize("condition", PACED_CONDITIONS)
def test_a_bench_fleet_of_fair_pace_is_in_its_condition(condition: str) -> None:
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


def test_targets_apply_only_to_a_million_clients() -> None:
    targets = {
        (case.condition, case.cohort, case.kernel): case.most
        for case in standard_cases(MILLION)
        if case.most is not None and case.policy == "rbcsf"
    }
    assert targets == {
        ("mixed", 100, "compiled"): 1.3,
        ("mixed", 10_000, "compiled"): 2.0,
        ("mostly cold", 100, "compiled"): 2.5,
        ("all ties", 100, "compiled"): 5.0,
        ("mixed", 100, "numpy"): 6.0,
    }
    paced = {
        (case.condition, case.cohort): case.most
        for case in standard_cases(MILLION)
        if case.most is not None and case.policy == "fair-pace"
    }
    assert paced == {
        ("mixed", 100): 1.3,
        ("settled", 100): 1.3,
        ("mostly cold", 100): 1.3,
        ("all urgent", 100): 1.3,
        ("all ties", 100): 1.6,
    }
    assert {case.policy for case in standard_cases(5000)} == {"rbcsf", "fair-pace"}
    assert all(case.most is None for case in standard_cases(5000))
    assert (large_case().clients, large_case().cohort, large_case().most) == (10 * MILLION, 100_000, 3.0)


def figure(clients: int, milliseconds: float, read: float, most: float) -> Measured:
    case = Case("mixed", clients, clients // 100, "compiled", most)
    return Measured(case, milliseconds, milliseconds / 10, milliseconds / read, read, 111.0)


def test_verdicts_compare_figures_with_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    results = verdicts([figure(MILLION, 15.0, 6.0, 2.0), figure(10 * MILLION, 300.0, 60.0, 3.0)], import_repeats=1)
    found = {verdict.target: verdict for verdict in results}
    small = found["N = 1,000,000, m = 10,000, mixed, compiled: copies"]
    assert small.met
    assert small.figure == 1.5
    assert not found["N = 10,000,000, m = 100,000, mixed, compiled: copies"].met
    growth = found["growth from 1e6 to 1e7 clients / growth of the read"]
    assert growth.figure == pytest.approx(2.0)
    assert not growth.met
    assert found["bytes per client, mixed, compiled"].met
    paced = Measured(Case("mixed", MILLION, 100, "compiled", 1.3, "fair-pace"), 14.0, 1.25, 1.6, 9.0, 149.0)
    monkeypatch.setattr(choosing, "import_seconds", lambda names, _: dict.fromkeys(names, 1.0))
    (verdict, *_, imports) = verdicts([paced], import_repeats=1)
    assert (imports.figure, imports.met) == (1, True)
    assert (verdict.target, verdict.met) == ("fair-pace, N = 1,000,000, m = 100, mixed, compiled: copies", True)


def test_a_measured_case_has_all_its_figures() -> None:
    figures = measure(Case("mixed", 3000, 30, "numpy"), repeats=1).as_dict()
    assert figures["condition"] == "mixed"
    assert figures["milliseconds"] > 0
    assert figures["bytes_per_client"] >= 72 + 24 + 8 + 1 + 4
    paced = measure(Case("mostly cold", 3000, 30, "compiled", policy="fair-pace"), repeats=1).as_dict()
    assert paced["policy"] == "fair-pace"
    assert paced["copies"] > 0
    assert paced["bytes_per_client"] >= 93 + 48 + 8


def test_tasks_are_measured_in_turns() -> None:
    calls: list[str] = []
    seconds = interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repeats=2)
    assert calls == ["a", "b", "a", "b", "a", "b"]
    assert set(seconds) == {"a", "b"}
