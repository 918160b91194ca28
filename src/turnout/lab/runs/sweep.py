"""Sweeps: play many runs in parallel on one machine or a cluster, and skip the runs that the store holds."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from turnout.errors import ClusterError, SettingError
from turnout.kernel.arrays import as_count
from turnout.lab.columns import RoundColumns
from turnout.lab.runs.carried import Carried, adopt_plugins, carried_plugins
from turnout.lab.runs.executors import Executor, JoblibExecutor
from turnout.lab.runs.plans import RunPlan
from turnout.lab.runs.store import RunStore
from turnout.lab.runs.tracked import MetricsWatcher, WatchedRun, track_records
from turnout.tracking import Tracker
from turnout.tracking.forwarding import MetricsReceiver, MetricsSender
from turnout.version import __version__

Watcher = Callable[[RunPlan], None]


def sweep(
    plans: Iterable[RunPlan],
    store: RunStore,
    *,
    workers: int | None = None,
    backend: str | Executor | None = None,
    watch: Watcher | None = None,
    track: MetricsWatcher | None = None,
) -> list[int]:
    """Plays every plan that the store does not hold yet and returns the run ids in the order of `plans`.

    Each run is written in one transaction when it is finished. A run that is killed before that, with its worker or
    with this process, is played again and gives the same result.

    Args:
        plans: The plans to play; plans with equal keys are played once.
        store: The store that receives the runs.
        workers: The number of processes, by default one per core; 1 plays in this process, without joblib.
        backend: An executor, such as `RayCluster` of `turnout.lab.clusters`, which has its own number of workers; or
            the name of a joblib backend that was registered before.
        watch: A callback that receives each plan when it is finished.
        track: A callback that receives the metrics of each round while it is played, of runs on this machine.
    """
    requested = list(plans)
    missing = {plan.key: plan for plan in requested if not _is_finished(store, plan)}
    for plan, columns in _play_all(list(missing.values()), workers, backend, track):
        store.write_run(plan.key, stored_plan(store, plan), columns, clients=columns.clients, code_version=__version__)
        if watch is not None:
            watch(plan)
    return [run_id(store, plan) for plan in requested]


def missing_plans(plans: Iterable[RunPlan], store: RunStore) -> list[RunPlan]:
    """Returns the plans that a sweep would play, without duplicates."""
    return list({plan.key: plan for plan in plans if not _is_finished(store, plan)}.values())


def play_plan(plan: RunPlan, tracker: Tracker | None = None) -> RoundColumns:
    """Plays a whole run in memory; a tracker receives the metrics of each round."""
    run = plan.start()
    records = run.play(plan.rounds)
    if tracker is not None:
        records = track_records(records, run, tracker)
    return columns_to_store(plan, RoundColumns.from_records(records, clients=run.world.clients))


def play_into(
    store: RunStore,
    plan: RunPlan,
    *,
    every: int = 500,
    watch: Callable[[int], None] | None = None,
    tracker: Tracker | None = None,
) -> int:
    """Plays one run into the store, in transactions of `every` rounds, and resumes a run that was interrupted.

    The states of the policy and the world are saved with the rounds, so a resumed run ends like an uninterrupted one.

    Args:
        store: The store that receives the run.
        plan: The plan to play.
        every: The number of rounds per transaction.
        watch: A callback that receives the number of rounds played so far, after each transaction.
        tracker: Receives the metrics of each round that is played. Rounds that were not stored when a run was
            interrupted are played, and tracked, again.
    """
    every = as_count("every", every, SettingError)
    playing = plan.start()
    clients = playing.world.clients
    info = store.find(plan.key)
    if info is not None and info.finished:
        return info.id
    run = store.begin(plan.key, stored_plan(store, plan), clients=clients, code_version=__version__)
    saved = store.snapshot(run)
    done, elapsed = 0, 0.0
    if saved is not None:
        done, state = saved
        playing.restore(state, done)
        elapsed = 0.0 if tracker is None else float(store.columns(run).durations.sum())
    while done < plan.rounds:
        stop = min(done + every, plan.rounds)
        played = playing.play(plan.rounds, stop=stop)
        records = list(played if tracker is None else track_records(played, playing, tracker, elapsed=elapsed))
        elapsed += sum(record.report.duration for record in records)
        columns = columns_to_store(plan, RoundColumns.from_records(records, clients=clients))
        store.append(run, columns, snapshot=playing.state())
        done = stop
        if watch is not None:
            watch(done)
    store.finish(run)
    return run


def _play_all(
    plans: Sequence[RunPlan], workers: int | None, backend: str | Executor | None, track: MetricsWatcher | None
) -> Iterator[tuple[RunPlan, RoundColumns]]:
    if workers is not None:
        as_count("workers", workers, SettingError)
    if not isinstance(backend, str | None):
        executor = backend
    else:
        alone = backend is None and len(plans) == 1
        if alone or workers == 1 or importlib.util.find_spec("joblib") is None:
            if backend is not None:
                raise SettingError(
                    f"the backend {backend!r} needs joblib and more than one worker: pip install 'turnout[cluster]'"
                )
            for plan in plans:
                yield plan, play_plan(plan, None if track is None else WatchedRun(track, plan))
            return
        executor = JoblibExecutor(workers, backend=backend)
    # Long runs start first, so that no core is still busy with one while the others idle.
    ordered = sorted(plans, key=lambda plan: -plan.rounds)
    with ExitStack() as stack:
        senders: list[MetricsSender | None] = [None] * len(ordered)
        if track is not None:
            if not isinstance(executor, JoblibExecutor):
                raise SettingError("runs on a cluster cannot be tracked while they are played: track them afterwards")
            follow = track  # for the type checker
            receiver = stack.enter_context(
                MetricsReceiver(lambda run, metrics, step: follow(ordered[run], metrics, step))
            )
            senders = [receiver.sender(run) for run in range(len(ordered))]
        tasks = [_task(plan, sender) for plan, sender in zip(ordered, senders, strict=True)]
        for index, data in executor.run(play_task, tasks):
            yield ordered[index], RoundColumns.from_bytes(data)


def columns_to_store(plan: RunPlan, columns: RoundColumns) -> RoundColumns:
    """Returns the columns that the plan's `keep` setting stores."""
    if plan.keep == "all":
        return columns
    no_contexts = np.empty((len(columns.chosen), 0))
    return replace(columns, contexts=no_contexts, available=None, client_reasons={}, cohort_reasons={})


#: What a worker gets: the version of turnout, the plan, the plug-ins that only this process can find, and who receives
#: the metrics of each round.
Task = tuple[str, dict[str, Any], list[Carried], MetricsSender | None]


def _task(plan: RunPlan, sender: MetricsSender | None) -> Task:
    return __version__, plan.as_dict(), carried_plugins(plan), sender


def play_task(task: Task) -> bytes:
    """Plays a run in a worker, which must have the version of turnout that the task names.

    The columns are returned as bytes, because some backends cannot serialise the columns themselves.
    """
    version, plan, carried, sender = task
    check_worker_version(version)
    adopt_plugins(carried)
    with nullcontext() if sender is None else sender.open() as tracker:
        return play_plan(RunPlan.from_dict(plan), tracker).to_bytes()


def check_worker_version(version: str) -> None:
    """Raises ClusterError unless this process has this version of turnout."""
    if version != __version__:
        raise ClusterError(
            f"a worker has turnout {__version__}, but the sweep was started by {version}: install {version} on every "
            "machine"
        )


def stored_plan(store: RunStore, plan: RunPlan) -> dict[str, Any]:
    """Returns the plan as the store holds it, with its first label, or else the plan itself."""
    info = store.find(plan.key)
    return plan.with_packages().as_dict() if info is None else info.plan


def _is_finished(store: RunStore, plan: RunPlan) -> bool:
    info = store.find(plan.key)
    return info is not None and info.finished


def run_id(store: RunStore, plan: RunPlan) -> int:
    """Returns the id of a run that the store holds."""
    info = store.find(plan.key)
    if info is None:
        raise SettingError(f"the store holds no run of {plan.name} (key {plan.key}): play it first")
    return info.id
