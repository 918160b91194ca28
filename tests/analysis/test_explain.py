"""Training runs are explained like all other runs, because their losses are recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from turnout.analysis.explain import explain_run
from turnout.lab.learner_cache import LearnerCache
from turnout.lab.world import TrainingWorld
from turnout.simulator.plans import RunPlan
from turnout.simulator.sweep import sweep
from turnout.store import RunStore

COHORT = {"cohort_size": 3, "guaranteed_rate": 0.2, "speed_weight": 1.0}
ROUNDS = 12


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
BY_LOSS = [training_plan(policy, {"cohort_size": 3}) for policy in ("ucb-cs", "power-of-choice")]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trained") / "runs.turnout"
    with RunStore(path) as runs:
        sweep([*EXPLAINED, *BY_LOSS], runs, workers=1)
    return path


def chosen_in(runs: RunStore, run: int, round_: int) -> list[int]:
    columns = runs.columns(run)
    return sorted(columns.chosen[columns.starts[round_ - 1] : columns.starts[round_]].tolist())


@pytest.mark.parametrize("run", range(1, len(EXPLAINED) + 1))
def test_every_client_of_a_training_run_has_an_exact_explanation(store: Path, run: int) -> None:
    with RunStore(store, read_only=True) as runs, LearnerCache():
        for round_ in (1, 7, ROUNDS):
            explanations = [explain_run(runs, run, row, round_) for row in range(12)]
            assert all(explanation.exact for explanation in explanations), explanations
            assert [
                row for row, explanation in enumerate(explanations) if explanation.standing == "chosen"
            ] == chosen_in(runs, run, round_)
            assert all(
                explanation.missing_units for explanation in explanations if explanation.standing == "not chosen"
            )


def test_an_explanation_does_not_repeat_the_training(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainingWorld, "play", None)
    with RunStore(store, read_only=True) as runs:
        assert explain_run(runs, 1, 0).exact


@pytest.mark.parametrize("index", range(len(BY_LOSS)))
def test_policies_that_select_by_loss_give_inexact_explanations(store: Path, index: int) -> None:
    run = len(EXPLAINED) + 1 + index
    with RunStore(store, read_only=True) as runs:
        explanation = explain_run(runs, run, chosen_in(runs, run, ROUNDS)[0])
    assert (explanation.standing, explanation.exact) == ("chosen", False)
    assert f"{BY_LOSS[index].policy} did not weigh seconds against turns owed" in explanation.sentence
