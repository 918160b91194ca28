"""Many training runs at once, in this process and on executors."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import turnout
from lab.runs import keepsakes
from lab.runs.keepsakes import Stop, stop_after
from lab.training.processes import forking, trainers
from narrowing import known
from turnout.errors import ClusterError, TrainingError
from turnout.kernel.rounds import RoundOffer
from turnout.lab import PaperWorld, RoundColumns, RunPlan, RunStore, play, play_into, play_plan, register_world, sweep
from turnout.lab.runs.sweep import JoblibExecutor, WorkerTask, play_task, run_id
from turnout.lab.training import batched
from turnout.lab.training.batched import play_plans, train_plans
from turnout.lab.training.learner_cache import LearnerCache
from turnout.lab.training.world import TrainingWorld
from turnout.version import __version__
from waiting import wait_until

NEVER = 1e9


def make_plan(policy: str = "random", rounds: int = 10, seed: int = 0, *, keep: Any = "all", **world: Any) -> RunPlan:
    settings = {"model": "cnn", "items": 30, "batch": 15, "world": {"clients": 20}, **world}
    cohort = {} if policy == "fedcs" else {"cohort_size": 3}
    return RunPlan(policy, rounds, seed, cohort, world="training", world_settings=settings, keep=keep)


#: Several lengths and policies; the first five share a learner, the next two do not, the last two train with NumPy.
PLANS = [
    make_plan(rounds=6),
    make_plan("rbcsf", 5, gamma=0.5, evaluate_every=3),
    make_plan("fedcs", 3, 3),
    make_plan("random", 3, 1, keep="choices"),
    make_plan("rbcsf", 1, 2),
    make_plan(rounds=4, rate=0.2, momentum=0.5),
    make_plan(seed=2, rounds=2, epochs=2, batch=7, proximal=0.1),
    make_plan(rounds=5, model="mlp", hidden=4),
    make_plan("rbcsf", 4, 1, model="mlp", hidden=0, keep="choices"),
]
FEW = [make_plan(rounds=6), make_plan("rbcsf", 5, gamma=0.5), make_plan("random", 3, 1)]
MIXED = [*PLANS[2:6], PLANS[-1]]


@cache
def play_whole_plan(plan: str) -> RoundColumns:
    return play_plan(RunPlan.from_dict(json.loads(plan)))


def uninterrupted(plan: RunPlan) -> RoundColumns:
    """Returns the run played separately and without interruption; it is played once for all tests."""
    with LearnerCache(workers=1):
        return play_whole_plan(json.dumps(plan.as_dict()))


def assert_holds(store: RunStore, plan: RunPlan) -> None:
    keepsakes.assert_holds(store, plan, whole=uninterrupted(plan).to_bytes())


# Equality with separate runs.


@pytest.mark.parametrize(("workers", "save_every"), [(1, 0), pytest.param(2, NEVER, marks=forking)])
def test_batched_runs_equal_separate_runs(store: RunStore, workers: int, save_every: float) -> None:
    ids = train_plans(PLANS, store, workers=workers, save_every=save_every)
    assert len(set(ids)) == len(PLANS)
    for run, plan in zip(ids, PLANS, strict=True):
        info = known(store.find(plan.key))
        assert info.id == run
        assert info.plan == plan.as_dict()
        assert info.code_version == turnout.__version__
        assert_holds(store, plan)
        assert store.snapshot(run) is None


@forking
def test_a_run_does_not_depend_on_a_learner_cache() -> None:
    assert play_plan(FEW[1]).to_bytes() == uninterrupted(FEW[1]).to_bytes()


def test_a_stored_plan_is_not_played_again(store: RunStore) -> None:
    first = train_plans(FEW[:1], store, workers=1)
    counts: list[int] = []
    repeated = [*FEW, FEW[1], replace(FEW[0], label="another label")]
    ids = train_plans(repeated, store, workers=1, watch=counts.append)
    assert sum(counts) == FEW[1].rounds + FEW[2].rounds
    assert ids[0] == ids[4] == first[0]
    assert ids[1] == ids[3]
    assert len(store.runs()) == 3
    assert train_plans(repeated, store, workers=1, watch=stop_after(1)) == ids
    assert train_plans([], store) == []
    assert train_plans(FEW[:1], store, workers=1, keep_models=True) == first
    assert store.snapshot(first[0]) is None  # not even for its model


@pytest.mark.thorough
@forking
def test_a_finished_run_keeps_its_model_only_on_request(store: RunStore) -> None:
    plans = [FEW[0], FEW[2], make_plan(model="mlp", hidden=4, rounds=4)]
    for run, plan in zip(train_plans(plans, store, workers=1, keep_models=True, save_every=0), plans, strict=True):
        assert_holds(store, plan)
        policy, world = plan.build()
        list(play(policy, world, plan.rounds))
        snapshot = known(store.snapshot(run))
        last, state = snapshot
        assert last == plan.rounds
        assert isinstance(world, TrainingWorld)
        learner = world.federation.learner
        weights = learner.saved(world.weights)
        assert state["world.weights"].tobytes() == weights.tobytes()
        accuracy = store.columns(run).metrics["accuracy"][-1]
        assert learner.evaluate([learner.loaded(state["world.weights"])]) == [accuracy]
        learner.close()


# Interruption.


@pytest.mark.parametrize(
    ("rounds", "save_every"),
    [
        (1, 0),
        (3, NEVER),
        (5, 0),
        *(pytest.param(*case, marks=pytest.mark.thorough) for case in ((1, NEVER), (3, 0), (5, NEVER))),
    ],
)
def test_interrupted_runs_resume_and_end_equal(store: RunStore, rounds: int, save_every: float) -> None:
    with pytest.raises(Stop):
        train_plans(FEW, store, workers=1, save_every=save_every, watch=stop_after(rounds))
    for info in store.runs():
        stored = list(uninterrupted(RunPlan.from_dict(info.plan)).records())[: info.rounds]
        assert list(store.columns(info.id).records()) == stored
    missing = sum(plan.rounds for plan in FEW) - sum(info.rounds for info in store.runs())
    counts: list[int] = []
    train_plans(FEW, store, workers=1, save_every=save_every, watch=counts.append)
    assert sum(counts) == missing
    for plan in FEW:
        assert_holds(store, plan)


def test_runs_that_are_interrupted_repeatedly_end_equal(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each interruption comes one round after a snapshot, and that round is played again."""
    monkeypatch.setattr(batched, "MIN_PLAY_TO_SAVE_RATIO", NEVER)  # one snapshot per call, however slow the rounds are
    stops = 0
    while True:
        try:
            train_plans(MIXED, store, workers=1, save_every=0, watch=stop_after(2))
        except Stop:
            stops += 1
        else:
            break
    assert stops == 5
    for plan in MIXED:
        assert_holds(store, plan)
    assert all(store.snapshot(info.id) is None for info in store.runs())


@forking
def test_only_one_learner_at_a_time_has_processes(store: RunStore) -> None:
    before = trainers()
    seen: list[set[int]] = []
    plans = [make_plan(rounds=1), make_plan(rounds=1, rate=0.2), make_plan(rounds=1, rate=0.3)]
    train_plans(plans, store, workers=2, watch=lambda _: seen.append(trainers() - before))
    assert [len(pids) for pids in seen] == [2, 2, 2]
    every = {pid for pids in seen for pid in pids}
    assert len(every) == 6
    assert not trainers() & every


@forking
def test_no_worker_survives_an_interruption(store: RunStore) -> None:
    before = trainers()
    seen: set[int] = set()

    def stop(_: int) -> None:
        seen.update(trainers() - before)
        raise Stop

    with pytest.raises(Stop):
        train_plans(FEW, store, workers=2, watch=stop)
    assert len(seen) == 2
    assert not trainers() & seen


@forking
def test_a_run_can_switch_between_separate_and_batched_training(store: RunStore) -> None:
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


@forking
def test_killed_workers_interrupt_the_runs_and_they_can_resume(store: RunStore) -> None:
    rounds: list[int] = []
    before = trainers()

    def kill_the_workers(count: int) -> None:
        rounds.append(count)
        if len(rounds) == 4:
            # All of them: a single one that is left may train another round before the loss is noticed.
            for worker in trainers() - before:
                os.kill(worker, signal.SIGKILL)

    with pytest.raises(TrainingError, match="a saved run resumes from its last snapshot"):
        train_plans(FEW, store, workers=2, save_every=0, watch=kill_the_workers)
    assert len(rounds) == 4
    assert trainers() <= before
    train_plans(FEW, store, workers=2)
    for plan in FEW:
        assert_holds(store, plan)


# Metrics.


def test_who_tracks_receives_every_round_once_when_it_is_stored(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batched, "MIN_PLAY_TO_SAVE_RATIO", 0.0)  # save after every round, however long saving takes
    plans = [make_plan("rbcsf", 3, gamma=0.5), make_plan("random", 2, 1)]
    tracked: dict[str, list[RoundColumns]] = {plan.key: [] for plan in plans}

    def track(plan: RunPlan, columns: RoundColumns) -> None:
        tracked[plan.key].append(columns)

    with pytest.raises(Stop):
        train_plans(plans, store, workers=1, save_every=0, watch=stop_after(2), track=track)
    assert 0 < len(tracked[plans[0].key]) < 3
    train_plans(plans, store, workers=1, save_every=0, track=track)
    for plan in plans:
        whole = RoundColumns.concatenate(tracked[plan.key])
        assert whole.rounds.tolist() == list(range(1, plan.rounds + 1))
        assert whole.to_bytes() == store.columns(run_id(store, plan)).to_bytes()
        assert_holds(store, plan)


# Disk space.


def unused_pages(path: Path) -> int:
    connection = sqlite3.connect(path)
    try:
        return int(connection.execute("PRAGMA freelist_count").fetchone()[0])
    finally:
        connection.close()


def test_snapshots_take_no_space_after_the_runs_have_finished(store: RunStore, path: Path) -> None:
    with pytest.raises(Stop):
        train_plans(FEW, store, workers=1, save_every=0, watch=stop_after(3))
    assert any(store.snapshot(info.id) is not None for info in store.runs())
    train_plans(FEW, store, workers=1, save_every=NEVER)
    assert unused_pages(path) == 0
    train_plans([make_plan(seed=5, rounds=3)], store, workers=1, save_every=0)
    assert unused_pages(path) == 0
    assert all(store.snapshot(info.id) is None for info in store.runs())
    for plan in FEW:
        assert_holds(store, plan)


# Runs without rounds.

TURNS = [
    replace(make_plan("random", 13, seed, updates_per_version=buffer, evaluate_every=2), settings={}, concurrency=3)
    for seed, buffer in ((0, 2), (1, 4))
]


def test_runs_without_rounds_that_advance_together_equal_separate_runs(store: RunStore) -> None:
    plans = [*TURNS, FEW[0]]
    train_plans(plans, store, workers=1, keep_models=True)  # which trains them in this process
    for plan in plans:
        assert_holds(store, plan)


@pytest.mark.parametrize("save_every", [0, NEVER])
def test_interrupted_runs_without_rounds_resume_and_end_equal(store: RunStore, save_every: float) -> None:
    with pytest.raises(Stop):
        train_plans(TURNS, store, workers=1, save_every=save_every, keep_models=True, watch=stop_after(5))
    stored = sum(info.rounds for info in store.runs())
    assert (stored > 0) == (save_every == 0)
    counts: list[int] = []
    ids = train_plans(TURNS, store, workers=1, save_every=save_every, keep_models=True, watch=counts.append)
    assert sum(counts) == sum(plan.rounds for plan in TURNS) - stored
    for run, plan in zip(ids, TURNS, strict=True):
        assert_holds(store, plan)
        assert store.snapshot(run) is not None  # the model


SETTINGS = {"items": 20, "hidden": 4, "evaluate_every": 2}
DIGIT_PLANS = [
    RunPlan(policy, rounds, seed, world="training", world_settings={"dataset": "digits", **SETTINGS, "gamma": gamma})
    for policy, rounds in (("random", 4), ("fair-pace", 6))
    for seed in range(2)
    for gamma in (1, "iid")
]
DIGIT_TURNS = RunPlan(
    "random",
    5,
    1,
    world="training",
    world_settings={"dataset": "digits", **SETTINGS, "updates_per_version": 2},
    concurrency=3,
)


class HereExecutor:
    """Plays tasks in this process, the last one first."""

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        for index, task in reversed(list(enumerate(tasks))):
            yield index, function(task)


def contents(store: RunStore) -> dict[str, tuple[bytes, str, dict[str, Any]]]:
    """Returns the bytes, the version and the plan of each finished run by its key."""
    runs = store.runs()
    assert all(info.finished for info in runs)
    return {info.key: (store.columns(info.id).to_bytes(), info.code_version, info.plan) for info in runs}


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[tuple[RunStore, RunStore]]:
    with RunStore(tmp_path / "local.turnout") as local, RunStore(tmp_path / "distributed.turnout") as other:
        yield local, other


@pytest.mark.parametrize(
    ("plans", "backend"),
    [
        ([*DIGIT_PLANS, DIGIT_TURNS], JoblibExecutor(2)),
        ([RunPlan("random", 5), *DIGIT_PLANS[:2], RunPlan("fedcs", 5)], HereExecutor()),
    ],
    ids=["in two processes", "with and without training"],
)
def test_distributed_training_stores_the_same_runs(
    stores: tuple[RunStore, RunStore], plans: list[RunPlan], backend: Any
) -> None:
    local, other = stores
    watched: list[int] = []
    play_plans(plans, local, workers=1)
    ids = sweep(plans, other, backend=backend, watch=lambda _, columns: watched.append(len(columns)))
    assert contents(other) == contents(local)
    assert [other.info(run).key for run in ids] == [plan.key for plan in plans]
    assert sum(watched) == sum(plan.rounds for plan in plans)


class Announced(PaperWorld):
    """The paper's world; it writes down each round and its process, and waits in round 4 until it may go on."""

    def __init__(self, seed: int = 0, *, folder: str) -> None:
        super().__init__(seed, clients=10)
        self.folder = Path(folder)

    def offer(self, round: int) -> RoundOffer:
        (self.folder / f"{round}-{os.getpid()}-{uuid.uuid4()}").touch()
        if round == 4:
            wait_until((self.folder / "go").exists, "the test lets the round go on")
        return super().offer(round)


@pytest.mark.thorough
def test_the_run_of_a_killed_worker_is_played_again(stores: tuple[RunStore, RunStore], tmp_path: Path) -> None:
    """The world is known to this process only, and travels with the task."""
    register_world(Announced, "announced")
    local, other = stores
    begun = tmp_path / "begun"
    begun.mkdir()
    settings = {"dataset": "digits", **SETTINGS, "inner": "announced", "world": {"folder": str(begun)}}
    plan = RunPlan("random", 6, settings={"cohort_size": 2}, world="training", world_settings=settings)

    def kill() -> None:
        (waiting,) = wait_until(lambda: list(begun.glob("4-*")), "the fourth round was begun")
        os.kill(int(waiting.name.split("-")[1]), signal.SIGKILL)
        (begun / "go").touch()

    killing = threading.Thread(target=kill)
    killing.start()
    try:
        sweep([plan], other, backend=JoblibExecutor(2))
    finally:
        killing.join()
    played = Counter(file.name.split("-")[0] for file in begun.glob("*-*"))
    assert played["1"] == played["4"] == 2
    train_plans([plan], local, workers=1)
    assert contents(other) == contents(local)


def test_a_worker_of_another_version_is_refused() -> None:
    with pytest.raises(ClusterError, match=f"a worker has turnout {__version__}, but the sweep was started by 0.0.1"):
        play_task(WorkerTask.of(DIGIT_PLANS[0])._replace(version="0.0.1"))
