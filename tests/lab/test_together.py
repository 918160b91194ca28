"""Runs that train side by side are the runs they would have been alone, however often they are stopped or killed."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import turnout
from killing import environment
from lab.processes import trainers
from turnout.errors import SettingError, TrainingError
from turnout.kernel.rounds import RoundRecord
from turnout.lab.batched import train_plans
from turnout.lab.learner_cache import LearnerCache
from turnout.lab.world import TrainingWorld
from turnout.simulator import RunPlan, play, play_into, play_plan
from turnout.simulator.sweep import columns_to_store
from turnout.store import RoundColumns, RunStore

NEVER = 1e9


def a_plan(policy: str = "random", rounds: int = 10, seed: int = 0, *, keep: Any = "all", **world: Any) -> RunPlan:
    settings = {"model": "cnn", "items": 30, "batch": 15, "world": {"clients": 20}, **world}
    cohort = {} if policy == "fedcs" else {"cohort_size": 4}
    return RunPlan(policy, rounds, seed, cohort, world="training", world_settings=settings, keep=keep)


#: Of several lengths and policies; the first five share a learner, the next two do not, the last are trained by NumPy.
PLANS = [
    a_plan(rounds=6),
    a_plan("rbcsf", 8, gamma=0.5, evaluate_every=3),
    a_plan("fedcs", 4, 3),
    a_plan("random", 3, 1, keep="choices"),
    a_plan("rbcsf", 1, 2),
    a_plan(rounds=5, rate=0.2, momentum=0.5),
    a_plan(seed=2, rounds=4, epochs=2, batch=7, proximal=0.1),
    a_plan(model="mlp", hidden=4),
    a_plan("rbcsf", 5, 1, model="mlp", hidden=0, keep="choices"),
]
FEW = [a_plan(), a_plan("rbcsf", 9, gamma=0.5), a_plan("random", 5, 1)]
MIXED = [*PLANS[2:6], PLANS[-1]]


class Stop(Exception):
    """The power is cut."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.turnout"


@pytest.fixture
def store(path: Path) -> Iterator[RunStore]:
    with RunStore(path) as opened:
        yield opened


@cache
def whole(told: str) -> RoundColumns:
    return play_plan(RunPlan.from_dict(json.loads(told)))


def undisturbed(plan: RunPlan) -> RoundColumns:
    """The run on its own, in memory, played once for all tests."""
    with LearnerCache(workers=1):
        return whole(json.dumps(plan.as_dict()))


def assert_holds(store: RunStore, plan: RunPlan) -> None:
    """The run of this plan is stored, finished, and the undisturbed one to the byte."""
    found = store.find(plan.key)
    assert found is not None
    assert found.finished
    assert found.rounds == plan.rounds
    assert store.columns(found.id).to_bytes() == undisturbed(plan).to_bytes()


def stop_after(count: int) -> Callable[..., None]:
    """A watcher that ends everything when it was called so often."""
    calls = []

    def watch(*what: object) -> None:
        calls.append(what)
        if len(calls) == count:
            raise Stop

    return watch


# As each alone.


@pytest.mark.parametrize(("workers", "save_every"), [(1, 0), (2, NEVER)])
def test_runs_trained_together_are_those_that_are_played_alone(
    store: RunStore, workers: int, save_every: float
) -> None:
    ids = train_plans(PLANS, store, workers=workers, save_every=save_every)
    assert len(set(ids)) == len(PLANS)
    for run, plan in zip(ids, PLANS, strict=True):
        found = store.find(plan.key)
        assert found is not None
        assert found.id == run
        assert found.plan == plan.as_dict()
        assert found.code_version == turnout.__version__
        assert_holds(store, plan)
        assert store.snapshot(run) is None


def test_a_run_is_the_same_with_or_without_a_workshop() -> None:
    assert play_plan(FEW[1]).to_bytes() == undisturbed(FEW[1]).to_bytes()


def test_all_rounds_are_counted_once(store: RunStore) -> None:
    told: list[int] = []
    train_plans(MIXED, store, workers=1, watch=told.append)
    assert sum(told) == sum(plan.rounds for plan in MIXED)
    assert min(told) > 0


def test_who_watches_rounds_sees_each_as_it_is_stored(store: RunStore) -> None:
    seen: dict[str, list[RoundRecord]] = {}
    plans = MIXED
    ids = train_plans(plans, store, workers=1, on_round=lambda plan, one: seen.setdefault(plan.key, []).append(one))
    for run, plan in zip(ids, plans, strict=True):
        assert len(seen[plan.key]) == plan.rounds
        columns = RoundColumns.from_records(seen[plan.key], clients=20)
        assert columns_to_store(plan, columns).to_bytes() == store.columns(run).to_bytes()


def test_a_plan_that_is_there_is_not_played_again(store: RunStore) -> None:
    first = train_plans(FEW[:1], store, workers=1)
    told: list[int] = []
    twice = [*FEW, FEW[1], replace(FEW[0], label="by another name")]
    ids = train_plans(twice, store, workers=1, watch=told.append)
    assert sum(told) == FEW[1].rounds + FEW[2].rounds
    assert ids[0] == ids[4] == first[0]
    assert ids[1] == ids[3]
    assert len(store.runs()) == 3
    assert train_plans(twice, store, workers=1, watch=stop_after(1)) == ids
    assert train_plans([], store) == []


def test_a_finished_run_keeps_its_model_only_where_that_is_wanted(store: RunStore) -> None:
    plans = [FEW[0], FEW[2], a_plan(model="mlp", hidden=4, rounds=4)]
    for run, plan in zip(train_plans(plans, store, workers=1, keep_models=True, save_every=0), plans, strict=True):
        assert_holds(store, plan)
        policy, world = plan.build()
        list(play(policy, world, plan.rounds))
        saved = store.snapshot(run)
        assert saved is not None
        last, state = saved
        assert last == plan.rounds
        assert isinstance(world, TrainingWorld)
        learner = world.federation.learner
        weights = learner.saved(world.weights)
        assert state["world.weights"].tobytes() == weights.tobytes()
        accuracy = store.columns(run).metrics["accuracy"][-1]
        assert learner.evaluate([learner.loaded(state["world.weights"])]) == [accuracy]
        learner.close()


def test_a_model_that_was_not_kept_is_not_kept_later(store: RunStore) -> None:
    (run,) = train_plans(FEW[:1], store, workers=1)
    assert train_plans(FEW[:1], store, workers=1, keep_models=True) == [run]
    assert store.snapshot(run) is None


def test_a_device_that_is_not_there_is_told_before_anything_is_begun(store: RunStore) -> None:
    with pytest.raises(SettingError, match="there is no device 'abacus'"):
        train_plans(PLANS, store, device="abacus")
    assert store.runs() == []


# Stopped.


@pytest.mark.parametrize("save_every", [0, NEVER])
@pytest.mark.parametrize("rounds", [1, 5, 9])
def test_what_was_stopped_goes_on_and_ends_alike(store: RunStore, rounds: int, save_every: float) -> None:
    with pytest.raises(Stop):
        train_plans(FEW, store, workers=1, save_every=save_every, watch=stop_after(rounds))
    for info in store.runs():
        stored = list(undisturbed(RunPlan.from_dict(info.plan)).records())[: info.rounds]
        assert list(store.records(info.id)) == stored
    missing = sum(plan.rounds for plan in FEW) - sum(info.rounds for info in store.runs())
    told: list[int] = []
    train_plans(FEW, store, workers=1, save_every=save_every, watch=told.append)
    assert sum(told) == missing
    for plan in FEW:
        assert_holds(store, plan)


def test_what_is_stopped_again_and_again_ends_alike(store: RunStore) -> None:
    """Every time in the round after one that was saved."""
    stops = 0
    while True:
        try:
            train_plans(MIXED, store, workers=1, save_every=0, watch=stop_after(2))
        except Stop:
            stops += 1
        else:
            break
    assert stops >= 5
    for plan in MIXED:
        assert_holds(store, plan)
    assert all(store.snapshot(info.id) is None for info in store.runs())


def test_a_stop_within_a_round_ends_alike(store: RunStore) -> None:
    with pytest.raises(Stop):
        train_plans(FEW, store, workers=1, save_every=0, on_round=stop_after(8))
    train_plans(FEW, store, workers=1)
    for plan in FEW:
        assert_holds(store, plan)


def test_one_learner_after_the_other_has_processes(store: RunStore) -> None:
    before = trainers()
    seen: list[set[int]] = []
    plans = [a_plan(rounds=1), a_plan(rounds=1, rate=0.2), a_plan(rounds=1, rate=0.3)]
    train_plans(plans, store, workers=2, watch=lambda _: seen.append(trainers() - before))
    assert [len(pids) for pids in seen] == [2, 2, 2]
    every = {pid for pids in seen for pid in pids}
    assert len(every) == 6
    assert not trainers() & every


def test_nobody_works_on_after_a_stop(store: RunStore) -> None:
    before = trainers()
    seen: set[int] = set()

    def stop(_: int) -> None:
        seen.update(trainers() - before)
        raise Stop

    with pytest.raises(Stop):
        train_plans(FEW, store, workers=2, watch=stop)
    assert len(seen) == 2
    assert not trainers() & seen


def test_a_run_begun_alone_goes_on_among_others_and_the_other_way_round(store: RunStore) -> None:
    with pytest.raises(Stop):
        play_into(store, FEW[0], every=4, watch=stop_after(1))
    with pytest.raises(Stop):
        train_plans(FEW[1:], store, workers=1, save_every=0, watch=stop_after(3))
    (last,) = (info for info in store.runs() if info.key == FEW[1].key)
    assert 0 < last.rounds < FEW[1].rounds
    play_into(store, FEW[1], every=4)
    train_plans(FEW, store, workers=1)
    for plan in FEW:
        assert_holds(store, plan)


def test_a_run_that_was_stopped_just_before_it_was_finished_is_finished(store: RunStore) -> None:
    with pytest.raises(Stop):
        play_into(store, FEW[2], every=FEW[2].rounds, watch=stop_after(1))
    assert [(info.rounds, info.finished) for info in store.runs()] == [(FEW[2].rounds, False)]
    told: list[int] = []
    train_plans([FEW[2], FEW[0]], store, workers=1, watch=told.append)
    assert sum(told) == FEW[0].rounds
    assert_holds(store, FEW[2])


def test_a_worker_that_is_killed_stops_the_runs_and_they_go_on_later(store: RunStore) -> None:
    rounds: list[int] = []
    before = trainers()

    def kill_a_worker(count: int) -> None:
        rounds.append(count)
        if len(rounds) == 4:
            os.kill(min(trainers() - before), signal.SIGKILL)

    with pytest.raises(TrainingError, match="a saved run goes on where it was"):
        train_plans(FEW, store, workers=2, save_every=0, watch=kill_a_worker)
    assert len(rounds) == 4
    assert trainers() <= before
    train_plans(FEW, store, workers=2)
    for plan in FEW:
        assert_holds(store, plan)


# Space.


def unused_pages(path: Path) -> int:
    connection = sqlite3.connect(path)
    try:
        return int(connection.execute("PRAGMA freelist_count").fetchone()[0])
    finally:
        connection.close()


def test_models_saved_on_the_way_take_no_space_in_the_end(store: RunStore, path: Path) -> None:
    with pytest.raises(Stop):
        train_plans(FEW, store, workers=1, save_every=0, watch=stop_after(3))
    assert any(store.snapshot(info.id) is not None for info in store.runs())
    train_plans(FEW, store, workers=1, save_every=NEVER)
    assert unused_pages(path) == 0
    assert all(store.snapshot(info.id) is None for info in store.runs())
    for plan in FEW:
        assert_holds(store, plan)


# Killed.

TRAINING = """
import json, os, sys
import turnout.lab.learners.torch_learner  # once for all children
from turnout.lab import batched as together
from turnout.simulator import RunPlan
from turnout.store import RunStore
from killing import Writes

together.SAVING_COSTS = 0.0  # after every round, however long saving takes

for order in sys.stdin:
    path, plans, die_at, with_workers = json.loads(order)
    if (child := os.fork()) == 0:
        os.setsid()
        Writes(die_at, group=with_workers)
        with RunStore(path) as store:
            together.train_plans([RunPlan.from_dict(plan) for plan in plans], store, workers=2, save_every=0)
        os._exit(0)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print("ended", ended, flush=True)
"""


def assert_rounds_are_right(path: Path) -> int:
    """Each run is stored as far as it is; how many rounds of all runs are."""
    with RunStore(path) as store:
        infos = store.runs()
        for info in infos:
            stored = list(undisturbed(RunPlan.from_dict(info.plan)).records())[: info.rounds]
            assert list(store.records(info.id)) == stored
        return sum(info.rounds for info in infos)


def test_training_that_is_killed_at_any_moment_ends_alike(path: Path) -> None:
    """Killed before a write: as the file is created or opened, as runs begin, and in the middle of a round's writes."""
    plans = [a_plan(rounds=9, gamma=0.5), a_plan("rbcsf", 5, 1), a_plan(rounds=6, rate=0.2)]
    wanted, held = sum(plan.rounds for plan in plans), [0]
    with subprocess.Popen(
        [sys.executable, "-c", TRAINING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        env=environment(),
    ) as nursery:
        assert nursery.stdin is not None
        assert nursery.stdout is not None

        def train(die_at: int, *, with_workers: bool) -> list[str]:
            """What a child tells until it has ended."""
            assert nursery.stdin is not None
            assert nursery.stdout is not None
            order = [str(path), [plan.as_dict() for plan in plans], die_at, with_workers]
            nursery.stdin.write(json.dumps(order) + "\n")
            told = [nursery.stdout.readline()]
            while not told[-1].startswith("ended"):
                assert told[-1]
                told.append(nursery.stdout.readline())
            return told

        for attempt, die_at in enumerate((4, 11, 17, 16, 20, 23, 10, 25, 28)):
            # With its workers, or without them: then they leave by themselves, while the next child trains.
            told = train(die_at, with_workers=attempt % 2 == 0)
            assert told == [f"ended {-signal.SIGKILL}\n"]
            if path.exists():
                held.append(assert_rounds_are_right(path))
        nursery.stdin.close()
    assert held == sorted(held)
    assert len(set(held)) > 3, held
    assert held[-1] < wanted
    with RunStore(path) as store:
        told_rounds: list[int] = []
        train_plans(plans, store, workers=2, watch=told_rounds.append)
        assert sum(told_rounds) == wanted - held[-1]
        for plan in plans:
            assert_holds(store, plan)
