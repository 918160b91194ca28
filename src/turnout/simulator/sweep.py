"""Sweeps: play many runs in parallel on one machine or a cluster, and skip the runs that the store holds."""

from __future__ import annotations

import importlib
import importlib.util
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from turnout.errors import ClusterError, SettingError
from turnout.kernel.arrays import as_count
from turnout.policies import registry as policies
from turnout.simulator import worlds
from turnout.simulator.executors import Executor, JoblibExecutor
from turnout.simulator.plans import RunPlan
from turnout.simulator.tracked import track_records
from turnout.store import RoundColumns, RunStore
from turnout.tracking import Tracker
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
    for index, data in executor.run(play_task, [_task(plan) for plan in ordered]):
        yield ordered[index], RoundColumns.from_bytes(data)


def columns_to_store(plan: RunPlan, columns: RoundColumns) -> RoundColumns:
    """Returns the columns that the plan's `keep` setting stores."""
    if plan.keep == "all":
        return columns
    no_contexts = np.empty((len(columns.chosen), 0))
    return replace(columns, contexts=no_contexts, available=None, client_reasons={}, cohort_reasons={})


class _Imported(NamedTuple):
    """A policy or world that a worker imports, from the folders in which this process finds modules.

    A worker that runs already does not know folders that were added later.
    """

    module: str
    name: str
    folders: tuple[str, ...]

    def value(self) -> Any:
        """Imports it."""
        sys.path.extend(folder for folder in self.folders if folder not in sys.path)
        importlib.invalidate_caches()
        return operator.attrgetter(self.name)(importlib.import_module(self.module))


#: What a worker gets: the version of turnout, the plan, and the policies and worlds that only this process can find.
Task = tuple[str, dict[str, Any], list[tuple[str, str, Any]]]


def _task(plan: RunPlan) -> Task:
    found = [(registry.kind.noun, name, registry.carried(name)) for registry, name in plan.plugins()]
    carried = [(noun, name, _carried(value)) for noun, name, value in found if value is not None]
    return __version__, plan.as_dict(), carried


def _carried(value: Any) -> Any:
    """Returns where a worker can import a value; the value itself if it is of the main program or of a function."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "<")
    if module in (None, "__main__") or "<" in name:
        return value
    return _Imported(module, name, tuple(folder for folder in sys.path if folder))


def play_task(task: Task) -> bytes:
    """Plays a run in a worker, which must have the version of turnout that the task names.

    The columns are returned as bytes, because some backends cannot serialise the columns themselves.
    """
    version, plan, carried = task
    check_worker_version(version)
    registries = {registry.kind.noun: registry for registry in (policies.REGISTRY, worlds.REGISTRY)}
    for noun, name, value in carried:
        registries[noun].adopt(name, value.value() if isinstance(value, _Imported) else value)
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
