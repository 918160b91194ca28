"""Sweeps: play many runs in parallel on one machine or a cluster, and skip the runs that the store holds."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from turnout.errors import ClusterError, SettingError
from turnout.kernel.arrays import as_count
from turnout.simulator.executors import Executor, JoblibExecutor
from turnout.simulator.plans import RunPlan
from turnout.store import RoundColumns, RunStore
from turnout.version import __version__

Watcher = Callable[[RunPlan], None]


def sweep(
    plans: Iterable[RunPlan],
    store: RunStore,
    *,
    workers: int | None = None,
    backend: str | Executor | None = None,
    watch: Watcher | None = None,
) -> list[int]:
    """Plays every plan that the store does not hold yet and returns the run ids in the order of `plans`.

    Each run is written in one transaction when it is finished. A run that is killed before that, with its worker or
    with this process, is played again and gives the same result.

    Args:
        plans: The plans to play; plans with equal keys are played once.
        store: The store that receives the runs.
        workers: The number of processes, by default one per core; 1 plays in this process, without joblib.
        backend: An executor, such as `turnout.clusters.RayCluster`, which has its own number of workers; or the name
            of a joblib backend that was registered before.
        watch: A callback that receives each plan when it is finished.
    """
    requested = list(plans)
    missing = {plan.key: plan for plan in requested if not _is_finished(store, plan)}
    for plan, columns in _play_all(list(missing.values()), workers, backend):
        store.write_run(plan.key, stored_plan(store, plan), columns, clients=columns.clients, code_version=__version__)
        if watch is not None:
            watch(plan)
    return [run_id(store, plan) for plan in requested]


def missing_plans(plans: Iterable[RunPlan], store: RunStore) -> list[RunPlan]:
    """Returns the plans that a sweep would play, without duplicates."""
    return list({plan.key: plan for plan in plans if not _is_finished(store, plan)}.values())


def play_plan(plan: RunPlan) -> RoundColumns:
    """Plays a whole run in memory."""
    run = plan.start()
    return columns_to_store(plan, RoundColumns.from_records(run.play(plan.rounds), clients=run.world.clients))


def play_into(store: RunStore, plan: RunPlan, *, every: int = 500, watch: Callable[[int], None] | None = None) -> int:
    """Plays one run into the store, in transactions of `every` rounds, and resumes a run that was interrupted.

    The states of the policy and the world are saved with the rounds, so a resumed run ends like an uninterrupted one.

    Args:
        store: The store that receives the run.
        plan: The plan to play.
        every: The number of rounds per transaction.
        watch: A callback that receives the number of rounds played so far, after each transaction.
    """
    every = as_count("every", every, SettingError)
    playing = plan.start()
    clients = playing.world.clients
    info = store.find(plan.key)
    if info is not None and info.finished:
        return info.id
    run = store.begin(plan.key, stored_plan(store, plan), clients=clients, code_version=__version__)
    saved = store.snapshot(run)
    done = 0
    if saved is not None:
        done, state = saved
        playing.restore(state, done)
    while done < plan.rounds:
        stop = min(done + every, plan.rounds)
        records = list(playing.play(plan.rounds, stop=stop))
        columns = columns_to_store(plan, RoundColumns.from_records(records, clients=clients))
        store.append(run, columns, snapshot=playing.state())
        done = stop
        if watch is not None:
            watch(done)
    store.finish(run)
    return run


def _play_all(
    plans: Sequence[RunPlan], workers: int | None, backend: str | Executor | None
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
            yield from ((plan, play_plan(plan)) for plan in plans)
            return
        executor = JoblibExecutor(workers, backend=backend)
    # Long runs start first, so that no core is still busy with one while the others idle.
    ordered = sorted(plans, key=lambda plan: -plan.rounds)
    for index, data in executor.run(play_task, [(__version__, plan.as_dict()) for plan in ordered]):
        yield ordered[index], RoundColumns.from_bytes(data)


def columns_to_store(plan: RunPlan, columns: RoundColumns) -> RoundColumns:
    """Returns the columns that the plan's `keep` setting stores."""
    if plan.keep == "all":
        return columns
    no_contexts = np.empty((len(columns.chosen), 0))
    return replace(columns, contexts=no_contexts, available=None, client_reasons={}, cohort_reasons={})


def play_task(task: tuple[str, dict[str, Any]]) -> bytes:
    """Plays a run in a worker, which must have the version of turnout that the task names.

    The columns are returned as bytes, because some backends cannot serialise the columns themselves.
    """
    version, plan = task
    check_worker_version(version)
    return play_plan(RunPlan.from_dict(plan)).to_bytes()


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
    return plan.as_dict() if info is None else info.plan


def _is_finished(store: RunStore, plan: RunPlan) -> bool:
    info = store.find(plan.key)
    return info is not None and info.finished


def run_id(store: RunStore, plan: RunPlan) -> int:
    """Returns the id of a run that the store holds."""
    info = store.find(plan.key)
    if info is None:
        raise SettingError(f"the store holds no run of {plan.name} (key {plan.key}): play it first")
    return info.id
