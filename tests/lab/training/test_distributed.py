"""Training that is distributed over workers stores what training in this process stores."""

from __future__ import annotations

import os
import signal
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from turnout.errors import ClusterError, SettingError
from turnout.kernel.rounds import RoundOffer
from turnout.lab import PaperWorld, RunPlan, RunStore, register_world
from turnout.lab.runs.executors import JoblibExecutor
from turnout.lab.runs.sweep import WorkerTask
from turnout.lab.training.batched import train_plans
from turnout.lab.training.distributed import play_plans, train_task
from turnout.version import __version__
from waiting import wait_until

SETTINGS = {"items": 20, "hidden": 4, "evaluate_every": 2}
PLANS = [
    RunPlan(policy, rounds, seed, world="training", world_settings={"dataset": "digits", **SETTINGS, "gamma": gamma})
    for policy, rounds in (("random", 4), ("fair-pace", 6))
    for seed in range(2)
    for gamma in (1, "iid")
]
TURNS = RunPlan(
    "random",
    5,
    1,
    world="training",
    world_settings={"dataset": "digits", **SETTINGS, "updates_per_version": 2},
    concurrency=3,
)


class HereExecutor:
    """Plays tasks in this process, the last one first."""

    workers = 2

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


def test_distributed_training_stores_the_same_runs(stores: tuple[RunStore, RunStore]) -> None:
    local, other = stores
    plans, watched = [*PLANS, TURNS], list[int]()
    train_plans(plans, local, workers=1)
    ids = play_plans(plans, other, backend=JoblibExecutor(2), watch=watched.append)
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
        play_plans([plan], other, backend=JoblibExecutor(2))
    finally:
        killing.join()
    played = Counter(file.name.split("-")[0] for file in begun.glob("*-*"))
    assert played["1"] == played["4"] == 2
    train_plans([plan], local, workers=1)
    assert contents(other) == contents(local)


def test_runs_with_and_without_training_can_be_mixed(stores: tuple[RunStore, RunStore]) -> None:
    local, other = stores
    plans = [RunPlan("random", 5), *PLANS[:2], RunPlan("fedcs", 5)]
    played: list[int] = []
    play_plans(plans, local, workers=1)
    ids = play_plans(plans, other, backend=HereExecutor(), watch=played.append)
    assert contents(other) == contents(local)
    assert [other.info(run).key for run in ids] == [plan.key for plan in plans]
    assert sum(played) == sum(plan.rounds for plan in plans)


def test_workers_of_a_backend_train_on_cpus(stores: tuple[RunStore, RunStore]) -> None:
    with pytest.raises(SettingError, match="the workers of a backend train on CPUs, not on cuda: omit the backend"):
        play_plans(PLANS, stores[0], backend=HereExecutor(), device="cuda")


def test_a_worker_of_another_version_is_refused() -> None:
    with pytest.raises(ClusterError, match=f"a worker has turnout {__version__}, but the sweep was started by 0.0.1"):
        train_task(WorkerTask.of(PLANS[0])._replace(version="0.0.1"))
