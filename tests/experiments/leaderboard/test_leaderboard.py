from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnout.analysis.metrics import available_rates, jain_index, mean_and_band, replayed_estimates
from turnout.errors import SettingError, TurnoutError
from turnout.experiments.framework.experiment import Findings, Runs
from turnout.experiments.framework.reproduce import reproduce
from turnout.experiments.leaderboard import leaderboard
from turnout.experiments.leaderboard.choosing_cost import choosing_costs
from turnout.experiments.leaderboard.forecasts import (
    PLAIN,
    TRUTH,
    VARIANTS,
    Variant,
    forecast_table,
    forecasts,
    relative_errors,
)
from turnout.experiments.leaderboard.front import on_front, places
from turnout.experiments.leaderboard.leaderboard import (
    LEAST_PRESENCE,
    Leaderboard,
    as_json,
    certificate_of,
    rows_of,
    with_costs,
    write_leaderboard,
)
from turnout.experiments.leaderboard.suites import SUITES, Contender, Suite, find_suite
from turnout.kernel.fairness import FairnessQueues
from turnout.policies.registry import POLICIES, WRAPPERS
from turnout.simulator import play
from turnout.simulator.plans import RunPlan
from turnout.simulator.sweep import play_plan
from turnout.store import RoundColumns, RunStore

LABELS = {
    "numerical": ("RBCS-F, weight 20", "random", "Oort", "FedCS(3), learned", "Oort + guarantee", "fastest"),
    "traces": ("RBCS-F, weight 0.1", "random", "CS-UCB-Q", "fair oracle, weight 0.1"),
    "training": ("RBCS-F, weight 20", "random", "UCB-CS", "fastest"),
}
ROUNDS = {"numerical": 40, "traces": 60, "training": 30}


def small(name: str) -> Suite:
    suite = find_suite(name)
    own = tuple(one for one in suite.contenders if one.label in LABELS[name])
    assert len(own) == len(LABELS[name])
    return replace(suite, contenders=own)


class Played:
    def __init__(self, name: str, folder: Path) -> None:
        self.board, self.rounds = Leaderboard(small(name)), ROUNDS[name]
        self.store = RunStore(folder / f"{name}.turnout")
        self.plans = self.board.plans(2, self.rounds)
        (result,) = reproduce([self.board], self.store, seeds=2, rounds=self.rounds, workers=1)
        self.findings: Findings = result.findings
        self.rows = {row["contender"]: row for row in rows_of(result.findings.tables["leaderboard"])}

    def columns(self, label: str) -> list[RoundColumns]:
        return list(Runs(self.plans, self.store).of(label))


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Played]]:
    folder = tmp_path_factory.mktemp("leaderboard")
    every = {name: Played(name, folder) for name in SUITES}
    yield every
    for one in every.values():
        one.store.close()


# Rosters


@pytest.mark.parametrize("name", list(SUITES))
def test_every_policy_plays_or_is_left_out_with_a_reason(name: str) -> None:
    suite = SUITES[name]
    inside = {one.settings.get("policy", one.policy) for one in suite.contenders}
    assert inside | set(suite.left_out) == set(POLICIES)
    assert not inside & set(suite.left_out)
    labels = [one.label for one in suite.contenders]
    assert len(set(labels)) == len(labels)


@pytest.mark.parametrize("name", list(SUITES))
def test_every_contender_can_be_built_and_who_is_told_the_truth_is_marked(name: str) -> None:
    suite = SUITES[name]
    for one, plans in zip(suite.contenders, suite.plans(1, 10).values(), strict=True):
        policy, world = plans[0].build()
        assert policy.requires_expected_times == one.told_truth, one.label
        assert (world.offer(1).expected_times is not None) or not one.told_truth
        assert hasattr(policy, "certificate") or one.promised is None
        assert "max_owed" not in one.settings, "the certificate is computed without a cap"


def test_only_the_training_suite_has_policies_that_need_losses() -> None:
    for name, suite in SUITES.items():
        policies = {one.settings.get("policy", one.policy) for one in suite.contenders}
        assert ({"power-of-choice", "active-fl", "ucb-cs"} <= policies) == (name == "training")


def test_who_promises_by_the_end_has_the_last_round_as_its_horizon() -> None:
    suite = SUITES["numerical"]
    (late,) = [one for one in suite.contenders if one.by_the_end]
    assert suite.plans(1)[late.label][0].settings["horizon"] == suite.rounds
    assert suite.plans(1, 30)[late.label][0].settings["horizon"] == 30


def test_a_guarantee_goes_around_others() -> None:
    for suite in SUITES.values():
        assert any(one.policy in WRAPPERS and one.settings["policy"] == "oort" for one in suite.contenders)


def test_everyone_meets_the_same_seeds() -> None:
    for suite in SUITES.values():
        assert {tuple(plan.seed for plan in own) for own in suite.plans(4, 5).values()} == {(0, 1, 2, 3)}


def test_bad_names_and_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"unknown suite 'numeric' .did you mean 'numerical'"):
        find_suite("numeric")
    with pytest.raises(SettingError, match="the suite numerical plays no traces"):
        SUITES["numerical"].on_traces([tmp_path / "phones.csv"])
    with pytest.raises(TurnoutError, match=r"nowhere\.csv"):
        SUITES["traces"].on_traces([tmp_path / "nowhere.csv"])


def test_recorded_clients_are_known_by_what_the_files_hold(tmp_path: Path) -> None:
    phones = tmp_path / "phones.csv"
    phones.write_text("client,start,stop,end\nanna,0,5000,9000\nben,100,8000,9000\n")
    first = SUITES["traces"].on_traces([phones])
    assert "clients" not in first.world_settings
    key = first.plans(1, 5)["random"][0].key
    phones.write_text("client,start,stop,end\nanna,0,5000,9000\nben,100,7000,9000\n")
    assert SUITES["traces"].on_traces([phones]).plans(1, 5)["random"][0].key != key


# Figures


@pytest.mark.parametrize("name", list(SUITES))
def test_figures_are_those_of_the_records(played: dict[str, Played], name: str) -> None:
    one = played[name]
    for label in LABELS[name]:
        by_seed: dict[str, list[float]] = {}
        for plan in one.plans[label]:
            for word, value in literal_figures(plan).items():
                by_seed.setdefault(word, []).append(value)
        for word, values in by_seed.items():
            mean, band = mean_and_band(values)
            assert one.rows[label][word] == pytest.approx(float(mean), abs=1e-5), (label, word)
            assert one.rows[label][f"{word}_band"] == pytest.approx(float(band), abs=1e-5), (label, word)
        share = "least_share_of_available" if name == "traces" else "least_share_of_all"
        assert one.rows[label]["least_share"] == one.rows[label][share]


def literal_figures(plan: RunPlan) -> dict[str, float]:
    """Round by round, client by client, from records that are played anew."""
    policy, world = plan.build()
    turns, there, durations, chosen, arrived = [0] * world.clients, [0] * world.clients, [], 0, 0
    for record in play(policy, world, plan.rounds):
        report = record.report
        durations.append(report.duration)
        assert report.available is not None
        for client in range(world.clients):
            there[client] += bool(report.available[client])
        for client in report.clients.tolist():
            turns[client] += 1
        chosen += len(report.clients)
        arrived += int(report.with_outcome("arrived").sum())
    counted = [t / n for t, n in zip(turns, there, strict=True) if n and n >= LEAST_PRESENCE * plan.rounds]
    return {
        "mean_round": sum(durations) / plan.rounds,
        "least_share_of_all": min(turns) / plan.rounds,
        "least_share_of_available": min(counted),
        "jain": jain_index(turns),
        "chosen": chosen / plan.rounds,
        "arrived": arrived / chosen,
    }


def test_accuracy_is_told_where_models_are_trained(played: dict[str, Played]) -> None:
    one = played["training"]
    finals = {label: [c.metrics["accuracy"] for c in one.columns(label)] for label in LABELS["training"]}
    last = {label: [own[~np.isnan(own)][-1] for own in runs] for label, runs in finals.items()}
    target = 0.9 * float(np.mean(last["random"]))
    for label, row in one.rows.items():
        assert row["final_accuracy"] == pytest.approx(np.mean(last[label]), abs=1e-5)
        assert row["target"] == pytest.approx(target, abs=1e-5)
        minutes = []
        for columns in one.columns(label):
            clock = np.cumsum(columns.durations) / 60
            there = np.flatnonzero(np.nan_to_num(columns.metrics["accuracy"]) >= target)
            minutes.append(clock[there[0]] if len(there) else clock[-1])
        assert row["minutes_to_target"] == pytest.approx(np.mean(minutes), abs=1e-5)
    assert "minutes_to_target" not in played["numerical"].rows["random"]


def test_the_certificate_is_that_of_queues_that_were_told_the_same_rounds(played: dict[str, Played]) -> None:
    for name, label in (("numerical", "Oort + guarantee"), ("traces", "CS-UCB-Q")):
        (contender,) = [one for one in played[name].board.suite.contenders if one.label == label]
        worst = []
        for columns in played[name].columns(label):
            queues = FairnessQueues(columns.clients, contender.promised or 0.0, accrual=contender.accrual)
            for record in columns.records():
                queues.advance(record.report.clients, record.report.available)
            literal, ours = queues.certificate(columns.turns), certificate_of(columns, contender)
            for word in ("promised_units", "owed_units", "turns"):
                np.testing.assert_array_equal(getattr(literal, word), getattr(ours, word))
            assert ours.holds
            worst.append((literal.promised - columns.turns).max())
        row = played[name].rows[label]
        assert row["certificate"] == "holds"
        assert row["worst_missing"] == pytest.approx(max(worst), abs=1e-5)
    assert played["numerical"].rows["random"]["promised"] is None


def test_who_is_hardly_there_does_not_count_as_the_least_chosen() -> None:
    columns = play_plan(RunPlan("random", 40, world="traces", world_settings={"clients": 40}))
    every, some = available_rates(columns), available_rates(columns, least=0.2)
    assert columns.available is not None
    there = columns.available.sum(axis=0)
    assert np.isnan(every).tolist() == (there == 0).tolist()
    assert np.isnan(some).tolist() == (there < 8).tolist()


# The front


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12))
def test_the_front_is_whom_nobody_beats(points: list[tuple[int, int]]) -> None:
    found = on_front([time for time, _ in points], [share for _, share in points])
    for (time, share), best in zip(points, found.tolist(), strict=True):
        beaten = any(t <= time and s >= share and (t, s) != (time, share) for t, s in points)
        assert best != beaten


def test_near_the_front_is_who_is_not_beaten_for_certain() -> None:
    times = {"a": np.array([1.0, 1.1, 0.9]), "b": np.array([1.0, 1.3, 0.9]), "c": np.array([5.0, 5.1, 4.9])}
    shares = {label: np.full(3, 0.1) for label in times}
    assert places(times, shares) == {"a": "front", "b": "near", "c": "behind"}
    assert places({}, {}) == {}


def test_the_front_leaves_out_the_truth_and_small_cohorts(played: dict[str, Played]) -> None:
    rows = played["numerical"].rows
    assert rows["fastest"]["front"] == ""
    assert rows["fastest"]["told_truth"] is True
    fast = rows["FedCS(3), learned"]
    assert (fast["front"] == "") == (fast["chosen"] < 0.9 * rows["random"]["chosen"])
    eligible = {label: row for label, row in rows.items() if row["front"]}
    for label, row in eligible.items():
        beaten = any(
            other["mean_round"] <= row["mean_round"]
            and other["least_share"] >= row["least_share"]
            and (other["mean_round"], other["least_share"]) != (row["mean_round"], row["least_share"])
            for name, other in eligible.items()
            if name != label
        )
        assert (row["front"] == "front") != beaten


# Forecasts


def test_the_plain_forecast_is_the_models_own(played: dict[str, Played]) -> None:
    for columns in played["traces"].columns("RBCS-F, weight 0.1"):
        predicted, _ = replayed_estimates(columns)
        np.testing.assert_allclose(forecasts(columns, PLAIN), predicted, rtol=1e-6, atol=1e-8)
        faded = Variant("faded", forgetting=0.9)
        predicted, _ = replayed_estimates(columns, forgetting=0.9)
        np.testing.assert_allclose(forecasts(columns, faded), predicted, rtol=1e-6, atol=1e-8)


def test_no_forecast_knows_the_round_it_is_about(played: dict[str, Played]) -> None:
    (columns, _) = played["traces"].columns("RBCS-F, weight 0.1")
    last = columns.starts[-2]
    other = columns.exchange_times.copy()
    other[last:] *= 10
    changed = replace(columns, exchange_times=other)
    for one in VARIANTS:
        np.testing.assert_array_equal(forecasts(columns, one), forecasts(changed, one))


def test_errors_are_of_the_second_half_and_of_those_that_came_back(played: dict[str, Played]) -> None:
    (columns, _) = played["traces"].columns("random")
    errors = relative_errors(columns, 2 * columns.exchange_times)
    literal = 0
    for place, record in enumerate(columns.records()):
        if 2 * place >= len(columns):
            literal += int((~record.report.with_outcome("failed")).sum())
    assert len(errors) == literal
    np.testing.assert_allclose(errors, 1.0)


def test_forecasts_have_a_row_a_variant_and_one_of_the_truth(played: dict[str, Played]) -> None:
    rows = {row["forecast"]: row for row in rows_of(played["traces"].findings.tables["forecasts"])}
    assert list(rows) == [*(one.label for one in VARIANTS), TRUTH]
    assert rows[PLAIN.label]["better_by"] == 0.0
    assert rows[TRUTH]["better_by"] is None
    assert rows[TRUTH]["mean_error"] < rows[PLAIN.label]["mean_error"]
    runs = played["traces"].columns("RBCS-F, weight 0.1")
    mean = np.mean([relative_errors(one, forecasts(one, PLAIN)).mean() for one in runs])
    assert rows[PLAIN.label]["mean_error"] == pytest.approx(mean, abs=1e-5)
    assert forecast_table(runs, played["traces"].columns("fair oracle, weight 0.1")).keys() >= {"median_error"}
    assert "forecasts" not in played["numerical"].findings.tables


# Playing, writing


def test_what_the_store_holds_is_not_played_again(played: dict[str, Played], monkeypatch: pytest.MonkeyPatch) -> None:
    one = played["numerical"]

    def never(*_: Any) -> None:
        raise AssertionError("played again")

    monkeypatch.setattr(sys.modules["turnout.simulator.sweep"], "play_plan", never)
    (again,) = reproduce([one.board], one.store, seeds=2, rounds=one.rounds, workers=1)
    assert rows_of(again.findings.tables["leaderboard"]) == list(one.rows.values())
    with pytest.raises(AssertionError, match="played again"):
        reproduce([one.board], one.store, seeds=3, rounds=one.rounds, workers=1)


def test_what_is_not_in_the_store_is_not_made_up(played: dict[str, Played]) -> None:
    one = played["numerical"]
    with pytest.raises(SettingError, match="not in the store: play it first"):
        one.board.findings(Runs(one.board.plans(2, 7), one.store))


def test_costs_are_measured_for_everyone_and_stand_beside_the_figures(played: dict[str, Played]) -> None:
    one = played["numerical"]
    measured: list[int] = []
    costs = choosing_costs(one.board.plans(2, 5), measured.append)
    assert set(costs) == set(LABELS["numerical"])
    assert sum(measured) == 2 * len(costs)
    assert all(len(own) == 2 and (own > 0).all() for own in costs.values())
    rows = rows_of(with_costs(one.findings, costs).tables["leaderboard"])
    for row in rows:
        assert row["microseconds"] == pytest.approx(costs[row["contender"]].mean(), abs=0.1)
    assert "microseconds" not in one.findings.tables["leaderboard"]


@pytest.mark.parametrize("name", list(SUITES))
def test_what_is_written_says_it_all(played: dict[str, Played], name: str, tmp_path: Path) -> None:
    one = played[name]
    findings = with_costs(one.findings, choosing_costs(one.board.plans(2, 5)))
    told = as_json(one.board, findings, seeds=2, rounds=one.rounds, assumed=["a guess"])
    written = {path.name for path in write_leaderboard(one.board, findings, told, tmp_path)}
    assert {"leaderboard.csv", "leaderboard.json", "leaderboard.svg", "front.svg"} <= written
    assert ("forecasts.csv" in written) == (name == "traces")
    assert json.loads((tmp_path / "leaderboard.json").read_text()) == told
    assert told["left_out"] == dict(SUITES[name].left_out)
    assert told["machine_dependent"] == ["microseconds"]
    for picture in ("leaderboard.svg", "front.svg"):
        text = (tmp_path / picture).read_text()
        assert all(label.replace("&", "&amp;") in text for label in LABELS[name])


def test_data_is_written_also_where_nothing_can_be_drawn(
    played: dict[str, Played], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object) -> None:
        raise SettingError("figures need matplotlib: pip install 'turnout[plots]'")

    monkeypatch.setattr(leaderboard, "draw_front", missing)
    one = played["numerical"]
    told = as_json(one.board, one.findings, seeds=2, rounds=one.rounds, assumed=[])
    with pytest.raises(SettingError, match=r"turnout\[plots\]"):
        write_leaderboard(one.board, one.findings, told, tmp_path)
    assert (tmp_path / "leaderboard.csv").exists()
    assert (tmp_path / "leaderboard.json").exists()


def test_rows_are_plain() -> None:
    rows = rows_of({"a": ["x", "y"], "b": [1.0, math.nan]})
    assert rows == [{"a": "x", "b": 1.0}, {"a": "y", "b": None}]
    assert Contender("x", "random").promised is None
