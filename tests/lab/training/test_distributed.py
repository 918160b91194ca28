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
import torch

from lab.studies.made_up import reproduce
from turnout.errors import ClusterError
from turnout.kernel.rounds import RoundOffer
from turnout.lab import PaperWorld, RunPlan, RunStore, register_world
from turnout.lab.runs.executors import JoblibExecutor
from turnout.lab.runs.sweep import WorkerTask
from turnout.lab.studies.framework.reproduce import plans_of
from turnout.lab.studies.paper.accuracy import AccuracyRounds, Task
from turnout.lab.training import distributed
from turnout.lab.training.batched import train_plans
from turnout.lab.training.distributed import play_plans, split_into_tasks, train_distributed, train_task
from turnout.version import __version__
from waiting import wait_until

SETTINGS = {"items": 20, "hidden": 4, "evaluate_every": 2}
PLANS = [
    RunPlan(policy, rounds, seed, world="training", world_settings={"dataset": "digits", **SETTINGS, "gamma": gamma})
    for policy, rounds in (("random", 4), ("fair-pace", 6))
    for seed in range(2)
    for gamma in (1, "iid")
]


class OnePanel(AccuracyRounds):
    """The first panel of the accuracy study, measured after fewer rounds."""

    gammas = (1,)

    def __init__(self) -> None:
        super().__init__([Task("digits", SETTINGS, rounds=4)])


class HereExecutor:
    """Plays tasks in this process, the last one first."""

    workers, gpus = 2, 2

    def __init__(self, *, interrupted_after: int | None = None) -> None:
        self.tasks: list[Any] = []
        self.interrupted_after = interrupted_after

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any], *, gpus: int = 0) -> Iterator[tuple[int, Any]]:
        for index, task in reversed(list(enumerate(tasks))):
            if len(self.tasks) == self.interrupted_after:
                raise KeyboardInterrupt
            self.tasks.append((gpus, task))
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
    train_plans(PLANS, local, workers=1)
    watched: list[int] = []
    ids = train_distributed(PLANS, other, JoblibExecutor(2), watch=watched.append)
    assert contents(other) == contents(local)
    assert [other.info(run).key for run in ids] == [plan.key for plan in PLANS]
    assert sum(watched) == sum(plan.rounds for plan in PLANS)


TURNS = RunPlan(
    "random",
    5,
    1,
    world="training",
    world_settings={"dataset": "digits", **SETTINGS, "updates_per_version": 2},
    concurrency=3,
)


def test_an_interrupted_call_keeps_the_runs_that_were_finished(stores: tuple[RunStore, RunStore]) -> None:
    local, other = stores
    plans = [*PLANS[:3], TURNS]
    train_plans(plans, local, workers=1)
    with pytest.raises(KeyboardInterrupt):
        train_distributed(plans, other, HereExecutor(interrupted_after=3))
    assert len(contents(other)) == 3
    executor = HereExecutor()
    train_distributed(plans, other, executor)
    assert len(executor.tasks) == 1
    assert contents(other) == contents(local)


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
        train_distributed([plan], other, JoblibExecutor(2))
    finally:
        killing.join()
    played = Counter(file.name.split("-")[0] for file in begun.glob("*-*"))
    assert played["1"] == played["4"] == 2
    train_plans([plan], local, workers=1)
    assert contents(other) == contents(local)


def test_finished_runs_are_not_repeated_and_unfinished_ones_are_replaced(stores: tuple[RunStore, RunStore]) -> None:
    local, other = stores
    train_plans(PLANS, local, workers=1)
    train_plans(PLANS[:3], other, workers=1)
    other.begin(PLANS[3].key, PLANS[3].as_dict(), clients=40, code_version="an interrupted run")
    executor = HereExecutor()
    train_distributed(PLANS, other, executor)
    assert len(executor.tasks) == len(PLANS) - 3
    assert contents(other) == contents(local)


def test_a_study_can_be_distributed(stores: tuple[RunStore, RunStore]) -> None:
    local, other = stores
    study = [OnePanel()]
    expected = reproduce(study, local, seeds=2, rounds=4, workers=1)
    executor = HereExecutor()
    found = reproduce(study, other, seeds=2, rounds=4, backend=executor)
    assert len(executor.tasks) == len(plans_of(study, 2, 4))
    assert contents(other) == contents(local)
    assert [result.findings.claims for result in found] == [result.findings.claims for result in expected]


def test_runs_with_and_without_training_can_be_mixed(stores: tuple[RunStore, RunStore]) -> None:
    local, other = stores
    plans = [RunPlan("random", 5), *PLANS[:2], RunPlan("fedcs", 5)]
    played: list[int] = []
    play_plans(plans, local, workers=1)
    ids = play_plans(plans, other, backend=HereExecutor(), watch=played.append)
    assert contents(other) == contents(local)
    assert [other.info(run).key for run in ids] == [plan.key for plan in plans]
    assert sum(played) == sum(plan.rounds for plan in plans)


def test_on_gpus_the_runs_of_a_learner_are_divided_among_them() -> None:
    other = [RunPlan("random", 4, world="training", world_settings={**SETTINGS, "hidden": 8})]
    tasks = split_into_tasks([*PLANS, *other], 3)
    assert [len(task) for task in tasks] == [3, 3, 2, 1]
    assert [plan for task in tasks for plan in task] == [*PLANS, *other]
    assert split_into_tasks([], 3) == []
    assert [len(task) for task in split_into_tasks(PLANS, None)] == [1] * len(PLANS)
    assert split_into_tasks(PLANS, None)[0][0].rounds == 6  # long runs start first


@pytest.mark.parametrize(("gpus", "devices"), [(2, ["cuda", "cuda"]), (None, ["cuda:1", "cuda:0"])])
def test_tasks_on_gpus_ask_for_one_each(
    stores: tuple[RunStore, RunStore], monkeypatch: pytest.MonkeyPatch, gpus: int | None, devices: list[str]
) -> None:
    """A cluster shows one GPU to each task; on this machine, which has two here, each task is given one."""
    plain = train_task
    monkeypatch.setattr(distributed, "train_task", lambda task: plain(task._replace(device="cpu")))
    monkeypatch.setattr(distributed, "torch_device", lambda name: name)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    executor = HereExecutor()
    executor.gpus = gpus  # type: ignore[assignment]
    train_distributed(PLANS, stores[1], executor, device="cuda")
    assert [(asked, task.device, len(task.plans)) for asked, task in executor.tasks] == [(1, d, 4) for d in devices]
    train_plans(PLANS, stores[0], workers=1)
    assert contents(stores[1]) == contents(stores[0])


def test_a_worker_of_another_version_is_refused() -> None:
    with pytest.raises(ClusterError, match=f"a worker has turnout {__version__}, but the sweep was started by 0.0.1"):
        train_task(WorkerTask.of(PLANS[:1])._replace(version="0.0.1"))
