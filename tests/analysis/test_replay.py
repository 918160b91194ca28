from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from turnout.analysis.replay import FIGURES, Replayed, fitted_build, recorded, replay
from turnout.analysis.tuning import Goal, tuned
from turnout.errors import SettingError, StoreError
from turnout.kernel.randomness import round_rng
from turnout.scheduler import ClientStatus, Scheduler
from turnout.scheduler.journal.journal import is_fleet
from turnout.simulator import RunPlan, play_into, play_plan
from turnout.store import RunStore
from turnout.version import __version__

SETTINGS = {"cohort_size": 3, "guaranteed_rate": 0.2, "speed_weight": 5.0}
PLAN = RunPlan("rbcsf", 60, seed=2, settings={"speed_weight": 5.0})
ROUNDS = 60
DEADLINE = 14.0


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run of the paper's world."""
    path = tmp_path_factory.mktemp("store") / "runs.turnout"
    with RunStore(path) as opened:
        play_into(opened, PLAN)
    return path


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty rounds of ten phones, phone-9 the slowest; now and then one fails, or is late and comes back later."""
    path = tmp_path_factory.mktemp("fleet") / "fleet.turnout"
    rng = random.Random(0)
    with Scheduler.open(path, settings=SETTINGS, deadline=DEADLINE, allow_infeasible=True) as scheduler:
        for round_ in range(ROUNDS):
            draws = round_rng(0, "status", round_).uniform(0.5, 2.0, (10, 2))
            there = {
                f"phone-{n}": ClientStatus(*map(float, draws[n])) for n in range(10) if n == 0 or rng.random() < 0.8
            }
            for client in scheduler.choose(there):
                seconds = (1 + int(client[-1])) / there[client].free_cpu * rng.uniform(0.8, 1.2)
                if rng.random() < 0.03:
                    scheduler.failed(client, "battery")
                elif seconds <= DEADLINE:
                    scheduler.report(client, seconds)
            scheduler.close_round()
            for turn in scheduler.turns(scheduler.round):
                if turn.kind == "late":
                    scheduler.report(turn.id, 25.0, round=turn.round)
    return path


def same(found: Replayed) -> None:
    for one in found.figures:
        assert one.exact, one.name
        assert one.half_width == 0
        assert one.replayed == one.recorded, one.name
    assert found["other_choices"].replayed == found["other_rounds"].replayed == 0


def test_the_same_policy_reproduces_a_simulated_run_exactly(store: Path) -> None:
    record = recorded(store)
    same(replay(record, "rbcsf", {}))
    assert record.past.columns.rounds.tolist() == list(range(1, 61))


def test_the_same_policy_reproduces_a_fleet_exactly(fleet: Path) -> None:
    """Chosen anew from the whole offers, round after round, and not merely taken over."""
    record = recorded(fleet)
    assert record.past.is_whole
    found = replay(record, "rbcsf", {"speed_weight": 5}, draws=2)
    same(found)
    assert found.draws == 2


@pytest.mark.parametrize("policy", ["rbcsf", "random", "fedcs"])
def test_another_policy_in_a_simulated_world_is_exact(store: Path, policy: str) -> None:
    given = {"speed_weight": 50.0} if policy == "rbcsf" else {}
    found = replay(recorded(store), policy, given)
    expected = play_plan(RunPlan(policy, 60, seed=2, settings=given))
    assert all(one.exact for one in found.figures)
    assert found["mean_round"].replayed == expected.durations.mean()
    assert found["least_share"].replayed == expected.turns.min() / 60
    assert found["other_choices"].replayed > 0


def test_a_fleet_under_another_weight_is_estimated(fleet: Path) -> None:
    found = replay(recorded(fleet), "rbcsf", {"speed_weight": 0.1}, draws=5)
    assert [one.name for one in found.figures] == list(FIGURES)
    assert not found["mean_round"].exact
    assert found["mean_round"].half_width > 0
    assert found["mean_round"].replayed > found["mean_round"].recorded  # fairer, and slower
    assert found["worst_debt"].replayed < found["worst_debt"].recorded
    assert 0 < found.known_times < 1
    assert "whole offers were recorded" in found.notes[0]


def test_without_whole_offers_contexts_are_drawn_too(fleet: Path) -> None:
    record = recorded(fleet)
    record = replace(record, past=replace(record.past, offers=None))
    found = replay(record, "rbcsf", {"speed_weight": 0.1}, draws=3)
    assert any("drawn from their own turns" in note for note in found.notes)
    assert not found["least_share"].exact
    same(replay(record, "rbcsf", {}))


def test_a_policy_that_looks_at_nobody_is_exact_but_for_times(fleet: Path) -> None:
    found = replay(recorded(fleet), "random", {}, draws=4)
    assert found.settings["cohort_size"] == 3  # as many as were recorded
    assert all(found[name].exact for name in ("least_share", "jain", "other_choices", "other_rounds"))
    assert not found["mean_round"].exact


def test_what_a_fleet_recorded_is_read_whole(fleet: Path) -> None:
    record = recorded(fleet)
    columns = record.past.columns
    with Scheduler.open(fleet, read_only=True) as scheduler:
        turns = [turn for round_ in range(1, ROUNDS + 1) for turn in scheduler.turns(round_)]
    lasted = [DEADLINE if turn.seconds is None else turn.seconds for turn in turns]  # one that failed has none
    assert sorted(columns.exchange_times.tolist()) == sorted(lasted)
    assert columns.clients == 10
    assert record.past.deadline == DEADLINE
    assert record.past.cold_start == 1
    late = [turn for turn in turns if turn.folded]
    assert late
    assert (record.past.true_times == 25.0).sum() == len(late)


def test_a_world_fitted_to_a_fleet_is_as_fast_as_its_record(fleet: Path) -> None:
    record = recorded(fleet)
    build, scale = fitted_build(record, {})
    assert 0.7 < scale < 1.4
    found = tuned(Goal.within(2, by=40), build, points=3, coarse=3, fine=3, fresh=4, try_horizon=False)
    policy, world = build({"speed_weight": 1.0}, 0)
    assert policy.cohort_size == 3
    assert np.array_equal(world.availability, record.past.available.mean(axis=0))
    assert found.curve[0].mean("shortfall") < found.curve[-1].mean("shortfall")


def test_a_run_that_cannot_be_rebuilt_is_estimated_from_its_record(tmp_path: Path) -> None:
    path = tmp_path / "runs.turnout"
    with RunStore(path) as opened:  # the rounds of another seed than the plan says, as of an older version
        columns = play_plan(RunPlan("rbcsf", 60, seed=9))
        opened.write_run(PLAN.key, PLAN.as_dict(), columns, clients=40, code_version=__version__)
    found = replay(recorded(path), "random", {}, draws=3)
    assert not found["mean_round"].exact
    assert found["mean_round"].replayed == pytest.approx(14.5, abs=3)


def test_files_are_known_by_their_marks(store: Path, fleet: Path, tmp_path: Path) -> None:
    assert is_fleet(fleet)
    assert not is_fleet(store)
    (tmp_path / "words").write_text("hello")
    assert not is_fleet(tmp_path / "words")


def test_what_cannot_be_replayed_is_refused(store: Path, fleet: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no file"):
        recorded(tmp_path / "nowhere.turnout")
    with pytest.raises(SettingError, match="omit run"):
        recorded(fleet, 1)
    with pytest.raises(StoreError, match="no run 7"):
        recorded(store, 7)
    with pytest.raises(SettingError, match="unknown policy"):
        replay(recorded(store), "rbscf", {})
    with pytest.raises(SettingError, match="true times"):
        replay(recorded(fleet), "fastest", {})
    with pytest.raises(SettingError, match="draws must be at least 2"):
        replay(recorded(fleet), "random", {}, draws=1)
    with RunStore(tmp_path / "empty.turnout"):
        pass
    with pytest.raises(SettingError, match="holds 0 runs"):
        recorded(tmp_path / "empty.turnout")
    Scheduler.open(tmp_path / "new.turnout").close()
    with pytest.raises(SettingError, match="no closed round"):
        recorded(tmp_path / "new.turnout")
