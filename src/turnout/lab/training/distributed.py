"""Plays the runs of a study, with and without training, on this machine or on the workers of an executor."""

from __future__ import annotations

from collections.abc import Iterable

from turnout.errors import SettingError
from turnout.lab.runs.executors import Executor
from turnout.lab.runs.plans import RunPlan
from turnout.lab.runs.store import RunStore
from turnout.lab.runs.sweep import StoredWatcher, WorkerTask, play_task, run_id, sweep
from turnout.lab.training.batched import Watcher, Watchers, train_plans
from turnout.lab.training.learner_cache import LearnerCache


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
        backend: An executor that distributes all runs, each of which trains on one CPU core; by default processes of
            this machine.
        device: The torch device of this machine that trains convolutional networks; without a backend.
        watch: Called with the number of rounds that were just played.
        track: Called with the plan and the rounds of runs as they are stored.
    """
    requested, stored = list(plans), Watchers(watch, track=track).stored
    if backend is not None:
        if device != "cpu":
            raise SettingError(
                f"the workers of a backend train on CPUs, not on {device}: omit the backend to train on {device}",
                argument="device",
            )
        return sweep(requested, store, backend=backend, watch=stored, play=train_task)
    train_plans(filter(trains, requested), store, device=device, workers=workers, watch=watch, track=track)
    sweep([plan for plan in requested if not trains(plan)], store, workers=workers, watch=stored)
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


def train_task(task: WorkerTask) -> bytes:
    """Plays a run in a worker, which trains in this process only: the workers share the cores."""
    with LearnerCache(workers=1):
        return play_task(task)
