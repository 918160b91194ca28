"""Runs are explained from their records: training runs because their losses are recorded, fair-pace by its prices."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from turnout.errors import ReportError
from turnout.lab import RoundColumns, RunStore
from turnout.lab.analysis.explain import explain_run
from turnout.lab.runs.plans import RunPlan
from turnout.lab.runs.sweep import sweep
from turnout.lab.training.learner_cache import LearnerCache
from turnout.lab.training.world import TrainingWorld

COHORT = {"cohort_size": 3, "guaranteed_rate": 0.2, "speed_weight": 1.0}
ROUNDS = 8


def training_plan(
    policy: str, settings: Any = COHORT, *, keep: Any = "all", inner: Any = None, **world: Any
) -> RunPlan:
    """Returns the plan of a training run with twelve clients and fifty digits per client."""
    world_settings = {"items": 50, "hidden": 8, "world": {"clients": 12, **(inner or {})}, **world}
    return RunPlan(policy, ROUNDS, 3, settings, world="training", world_settings=world_settings, keep=keep)


EXPLAINED = [
    training_plan("rbcsf"),
    training_plan("rbcsf", keep="choices"),
    training_plan("rbcsf", inner={"cold_start": "participants"}, evaluate_every=5),
    training_plan("rbcsf", {**COHORT, "horizon": ROUNDS}),
    training_plan("fair-oracle", gamma="iid"),
]
PACE = {"cohort_size": 3, "guaranteed_rate": 0.2, "tolerance": 1.0}
WORLD = {"clients": 12, "availability": 0.7}
PRICED = [
    RunPlan("fair-pace", 14, 3, PACE, world_settings=WORLD),
    RunPlan("fair-pace", 14, 3, PACE, world_settings=WORLD, keep="choices"),
    RunPlan("fair-pace", 14, 3, {**PACE, "accrual": "always", "tolerance": 3.0}, world_settings=WORLD),
    RunPlan("fair-pace", 14, 3, {**PACE, "times": "expected"}, world_settings=WORLD),
    training_plan("fair-pace", PACE),
    RunPlan("fair-pace", 14, 3, {**PACE, "tolerance": 0.3}, world_settings=WORLD),  # clients become urgent
]
BY_LOSS = [training_plan(policy, {"cohort_size": 3}) for policy in ("ucb-cs", "power-of-choice")]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trained") / "runs.turnout"
    with RunStore(path) as runs:
        sweep([*EXPLAINED, *BY_LOSS, *PRICED], runs, workers=1)
    return path


def chosen_in(runs: RunStore, run: int, round_: int) -> list[int]:
    columns = runs.columns(run)
    return sorted(columns.chosen[columns.starts[round_ - 1] : columns.starts[round_]].tolist())


@pytest.mark.parametrize("run", range(1, len(EXPLAINED) + 1))
def test_every_client_of_a_training_run_has_an_exact_explanation(store: Path, run: int) -> None:
    with RunStore(store, read_only=True) as runs, LearnerCache():
        for round_ in (1, ROUNDS):
            explanations = [explain_run(runs, run, row, round_) for row in range(12)]
            assert all(one.exact for one in explanations), explanations
            chosen = [row for row, one in enumerate(explanations) if one.outcome == "chosen"]
            assert chosen == chosen_in(runs, run, round_)
            assert all(one.missing_units for one in explanations if one.outcome == "not chosen")


def test_an_explanation_does_not_repeat_the_training(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainingWorld, "play", None)
    with RunStore(store, read_only=True) as runs:
        assert explain_run(runs, 1, 0).exact


@pytest.mark.parametrize("index", range(len(BY_LOSS)))
def test_policies_that_select_by_loss_give_inexact_explanations(store: Path, index: int) -> None:
    run = len(EXPLAINED) + 1 + index
    with RunStore(store, read_only=True) as runs:
        explanation = explain_run(runs, run, chosen_in(runs, run, ROUNDS)[0])
    assert (explanation.outcome, explanation.exact) == ("chosen", False)
    assert f"{BY_LOSS[index].policy} did not weigh seconds against turns owed" in explanation.sentence


@pytest.mark.parametrize("index", range(len(PRICED)))
def test_every_price_of_fair_pace_is_explained_with_its_numbers(store: Path, index: int) -> None:
    run, plan = len(EXPLAINED) + len(BY_LOSS) + 1 + index, PRICED[index]
    rate, tolerance = Fraction(1, 5), plan.settings["tolerance"]
    urgent = 0
    with RunStore(store, read_only=True) as runs, LearnerCache():
        columns = runs.columns(run)
        # keep="choices" stores no availability; that of the same run with keep="all" is the same.
        presence = runs.columns(run - index if plan.keep == "choices" else run).available
        assert presence is not None
        for round_ in (1, 5, plan.rounds):
            before = slice(columns.starts[round_ - 1])
            explained = [explain_run(runs, run, row, round_) for row in range(12)]
            assert all(explanation.exact for explanation in explained), explained
            chosen = [row for row, explanation in enumerate(explained) if explanation.outcome == "chosen"]
            assert chosen == chosen_in(runs, run, round_)
            available = presence[:round_]
            for row, explanation in enumerate(explained):
                if explanation.outcome == "not available":
                    assert not available[-1, row]
                    continue
                assert explanation.unit == "seconds"
                assert explanation.usual is not None
                assert explanation.behind is not None
                assert explanation.allowed is not None
                rounds = round_ if plan.settings.get("accrual") == "always" else int(available[:, row].sum())
                turns = int((columns.chosen[before] == row).sum())
                assert explanation.behind == pytest.approx(float(rate * rounds - turns))
                assert explanation.urgent == (explanation.behind >= explanation.allowed)
                urgent += explanation.urgent
                if explanation.owed is None:
                    assert explanation.urgent or "all places went to urgent clients" in explanation.sentence
                    continue
                slack, least = explanation.allowed - explanation.behind, max(explanation.allowed, tolerance / 2)
                full, newer = least + tolerance, (25 + round_ - 1) / (25 + rounds - 1)
                room = min(slack, full) + max(slack - full, 0) * newer + tolerance * (1 - (round_ - 1) / 100)
                assert explanation.seconds is not None
                counted = max(explanation.usual + (1 - 1 / 3) * (explanation.usual - explanation.seconds), 0)
                assert explanation.owed == pytest.approx(counted / (0.7 * 3) * least / room)
                if len(chosen) == available[-1].sum():
                    assert "all available clients were" in explanation.sentence
                else:
                    assert "so a turn is worth" in explanation.sentence or "by a tie" in explanation.sentence
                if explanation.outcome == "not chosen":
                    assert explanation.rounds_until is not None
                    if plan.settings.get("accrual") == "always":
                        continue  # a client may be further behind the longer it has been present
                    # At the latest when it is urgent.
                    slack = (explanation.allowed - explanation.behind) / float(rate)
                    assert explanation.rounds_until <= math.ceil(slack - 1e-9)
    assert urgent or tolerance != 0.3


SLOTS = [
    RunPlan("fair-pace", 20, 3, {"tolerance": 1.0}, world_settings={"clients": 12}, concurrency=3),
    RunPlan("fair-pace", 20, 3, {"tolerance": 1.0}, world="traces", world_settings={"clients": 12}, concurrency=3),
]


@pytest.mark.parametrize("plan", SLOTS, ids=["paper", "traces"])
def test_a_client_that_was_training_was_in_its_turn(plan: RunPlan, tmp_path: Path) -> None:
    with RunStore(tmp_path / "runs.turnout") as runs:
        (run,) = sweep([plan], runs, workers=1)
        columns = runs.columns(run)
        started, finished = columns.metrics["started"], columns.metrics["finished"]
        seen = 0
        for decision in (10, 14, 18):
            now = started[decision - 1]
            training = {int(columns.chosen[index]): index + 1 for index in range(decision - 1) if finished[index] > now}
            for client, since in training.items():
                explanation = explain_run(runs, run, client, decision)
                assert explanation.sentence == f"client {client} was training, in its turn of decision {since}."
                assert explanation.outcome == "training"
                seen += 1
            (chosen,) = chosen_in(runs, run, decision)
            explanation = explain_run(runs, run, chosen, decision)
            assert (explanation.outcome, explanation.exact) == ("chosen", True)
    assert seen >= 5


@pytest.mark.parametrize(
    ("plan", "moment"),
    [(SLOTS[0], "decision 4"), (RunPlan("rbcsf", 10, settings={"cohort_size": 3}, world_settings=WORLD), "round 2")],
)
def test_a_run_that_replays_differently_is_not_explained(plan: RunPlan, moment: str, tmp_path: Path) -> None:
    with RunStore(tmp_path / "runs.turnout") as runs:
        (run,) = sweep([plan], runs, workers=1)
        columns = runs.columns(run)
        times = np.array(columns.exchange_times)
        times[3] += 1.0
        fields = {name: getattr(columns, name) for name in RoundColumns.__slots__}
        other = RoundColumns(**{**fields, "exchange_times": times})
        run = runs.write_run("other", plan.as_dict(), other, clients=12, code_version="0")
        explanation = explain_run(runs, run, 0, 5)
        assert not explanation.exact
        assert f"the replay of {moment} differs from the record" in explanation.sentence
        assert "differs from the record" not in explain_run(runs, run, 0, int(moment[-1])).sentence
        with pytest.raises(ReportError, match=f"there is no round {plan.rounds + 1} in run {run}"):
            explain_run(runs, run, 0, plan.rounds + 1)
        with pytest.raises(ReportError, match=f"there is no client 12 in run {run}"):
            explain_run(runs, run, 12)
