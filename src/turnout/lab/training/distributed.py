"""Distributes the runs of a study, with and without training, over the workers of an executor."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from turnout.errors import SettingError
from turnout.lab.columns import RoundColumns
from turnout.lab.runs.executors import Executor
from turnout.lab.runs.plans import RunPlan
from turnout.lab.runs.store import RunStore
from turnout.lab.runs.sweep import StoredWatcher, WorkerTask, missing_plans, run_id, stored_plan, sweep
from turnout.lab.training.batched import Watcher, Watchers, train_plans
from turnout.lab.training.learner_cache import torch_device

#: Settings of the world "training" in which runs that share a learner may differ.
OF_A_RUN = (
    "gamma",
    "items",
    "evaluate_every",
    "updates_per_version",
    "server_rate",
    "discount",
    "mixing",
    "inner",
    "world",
)


def play_plans(
    plans: Iterable[RunPlan],
    store: RunStore,
    *,
    workers: int | None = None,
    backend: Executor | None = None,
    device: str = "cpu",
    watch: Watcher | None = None,
    track: StoredWatcher | None = None,
) -> list[int]:
    """Plays every plan that is missing from the store, with or without training; returns the run ids in plan order.

    Args:
        plans: The plans of the runs.
        store: The store that holds finished runs and receives new ones.
        workers: The number of processes of this machine, by default one per core.
        backend: An executor that distributes all runs; by default processes of this machine.
        device: The torch device that trains convolutional networks: of this machine, or of each worker.
        watch: Called with the number of rounds that were just played.
        track: Called with the plan and the rounds of runs as they are stored.
    """
    requested = list(plans)
    trained = [plan for plan in requested if trains(plan)]
    others = [plan for plan in requested if not trains(plan)]
    if backend is None:
        train_plans(trained, store, device=device, workers=workers, watch=watch, track=track)
    else:
        train_distributed(trained, store, backend, device=device, watch=watch, track=track)
    sweep(others, store, workers=workers, backend=backend, watch=Watchers(watch, track=track).stored)
    return [run_id(store, plan) for plan in requested]


def trains(plan: RunPlan) -> bool:
    """Returns whether the run of a plan trains a model."""
    return plan.world == "training"


def check_device(plans: Iterable[RunPlan], device: str) -> None:
    """Raises SettingError for a device other than the CPU if no plan trains a model."""
    if device != "cpu" and not any(trains(plan) for plan in plans):
        raise SettingError(
            f"these runs train no model: the device must be cpu, not {device}; runs in the world training use a device"
        )


def train_distributed(
    plans: Iterable[RunPlan],
    store: RunStore,
    executor: Executor,
    *,
    device: str = "cpu",
    watch: Watcher | None = None,
    track: StoredWatcher | None = None,
) -> list[int]:
    """Plays every plan of the world "training" that is missing from the store on the workers of an executor.

    On CPUs, each run is a task. On GPUs, the runs that share a learner are divided into as many tasks as there are
    GPUs, because the runs of a task train together. The runs of a task are stored when it ends; those of a worker that
    dies, and those that were running when this process was interrupted, begin again.

    Args:
        plans: The plans of the runs.
        store: The store that holds finished runs and receives new ones.
        executor: Plays the tasks.
        device: The torch device of each worker that trains convolutional networks. With "cuda", tasks on this machine
            take its GPUs in turn; on a cluster, a task takes the GPU that the cluster shows to it.
        watch: Called with the number of rounds that were just played.
        track: Called with the plan and the rounds of runs as they are stored.
    """
    requested = list(plans)
    devices = _devices(executor, device)
    batches = split_into_tasks(missing_plans(requested, store), None if device == "cpu" else len(devices))
    tasks = [WorkerTask.of(batch, devices[index % len(devices)]) for index, batch in enumerate(batches)]
    for index, results in executor.run(train_task, tasks, gpus=0 if device == "cpu" else 1):
        for plan, (data, made_by) in zip(batches[index], results, strict=True):
            columns = RoundColumns.from_bytes(data)
            store.write_run(plan.key, stored_plan(store, plan), columns, clients=columns.clients, code_version=made_by)
            Watchers(watch, track=track).stored(plan, columns)
    return [run_id(store, plan) for plan in requested]


def train_task(task: WorkerTask) -> list[tuple[bytes, str]]:
    """Trains the runs of a task in a worker; returns the rounds of each as bytes, and what made them."""
    plans = task.open()
    with tempfile.TemporaryDirectory() as folder, RunStore(Path(folder) / "runs.turnout") as store:
        runs = train_plans(plans, store, device=task.device, workers=1, save_every=math.inf)
        return [(store.columns(run).to_bytes(), store.info(run).code_version) for run in runs]


def split_into_tasks(plans: Sequence[RunPlan], tasks_per_learner: int | None) -> list[list[RunPlan]]:
    """Divides plans into tasks: one run per task, or `tasks_per_learner` tasks for all runs that share a learner."""
    if tasks_per_learner is None:
        return [[plan] for plan in sorted(plans, key=lambda plan: -plan.rounds)]
    sharing: dict[str, list[RunPlan]] = {}
    for plan in plans:
        settings = {name: value for name, value in plan.world_settings.items() if name not in OF_A_RUN}
        sharing.setdefault(json.dumps(settings, sort_keys=True, default=str), []).append(plan)
    return [
        group[start : start + size]
        for group in sharing.values()
        for size in (math.ceil(len(group) / tasks_per_learner),)
        for start in range(0, len(group), size)
    ]


def _devices(executor: Executor, device: str) -> list[str]:
    """Returns the device of each task that trains at the same time; one GPU of this machine each, if it has several."""
    if device == "cpu":
        return [device]
    if executor.gpus is not None:
        return [device] * max(1, executor.gpus)
    torch_device(device)
    import torch

    return [f"cuda:{index}" for index in range(torch.cuda.device_count())] if device == "cuda" else [device]
