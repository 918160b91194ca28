"""Distributes the runs of a study, with and without training, over the workers of an executor."""

from __future__ import annotations

import getpass
import json
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import IO, Any

from turnout.lab.batched import train_plans
from turnout.lab.learner_cache import torch_device
from turnout.simulator.executors import Executor
from turnout.simulator.plans import RunPlan
from turnout.simulator.sweep import check_worker_version, missing_plans, run_id, stored_plan, sweep
from turnout.store import RoundColumns, RunStore
from turnout.store.files.system import try_lock
from turnout.version import __version__

Watcher = Callable[[RunPlan], None]
#: Settings of the world "training" in which runs that share a learner may differ.
OF_A_RUN = ("gamma", "items", "evaluate_every", "buffer", "server_rate", "discount", "mixing", "inner", "world")

_claimed: IO[bytes] | None = None  # holds the lock of this process on its GPU


def play_plans(
    plans: Iterable[RunPlan],
    store: RunStore,
    *,
    workers: int | None = None,
    backend: str | Executor | None = None,
    device: str = "cpu",
    watch: Callable[[int], None] | None = None,
) -> list[int]:
    """Plays every plan that is missing from the store, with or without training; returns the run ids in plan order.

    Args:
        plans: The plans of the runs.
        store: The store that holds finished runs and receives new ones.
        workers: The number of processes of this machine, by default one per core.
        backend: An executor that distributes all runs, or the name of a joblib backend for the runs without training.
        device: The torch device that trains convolutional networks: of this machine, or of each worker.
        watch: Called with the number of rounds that were just played.
    """
    requested = list(plans)
    trained = [plan for plan in requested if trains(plan)]
    others = [plan for plan in requested if not trains(plan)]
    on_run: Watcher | None = None if watch is None else lambda plan: watch(plan.rounds)
    if backend is None or isinstance(backend, str):
        train_plans(trained, store, device=device, workers=workers, watch=watch)
    else:
        train_distributed(trained, store, backend, device=device, watch=on_run)
    sweep(others, store, workers=workers, backend=backend, watch=on_run)
    return [run_id(store, plan) for plan in requested]


def trains(plan: RunPlan) -> bool:
    """Returns whether the run of a plan trains a model."""
    return plan.world == "training"


def train_distributed(
    plans: Iterable[RunPlan],
    store: RunStore,
    executor: Executor,
    *,
    device: str = "cpu",
    watch: Watcher | None = None,
) -> list[int]:
    """Plays every plan of the world "training" that is missing from the store on the workers of an executor.

    On CPUs, each run is a task. On GPUs, the runs that share a learner are divided into as many tasks as there are
    GPUs, because the runs of a task train together. A run is stored when its task has ended; the task of a worker that
    dies starts again from its first round.

    Args:
        plans: The plans of the runs.
        store: The store that holds finished runs and receives new ones.
        executor: Plays the tasks.
        device: The torch device of each worker that trains convolutional networks; on "cuda", every worker process of
            a machine takes a GPU of its own as long as there are any.
        watch: Called with each plan when it is finished.
    """
    requested = list(plans)
    batches = split_into_tasks(missing_plans(requested, store), _gpu_tasks(executor, device))
    tasks = [(__version__, device, [plan.as_dict() for plan in batch]) for batch in batches]
    gpus = 0 if device == "cpu" else 1
    for index, (made_by, runs) in executor.run(train_task, tasks, gpus=gpus) if tasks else ():
        for plan, data in zip(batches[index], runs, strict=True):
            columns = RoundColumns.from_bytes(data)
            store.write_run(plan.key, stored_plan(store, plan), columns, clients=columns.clients, code_version=made_by)
            if watch is not None:
                watch(plan)
    return [run_id(store, plan) for plan in requested]


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


def train_task(task: tuple[str, str, list[dict[str, Any]]]) -> tuple[str, list[bytes]]:
    """Trains the runs of a task in a worker; returns what made them (`code_version`) and their columns as bytes."""
    version, device, plans = task
    check_worker_version(version)
    own_device = claim_gpu() if device == "cuda" else device
    with tempfile.TemporaryDirectory() as folder, RunStore(Path(folder) / "runs.turnout") as store:
        runs = train_plans(map(RunPlan.from_dict, plans), store, device=own_device, workers=1)
        return store.info(runs[0]).code_version, [store.columns(run).to_bytes() for run in runs]


def claim_gpu() -> str:
    """Returns a GPU for this process: one that no other worker of this machine has claimed, if there is one.

    A lock on a file marks a claim, so it ends with its process. If there are more workers than GPUs, they share them
    evenly. A worker that sees one GPU only, as on Ray, has that one.
    """
    global _claimed
    torch_device("cuda")
    import torch

    gpus = torch.cuda.device_count()
    if gpus == 1:
        return "cuda"
    if _claimed is None:
        _claimed = next(_free_claims())
    return f"cuda:{int(Path(_claimed.name).suffix[1:]) % gpus}"


def _free_claims() -> Iterator[IO[bytes]]:
    """Yields the files of claims that this process holds now, with the numbers 0, 1, 2, … as their endings."""
    user = os.getuid() if hasattr(os, "getuid") else getpass.getuser()  # Windows has names only
    folder = Path(tempfile.gettempdir()) / f"turnout-gpus-{user}"
    folder.mkdir(mode=0o700, exist_ok=True)
    for number in count():
        file = (folder / f"claim.{number}").open("wb")
        if try_lock(file.fileno()):
            yield file
        else:
            file.close()


def _gpu_tasks(executor: Executor, device: str) -> int | None:
    """Returns the number of tasks for the runs that share a learner; None on CPUs, where each run is a task."""
    if device == "cpu":
        return None
    if executor.gpus is not None:
        return max(1, executor.gpus)
    torch_device(device)
    import torch

    return torch.cuda.device_count() if device == "cuda" else 1
