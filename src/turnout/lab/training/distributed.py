"""Distributes the runs of a study, with and without training, over the workers of an executor."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence

from turnout.errors import SettingError
from turnout.lab.columns import RoundColumns
from turnout.lab.runs.carried import carried_plugins
from turnout.lab.runs.executors import Executor
from turnout.lab.runs.plans import RunPlan
from turnout.lab.runs.store import RunStore
from turnout.lab.runs.sweep import missing_plans, run_id, stored_plan, sweep
from turnout.lab.runs.tracked import MetricsWatcher
from turnout.lab.training.batched import MIN_PLAY_TO_SAVE_RATIO, train_plans
from turnout.lab.training.learner_cache import torch_device
from turnout.lab.training.segments import Segment, TrainingTask, TrainingTaskResult, train_task
from turnout.version import __version__

Watcher = Callable[[int], None]
#: Settings of the world "training" in which runs that share a learner may differ.
OF_A_RUN = ("gamma", "items", "evaluate_every", "buffer", "server_rate", "discount", "mixing", "inner", "world")
SAVE_EVERY = 120.0


def play_plans(
    plans: Iterable[RunPlan],
    store: RunStore,
    *,
    workers: int | None = None,
    backend: str | Executor | None = None,
    device: str = "cpu",
    watch: Watcher | None = None,
    track: MetricsWatcher | None = None,
) -> list[int]:
    """Plays every plan that is missing from the store, with or without training; returns the run ids in plan order.

    Args:
        plans: The plans of the runs.
        store: The store that holds finished runs and receives new ones.
        workers: The number of processes of this machine, by default one per core.
        backend: An executor that distributes all runs, or the name of a joblib backend for the runs without training.
        device: The torch device that trains convolutional networks: of this machine, or of each worker.
        watch: Called with the number of rounds that were just played.
        track: Called with the plan and the metrics of each round while it is played, without an executor.
    """
    requested = list(plans)
    trained = [plan for plan in requested if trains(plan)]
    others = [plan for plan in requested if not trains(plan)]
    if backend is None or isinstance(backend, str):
        train_plans(trained, store, device=device, workers=workers, watch=watch, track=track)
    else:
        train_distributed(trained, store, backend, device=device, watch=watch)
    on_run = None if watch is None else lambda plan: watch(plan.rounds)
    sweep(others, store, workers=workers, backend=backend, watch=on_run, track=track)
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
    save_every: float = SAVE_EVERY,
    watch: Watcher | None = None,
) -> list[int]:
    """Plays every plan of the world "training" that is missing from the store on the workers of an executor.

    On CPUs, each run is a task. On GPUs, the runs that share a learner are divided into as many tasks as there are
    GPUs, because the runs of a task train together. A task returns its rounds and the states of its runs from time to
    time; they are stored, and another task continues it. So a task whose worker dies, and a call that was interrupted,
    resume from the last snapshot in the store.

    Args:
        plans: The plans of the runs.
        store: The store that holds finished runs and receives new ones.
        executor: Plays the tasks.
        device: The torch device of each worker that trains convolutional networks; on "cuda", every worker process of
            a machine takes a GPU of its own as long as there are any.
        save_every: The interval in seconds between the snapshots of a task. It is extended if building the worlds
            again would take more than a twentieth of the time.
        watch: Called with the number of rounds that were just played.
    """
    requested = list(plans)
    missing = missing_plans(requested, store)
    if missing:
        batches = split_into_tasks(missing, _gpu_tasks(executor, device))
        _Distribution(store, batches, device, save_every, watch).run(executor)
    return [run_id(store, plan) for plan in requested]


class _Distribution:
    """The tasks of a study, and what is stored of each."""

    def __init__(
        self,
        store: RunStore,
        batches: Sequence[Sequence[RunPlan]],
        device: str,
        save_every: float,
        watch: Watcher | None,
    ) -> None:
        self._store, self._device, self._save_every, self._watch = store, device, save_every, watch
        self._unfinished = [list(batch) for batch in batches]
        self._has_snapshots = False

    def run(self, executor: Executor) -> None:
        """Plays all tasks to their end."""
        tasks = [
            self._task(batch, [self._stored_segment(plan) for plan in batch], self._save_every)
            for batch in self._unfinished
        ]
        for _ in executor.run(train_task, tasks, gpus=0 if self._device == "cpu" else 1, follow=self._follow):
            pass
        if self._has_snapshots:
            self._store.compact()

    def _stored_segment(self, plan: RunPlan) -> Segment:
        """Returns where a run resumes; rounds without a snapshot cannot be continued, and are deleted."""
        info = self._store.find(plan.key)
        snapshot = None if info is None else self._store.snapshot(info.id)
        if snapshot is not None:
            self._has_snapshots = True
            return Segment.after(*snapshot)
        if info is not None:
            self._store.delete(info.id)
        return Segment()

    def _task(self, plans: Sequence[RunPlan], segments: Sequence[Segment], seconds: float) -> TrainingTask:
        runs = [(plan.as_dict(), segment) for plan, segment in zip(plans, segments, strict=True)]
        carried = [plugin for plan in plans for plugin in carried_plugins(plan)]
        return TrainingTask(
            __version__, self._device, seconds, runs, list({plugin[:2]: plugin for plugin in carried}.values())
        )

    def _follow(self, index: int, result: TrainingTaskResult) -> TrainingTask | None:
        """Stores what a task has played, and returns the task that continues it, if its runs are not finished."""
        left: list[tuple[RunPlan, Segment]] = []
        for plan, (data, segment) in zip(self._unfinished[index], result.runs, strict=True):
            columns = RoundColumns.from_bytes(data)
            self._save(plan, columns, segment, result.made_by)
            if segment is not None:
                left.append((plan, segment))
            if self._watch is not None:
                self._watch(len(columns))
        self._unfinished[index] = [plan for plan, _ in left]
        seconds = max(self._save_every, MIN_PLAY_TO_SAVE_RATIO * result.setup_seconds)
        return self._task(self._unfinished[index], [segment for _, segment in left], seconds) if left else None

    def _save(self, plan: RunPlan, columns: RoundColumns, segment: Segment | None, made_by: str) -> None:
        stored, clients = stored_plan(self._store, plan), columns.clients
        if segment is None and self._store.find(plan.key) is None:
            self._store.write_run(plan.key, stored, columns, clients=clients, code_version=made_by)
            return
        run = self._store.begin(plan.key, stored, clients=clients, code_version=made_by)
        state = None if segment is None else segment.state()
        self._store.append(run, columns, snapshot=state, finish=segment is None)
        self._has_snapshots = True


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


def _gpu_tasks(executor: Executor, device: str) -> int | None:
    """Returns the number of tasks for the runs that share a learner; None on CPUs, where each run is a task."""
    if device == "cpu":
        return None
    if executor.gpus is not None:
        return max(1, executor.gpus)
    torch_device(device)
    import torch

    return torch.cuda.device_count() if device == "cuda" else 1
