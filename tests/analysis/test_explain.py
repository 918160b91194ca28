"""Runs in which the chosen really train are explained as any other: what they learned is on record."""

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


def training(policy: str, settings: Any = COHORT, *, keep: Any = "all", inner: Any = None, **world: Any) -> RunPlan:
    """Twelve clients with fifty digits each."""
    own = {"items": 50, "hidden": 8, "world": {"clients": 12, **(inner or {})}, **world}
    return RunPlan(policy, ROUNDS, 3, settings, world="training", world_settings=own, keep=keep)


EXPLAINED = [
    training("rbcsf"),
    training("rbcsf", keep="choices"),
    training("rbcsf", inner={"cold_start": "participants"}, evaluate_every=5),
    training("rbcsf", {**COHORT, "horizon": ROUNDS}),
    training("fair-oracle", gamma="iid"),
]
BY_LOSS = [training(policy, {"cohort_size": 3}) for policy in ("ucb-cs", "power-of-choice")]


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
def test_every_client_of_a_training_run_has_an_exact_answer(store: Path, run: int) -> None:
    with RunStore(store, read_only=True) as runs, LearnerCache():
        for round_ in (1, 7, ROUNDS):
            found = [explain_run(runs, run, row, round_) for row in range(12)]
            assert all(one.exact for one in found), found
            assert [row for row, one in enumerate(found) if one.standing == "chosen"] == chosen_in(runs, run, round_)
            assert all(one.missing_units for one in found if one.standing == "not chosen")


def test_nobody_trains_again_for_an_explanation(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainingWorld, "play", None)
    with RunStore(store, read_only=True) as runs:
        assert explain_run(runs, 1, 0).exact


@pytest.mark.parametrize("place", range(len(BY_LOSS)))
def test_policies_that_choose_by_loss_say_what_they_can(store: Path, place: int) -> None:
    run = len(EXPLAINED) + 1 + place
    with RunStore(store, read_only=True) as runs:
        found = explain_run(runs, run, chosen_in(runs, run, ROUNDS)[0])
    assert (found.standing, found.exact) == ("chosen", False)
    assert f"{BY_LOSS[place].policy} does not weigh seconds against turns owed" in found.sentence
