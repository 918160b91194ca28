"""The leaderboards: contenders, measurements, the cost of choosing, the Pareto front, figures."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.studies.made_up import reproduce
from narrowing import known
from turnout import RoundOffer, RoundReport, Selection
from turnout.errors import SettingError, TurnoutError
from turnout.lab import PaperWorld, RoundColumns, RunStore, play
from turnout.lab.analysis.metrics import available_rates, jain_index
from turnout.lab.analysis.statistics import mean_confidence_interval
from turnout.lab.drawing.style import figure
from turnout.lab.runs.plans import RunPlan
from turnout.lab.runs.sweep import play_plan
from turnout.lab.studies.framework.experiment import Findings, Runs
from turnout.lab.studies.leaderboard import leaderboard
from turnout.lab.studies.leaderboard.contenders import FED_BUFF
from turnout.lab.studies.leaderboard.drawing import FEW_TICKS, HEADINGS, _scale_by_turns, draw_board
from turnout.lab.studies.leaderboard.leaderboard import (
    MIN_PRESENCE,
    Leaderboard,
    as_json,
    choosing_costs,
    classify,
    on_front,
    rows_of,
    with_costs,
    write_leaderboard,
)
from turnout.lab.studies.leaderboard.suites import SUITES, Suite, find_suite
from turnout.lab.training.world import TrainingWorld
from turnout.policies import UniformRandom
from turnout.policies.registry import POLICIES, WRAPPERS

LABELS = {
    "numerical": (
        "FairPace, tolerance 2",
        "RBCS-F, weight 20",
        "random",
        "Oort",
        "FedCS(3), learned",
        "Oort + guarantee",
        "FairPace, tolerance 2, true times",
        "fastest",
    ),
    "traces": (
        "FairPace, tolerance 1",
        "FairPace, tolerance 2, completed turns",
        "RBCS-F, weight 0.1",
        "random",
        "CS-UCB-Q",
        "fair oracle, weight 0.1",
    ),
    "training": ("FairPace, tolerance 5", "RBCS-F, weight 20", "random", "UCB-CS", "fastest"),
}
SUITE = SUITES["async"]
ROUNDS = {"numerical": 24, "traces": 24, "training": 12}


def small(name: str) -> Suite:
    suite = find_suite(name)
    contenders = tuple(contender for contender in suite.contenders if contender.label in LABELS[name])
    assert len(contenders) == len(LABELS[name])
    return replace(suite, contenders=contenders)


class RunMetrics:
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
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, RunMetrics]]:
    folder = tmp_path_factory.mktemp("leaderboard")
    suites = {name: RunMetrics(name, folder) for name in LABELS}
    yield suites
    for suite in suites.values():
        suite.store.close()


# Contenders


@pytest.mark.parametrize("name", LABELS)
def test_every_policy_that_the_world_allows_takes_part_or_is_excluded_with_a_reason(name: str) -> None:
    suite = SUITES[name]
    policies = {contender.settings.get("policy", contender.policy) for contender in suite.contenders}
    assert policies | set(suite.left_out) == set(POLICIES)
    assert not policies & set(suite.left_out)
    assert ({"power-of-choice", "active-fl", "ucb-cs"} <= policies) == (name == "training")
    assert len({contender.label for contender in suite.contenders}) == len(suite.contenders)
    wrapped = [contender for contender in suite.contenders if contender.policy in WRAPPERS]
    assert any(contender.settings["policy"] == "oort" for contender in wrapped)
    fair = [(each.tolerance, each.knows_truth) for each in suite.contenders if each.policy == "fair-pace"]
    by_completed = [(2, False)] if name == "traces" else []
    assert fair == [(1, False), (2, False), (3, False), (5, False), *by_completed, (2, True)]


@pytest.mark.parametrize("name", LABELS)
def test_every_contender_can_be_built_and_is_marked_if_it_knows_true_times(name: str) -> None:
    suite = SUITES[name]
    for contender, plans in zip(suite.contenders, suite.plans(4, 10).values(), strict=True):
        assert [plan.seed for plan in plans] == [0, 1, 2, 3]
        policy, world = plans[0].build()
        assert policy.requires_expected_times == contender.knows_truth, contender.label
        assert (world.offer(1).expected_times is not None) or not contender.knows_truth
        promised = None if policy.guarantee is None else policy.guarantee.rate
        assert contender.promised == (promised or None)
        if contender.promised is not None:
            assert policy.guarantee is not None
            assert policy.guarantee.tolerance == contender.tolerance
            assert (contender.promised, policy.guarantee.accrual) == (suite.rate, suite.share_of)
            assert policy.guarantee.counts == contender.counts
    (contender,) = [contender for contender in suite.contenders if contender.by_the_end]
    assert [suite.plans(1, rounds)[contender.label][0].settings["horizon"] for rounds in (None, 30)] == [
        suite.rounds,
        30,
    ]


def test_label_clusters_takes_a_client_of_each_cluster_of_the_labels_in_its_own_world() -> None:
    (contender,) = [each for each in SUITES["training"].contenders if each.by_labels]
    for plan in SUITES["training"].plans(2)[contender.label]:
        policy, world = plan.build()
        assert isinstance(world, TrainingWorld)
        cluster = world.federation.partition.clusters(8)
        offer = world.offer(1)
        selected = cluster[policy.ask(offer.without_truth()).clients]
        assert {*selected.tolist()} == {*cluster[offer.available].tolist()}
        assert len(selected) == 8


def test_unknown_suites_and_unsuitable_files_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"unknown suite 'numeric' .did you mean 'numerical'"):
        find_suite("numeric")
    with pytest.raises(SettingError, match="the suite numerical plays no traces"):
        SUITES["numerical"].on_traces([tmp_path / "phones.csv"])
    with pytest.raises(TurnoutError, match=r"nowhere\.csv"):
        SUITES["traces"].on_traces([tmp_path / "nowhere.csv"])


def test_plans_with_recorded_clients_depend_on_the_content_of_the_files(tmp_path: Path) -> None:
    phones = tmp_path / "phones.csv"
    phones.write_text("client,start,stop,end\nanna,0,5000,9000\nben,100,8000,9000\n")
    first = SUITES["traces"].on_traces([phones])
    assert "clients" not in first.world_settings
    key = first.plans(1, 5)["random"][0].key
    phones.write_text("client,start,stop,end\nanna,0,5000,9000\nben,100,7000,9000\n")
    assert SUITES["traces"].on_traces([phones]).plans(1, 5)["random"][0].key != key


# Measurements


@pytest.mark.parametrize(
    "name", ["training", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("numerical", "traces"))]
)
def test_measurements_equal_those_of_a_literal_evaluation(played: dict[str, RunMetrics], name: str) -> None:
    suite = played[name]
    for label in LABELS[name]:
        by_seed: dict[str, list[float]] = {}
        for plan in suite.plans[label]:
            for measure, value in literal_measurements(plan, suite.board.suite).items():
                by_seed.setdefault(measure, []).append(value)
        for measure, values in by_seed.items():
            mean, band = mean_confidence_interval(values)
            assert suite.rows[label][measure] == pytest.approx(float(mean), abs=1e-5), (label, measure)
            assert suite.rows[label][f"{measure}_band"] == pytest.approx(float(band), abs=1e-5), (label, measure)
        share = "least_share_of_available" if name == "traces" else "least_share_of_all"
        assert suite.rows[label]["least_share"] == suite.rows[label][share]
    by_completed = [row["shortfall_completed"] > row["shortfall"] for row in suite.rows.values() if name == "traces"]
    assert any(by_completed) == (name == "traces")


#: What was measured already, by plan and suite: two tests need it.
MEASURED: dict[tuple[str, str], dict[str, float]] = {}


def literal_measurements(plan: RunPlan, suite: Suite) -> dict[str, float]:
    """Measures a run that is played again, after each round and for each client."""
    key = plan.key, suite.name
    if key not in MEASURED:
        MEASURED[key] = measure_literally(plan, suite)
    return MEASURED[key]


def measure_literally(plan: RunPlan, suite: Suite) -> dict[str, float]:
    policy, world = plan.build()
    columns = RoundColumns.from_records(play(policy, world, plan.rounds), clients=world.clients)
    available, durations = known(columns.available), columns.durations.tolist()
    selected, completed = columns.chosen_mask, np.zeros_like(columns.chosen_mask)
    for index, record in enumerate(columns.records()):
        completed[index, record.report.clients[record.report.with_outcome("arrived")]] = True
    # Shortfalls are counted in whole numbers: in parts of a turn.
    rate = Fraction(str(suite.rate))
    earned = np.cumsum(available, axis=0) if suite.share_of == "available" else columns.rounds[:, None]
    behind = {
        counted: (rate.numerator * earned - rate.denominator * np.cumsum(turns, axis=0)) / rate.denominator
        for counted, turns in (("selected", selected), ("completed", completed))
    }
    if policy.guarantee is not None and policy.guarantee.rate:
        certificate = known(policy.certificate())
        assert behind[policy.guarantee.counts][-1].max() == pytest.approx(certificate.behind.max())
    turns, present = selected.sum(axis=0), available.sum(axis=0)
    later = durations[plan.rounds // 3 :]
    return {
        "mean_round": sum(durations) / plan.rounds,
        "later_round": sum(later) / len(later),
        "shortfall": behind["selected"].max(),
        "shortfall_at_end": behind["selected"][-1].max(),
        **({"shortfall_completed": behind["completed"].max()} if suite.misses else {}),
        "least_share_of_all": turns.min() / plan.rounds,
        "least_share_of_available": (turns / np.maximum(present, 1))[
            present >= max(MIN_PRESENCE * plan.rounds, 1)
        ].min(),
        "jain": jain_index(turns),
        "chosen": turns.sum() / plan.rounds,
        "arrived": completed.sum() / turns.sum(),
    }


def test_accuracy_is_measured_if_models_are_trained(played: dict[str, RunMetrics]) -> None:
    suite = played["training"]
    accuracies = {
        label: [columns.metrics["accuracy"] for columns in suite.columns(label)] for label in LABELS["training"]
    }
    last = {label: [run[~np.isnan(run)][-1] for run in runs] for label, runs in accuracies.items()}
    target = 0.9 * float(np.mean(last["random"]))
    for label, row in suite.rows.items():
        assert row["final_accuracy"] == pytest.approx(np.mean(last[label]), abs=1e-5)
        assert row["target"] == pytest.approx(target, abs=1e-5)
        minutes = []
        for columns in suite.columns(label):
            clock = np.cumsum(columns.durations) / 60
            reached = np.flatnonzero(np.nan_to_num(columns.metrics["accuracy"]) >= target)
            minutes.append(clock[reached[0]] if len(reached) else clock[-1])
        assert row["minutes_to_target"] == pytest.approx(np.mean(minutes), abs=1e-5)
    assert "minutes_to_target" not in played["numerical"].rows["random"]


def test_the_status_is_that_of_the_worst_run_at_any_time(played: dict[str, RunMetrics]) -> None:
    for name, suite in played.items():
        for label, row in suite.rows.items():
            measured = [literal_measurements(plan, suite.board.suite) for plan in suite.plans[label]]
            worst = {name: max(run[name] for run in measured) for name in measured[0] if name.startswith("shortfall")}
            for measure, turns in worst.items():
                assert row[f"worst_{measure}"] == pytest.approx(turns, abs=1e-5), (name, label, measure)
            largest = worst["shortfall_completed" if label.endswith("completed turns") else "shortfall"]
            expected = "broken" if largest > row["tolerance"] else "kept" if largest < 1 else "behind"
            assert row["status"] == expected, (name, label)
    statuses = {row["status"] for suite in played.values() for row in suite.rows.values()}
    assert statuses == {"kept", "behind", "broken"}
    random = played["numerical"].rows["random"]
    assert (random["promised"], random["tolerance"]) == (None, 2.0)
    assert played["training"].rows["FairPace, tolerance 5"]["tolerance"] == 5.0


def test_rarely_available_clients_are_excluded_from_the_least_share() -> None:
    columns = play_plan(RunPlan("random", 40, world="traces", world_settings={"clients": 40}))
    all_rates, rates = available_rates(columns), available_rates(columns, least=0.2)
    assert columns.available is not None
    available = columns.available.sum(axis=0)
    assert np.isnan(all_rates).tolist() == (available == 0).tolist()
    assert np.isnan(rates).tolist() == (available < 8).tolist()


# The front


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12))
def test_the_front_contains_the_points_that_are_not_dominated(points: list[tuple[int, int]]) -> None:
    front = on_front(*zip(*points, strict=True))
    for (seconds, shortfall), best in zip(points, front.tolist(), strict=True):
        dominated = any(t <= seconds and s <= shortfall and (t, s) != (seconds, shortfall) for t, s in points)
        assert best != dominated


def test_near_the_front_means_not_dominated_with_confidence() -> None:
    times = {"a": np.array([1.0, 1.1, 0.9]), "b": np.array([1.0, 1.3, 0.9]), "c": np.array([5.0, 5.1, 4.9])}
    shortfalls = {label: np.full(3, 1.5) for label in times}
    assert classify(times, shortfalls) == {"a": "front", "b": "near", "c": "behind"}
    assert classify(times, {**shortfalls, "c": np.array([1.4, 1.0, 1.2])})["c"] == "front"
    assert classify({}, {}) == {}
    # Slower with confidence, but behind in turns only perhaps; and as fast as another, but further behind for sure.
    assert classify(times, {**shortfalls, "c": np.array([1.4, 1.8, 1.5])})["c"] == "near"
    assert classify({**times, "c": times["a"]}, {**shortfalls, "c": np.array([2.5, 2.6, 2.4])})["c"] == "behind"


def test_the_front_excludes_oracles_and_small_cohorts(played: dict[str, RunMetrics]) -> None:
    rows = played["numerical"].rows
    assert rows["fastest"]["front"] == ""
    assert rows["fastest"]["told_truth"] is True
    fast = rows["FedCS(3), learned"]
    assert (fast["front"] == "") == (fast["chosen"] < 0.9 * rows["random"]["chosen"])
    eligible = {label: row for label, row in rows.items() if row["front"]}
    for label, row in eligible.items():
        dominated = any(
            other["mean_round"] <= row["mean_round"]
            and other["shortfall"] <= row["shortfall"]
            and (other["mean_round"], other["shortfall"]) != (row["mean_round"], row["shortfall"])
            for name, other in eligible.items()
            if name != label
        )
        assert (row["front"] == "front") != dominated


# Playing and writing


def test_costs_are_measured_for_every_contender_and_added_to_the_table(played: dict[str, RunMetrics]) -> None:
    suite = played["numerical"]
    measured: list[int] = []
    costs = choosing_costs(suite.board.plans(2, 5), measured.append)
    assert set(costs) == set(LABELS["numerical"])
    assert sum(measured) == 2 * len(costs)
    assert all(len(values) == 2 and (values > 0).all() for values in costs.values())
    rows = rows_of(with_costs(suite.board, suite.findings, costs).tables["leaderboard"])
    for row in rows:
        assert row["microseconds"] == pytest.approx(costs[row["contender"]].mean(), abs=0.1)
    assert "microseconds" not in suite.findings.tables["leaderboard"]
    assert rows_of({"a": ["x", "y"], "b": [1.0, math.nan]}) == [{"a": "x", "b": 1.0}, {"a": "y", "b": None}]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["traces", "training", "numerical"])
def test_the_written_files_are_complete(played: dict[str, RunMetrics], name: str, tmp_path: Path) -> None:
    suite = played[name]
    findings = with_costs(suite.board, suite.findings, choosing_costs(suite.board.plans(2, 5)))
    data = as_json(suite.board, findings, seeds=2, rounds=suite.rounds)
    write_leaderboard(suite.board, findings, data, tmp_path)
    written = {path.name for path in tmp_path.iterdir()}
    assert {"leaderboard.csv", "leaderboard.json", "leaderboard.svg", "front.svg"} <= written
    assert json.loads((tmp_path / "leaderboard.json").read_text()) == data
    assert data["left_out"] == dict(SUITES[name].left_out)
    assert data["front"] == ["minutes_to_target" if name == "training" else "mean_round", "shortfall"]
    assert data["guaranteed_rate"] == SUITES[name].rate
    assert ("availability: generated" in str(data["assumptions"])) == (name == "traces")
    assert data["machine_dependent"] == ["microseconds"]
    for drawing in ("leaderboard.svg", "front.svg"):
        text = (tmp_path / drawing).read_text()
        assert all(label.replace("&", "&amp;") in text for label in LABELS[name])
        assert ("Runs that never reach the target" in text) == (name == "training" and drawing == "leaderboard.svg")
        rounds = "its available rounds" if name == "traces" else "all rounds"
        assert (f"in turns behind {SUITES[name].rate:g} of {rounds}" in text) == (drawing == "front.svg")


def test_data_is_written_even_if_figures_cannot_be_drawn(
    played: dict[str, RunMetrics], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object) -> None:
        raise SettingError("figures need matplotlib: pip install 'turnout[plots]'")

    monkeypatch.setattr(leaderboard, "draw_board", missing)
    suite = played["numerical"]
    data = as_json(suite.board, suite.findings, seeds=2, rounds=suite.rounds)
    with pytest.raises(SettingError, match=r"turnout\[plots\]"):
        write_leaderboard(suite.board, suite.findings, data, tmp_path)
    assert (tmp_path / "leaderboard.csv").exists()
    assert (tmp_path / "leaderboard.json").exists()


# Without rounds


def test_promises_are_shares_of_an_equal_share_of_the_turns() -> None:
    rates = {contender.label: SUITE.rate_of(contender) for contender in SUITE.contenders}
    assert rates["FairPace, 50 %"] == Fraction(1, 80)
    assert rates["FairPace, 95 %"] == Fraction(19, 800)
    assert rates[FED_BUFF] == Fraction(3, 160)
    # A round has eight turns.
    assert rates["FairPace, 75 %, in rounds"] == Fraction(3, 20)


def test_further_contenders_have_labels_of_their_own() -> None:
    more = SUITE.with_policies([("oort", {}), ("fair-pace", {"guaranteed_rate": "1/100"})])
    oort, fair = more.contenders[len(SUITE.contenders) :]
    assert (oort.label, oort.share, fair.label, fair.share) == ("oort", None, "fair-pace (guaranteed_rate 1/100)", None)
    for repeated in (SUITE.contenders[0].policy, "oort"):
        with pytest.raises(
            SettingError, match=r"the suite async has a contender '.*' already: give it another setting"
        ):
            more.with_policies([(repeated, {})] * 2)


def test_rounds_have_as_many_turns_as_there_are_slots() -> None:
    plans = SUITE.plans(1, 400)
    (rounds,) = plans["FairPace, 75 %, in rounds"]
    (slots,) = plans["FairPace, 75 %"]
    assert (rounds.rounds, rounds.concurrency, rounds.settings["cohort_size"]) == (50, None, 8)
    assert (slots.rounds, slots.concurrency, slots.settings["guaranteed_rate"]) == (400, 8, "3/160")
    (training,) = SUITES["async-training"].plans(1, 80)["random, in rounds"]
    assert "updates_per_version" not in training.world_settings
    (mixed,) = SUITES["async-training"].plans(1, 80)["random (FedAsync)"]
    assert (mixed.world_settings["updates_per_version"], mixed.world_settings["mixing"]) == (1, 0.6)


@pytest.mark.thorough
def test_contenders_are_measured_against_random_seed_by_seed(tmp_path: Path) -> None:
    with RunStore(tmp_path / "runs.turnout") as store:
        (result,) = reproduce([Leaderboard(SUITE)], store, seeds=2, rounds=64, workers=1)
        table = result.findings.tables["slots"]
        rows = dict(zip(np.asarray(table["contender"]).tolist(), range(len(SUITE.contenders)), strict=True))
        pace = np.asarray(table["updates_per_second"])
        assert (np.diff(pace) <= 0).all()
        assert np.asarray(table["speedup"])[rows[FED_BUFF]] == 1.0
        assert np.asarray(table["speedup_band"])[rows[FED_BUFF]] == 0.0
        # Counted from the records of one contender, in another way.
        plans = SUITE.plans(2, 64)["random, in rounds"]
        runs = [store.columns(store.find(plan.key).id) for plan in plans]  # type: ignore[union-attr]
        expected = np.mean([64 / columns.durations.sum() for columns in runs])
        assert pace[rows["random, in rounds"]] == pytest.approx(expected, rel=1e-5)
        assert np.asarray(table["mean_staleness"])[rows["random, in rounds"]] == 0.0
        available = [
            np.array([record.report.available for record in columns.records()]).sum(axis=0) for columns in runs
        ]
        shares = [columns.turns / rounds * 40 / 8 for columns, rounds in zip(runs, available, strict=True)]
        least = np.mean([share.min() for share in shares])
        assert np.asarray(table["least_share"])[rows["random, in rounds"]] == pytest.approx(least, rel=1e-5)
    within = np.asarray(table["worst_shortfall"])[[rows[f"FairPace, {share} %"] for share in (50, 75, 95)]]
    assert (within < 1).all()


def test_the_cost_is_the_median_time_of_asking_and_telling_over_all_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """In round t, asking takes t µs, playing 100 s, and telling 2t µs: 3t µs count, and the median of t is 4."""
    clock = 0.0
    rounds: list[int] = []

    class Slow(UniformRandom):
        def ask(self, offer: RoundOffer) -> Selection:
            nonlocal clock
            clock += offer.round * 1e-6
            return super().ask(offer)

        def tell(self, report: RoundReport) -> None:
            nonlocal clock
            clock += 2 * report.round * 1e-6
            rounds.append(report.round)
            super().tell(report)

    class SlowWorld(PaperWorld):
        def play(self, offer: RoundOffer, selection: Selection) -> RoundReport:
            nonlocal clock
            clock += 100.0
            return super().play(offer, selection)

    monkeypatch.setattr(time, "thread_time", lambda: clock)
    cost = leaderboard._median_cost(Slow(8, cohort_size=2), SlowWorld(clients=8), 7)
    assert rounds == [1, 2, 3, 4, 5, 6, 7]
    assert cost == pytest.approx(12.0, rel=1e-3)


pytest.importorskip("matplotlib")


@pytest.mark.parametrize(
    ("shortfalls", "limits"), [([0.5, 1.0], (0.0, 2.6)), ([-10.0, 20.0], (-13.0, 26.0)), ([3.0], (0.0, 3.9))]
)
def test_the_axis_of_shortfalls_has_room_for_all_and_for_the_tolerance(
    shortfalls: list[float], limits: tuple[float, float]
) -> None:
    with figure(3.0, 3.0) as drawn:
        axes = drawn.subplots()
        _scale_by_turns(axes, np.array(shortfalls), FEW_TICKS)
        assert axes.get_xlim() == pytest.approx(limits)
        assert axes.get_xticks().tolist() == [tick for tick in FEW_TICKS if limits[0] <= tick <= limits[1]]


def test_axes_begin_at_0_except_those_of_accuracies() -> None:
    measures = ["minutes_to_target", "final_accuracy", "shortfall", "least_share"]
    table: Any = {
        "contender": ["a", "b"],
        "told_truth": [False, False],
        "policy": ["random", "oort"],
        "front": ["front", "behind"],
    }
    for measure in measures:
        table |= {measure: [0.9, 0.95], f"{measure}_band": [0.01, 0.01]}
    drawn = draw_board(SUITES["training"], table)["leaderboard"]
    begins = {axes.get_title(loc="left"): axes.get_xlim()[0] for axes in drawn.axes}
    assert {name for name, left in begins.items() if left == 0.0} == {
        HEADINGS[measure][0] for measure in measures if measure != "final_accuracy"
    }
    assert begins["final accuracy"] > 0.8
