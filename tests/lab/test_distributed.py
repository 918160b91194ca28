"""Training that is distributed over workers stores what training in this process stores."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from turnout.errors import ClusterError
from turnout.experiments.framework.reproduce import plans_of, reproduce
from turnout.experiments.paper.accuracy import AccuracyRounds, Task
from turnout.lab import distributed
from turnout.lab.batched import train_plans
from turnout.lab.distributed import claim_gpu, play_plans, split_into_tasks, train_distributed, train_task
from turnout.simulator import RunPlan
from turnout.simulator.executors import JoblibExecutor
from turnout.store import RunStore
from turnout.version import __version__

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

    def __init__(self) -> None:
        self.tasks: list[Any] = []

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any], *, gpus: int = 0) -> Iterator[tuple[int, Any]]:
        self.tasks += [(gpus, task) for task in tasks]
        for index in reversed(range(len(tasks))):
            yield index, function(tasks[index])


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
    watched: list[RunPlan] = []
    ids = train_distributed(PLANS, other, JoblibExecutor(2), watch=watched.append)
    assert contents(other) == contents(local)
    assert [other.info(run).key for run in ids] == [plan.key for plan in PLANS]
    assert sorted(plan.key for plan in watched) == sorted(plan.key for plan in PLANS)


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


def test_tasks_on_gpus_ask_for_one_each(stores: tuple[RunStore, RunStore], monkeypatch: pytest.MonkeyPatch) -> None:
    plain = train_task

    def on_cpu(task: tuple[str, str, list[dict[str, Any]]]) -> tuple[str, list[bytes]]:
        version, device, plans = task
        assert device == "cuda"
        return plain((version, "cpu", plans))

    monkeypatch.setattr(distributed, "train_task", on_cpu)
    executor = HereExecutor()
    train_distributed(PLANS, stores[1], executor, device="cuda")
    assert [(gpus, len(task[2])) for gpus, task in executor.tasks] == [(1, 4), (1, 4)]
    train_plans(PLANS, stores[0], workers=1)
    assert contents(stores[1]) == contents(stores[0])


def test_worker_processes_claim_different_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(cuda=SimpleNamespace(device_count=lambda: 2))
    monkeypatch.setitem(sys.modules, "torch", fake)
    monkeypatch.setattr(distributed, "torch_device", lambda name: name)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    claims = []
    for _ in range(4):  # a lock belongs to an open file, so each claim is like one of another process
        monkeypatch.setattr(distributed, "_claimed", None)
        assert claim_gpu() == claim_gpu()
        claims.append((claim_gpu(), distributed._claimed))
    assert [device for device, _ in claims] == ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]
    second = claims[1][1]
    assert second is not None
    second.close()  # as if its process had ended
    monkeypatch.setattr(distributed, "_claimed", None)
    assert claim_gpu() == "cuda:1"
    fake.cuda.device_count = lambda: 1
    assert claim_gpu() == "cuda"
    for file in (*(file for _, file in claims), distributed._claimed):
        assert file is not None
        file.close()


def test_a_worker_of_another_version_is_refused() -> None:
    with pytest.raises(ClusterError, match=f"a worker has turnout {__version__}, but the sweep was started by 0.0.1"):
        train_task(("0.0.1", "cpu", [PLANS[0].as_dict()]))
