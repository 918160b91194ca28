"""Sweeps: play many runs in parallel on one machine or a cluster, and skip the runs that the store holds."""

from __future__ import annotations

import importlib.util
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from turnout.errors import ClusterError, SettingError
from turnout.kernel.arrays import as_count
from turnout.lab import learner_registry as learners
from turnout.lab.columns import RoundColumns
from turnout.lab.runs.executors import Executor, JoblibExecutor
from turnout.lab.runs.plans import RunPlan
from turnout.lab.runs.store import RunStore
from turnout.lab.worlds import registry as worlds
from turnout.plugins import package_of_module
from turnout.policies import registry as policies
from turnout.version import __version__

#: Receives the plan of a run, and the rounds of it that were just stored.
StoredWatcher = Callable[[RunPlan, RoundColumns], None]
REGISTRIES = {registry.kind.noun: registry for registry in (policies.REGISTRY, worlds.REGISTRY, learners.REGISTRY)}


def sweep(
    plans: Iterable[RunPlan],
    store: RunStore,
    *,
    workers: int | None = None,
    backend: str | Executor | None = None,
    watch: StoredWatcher | None = None,
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
        watch: A callback that receives each plan and its rounds when they are stored.
    """
    requested = list(plans)
    missing = {plan.key: plan for plan in requested if not _is_finished(store, plan)}
    for plan, columns in _play_all(list(missing.values()), workers, backend):
        store.write_run(plan.key, stored_plan(store, plan), columns, clients=columns.clients, code_version=__version__)
        if watch is not None:
            watch(plan, columns)
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
    track: StoredWatcher | None = None,
) -> int:
    """Plays one run into the store, in transactions of `every` rounds, and resumes a run that was interrupted.

    The states of the policy and the world are saved with the rounds, so a resumed run ends like an uninterrupted one.

    Args:
        store: The store that receives the run.
        plan: The plan to play.
        every: The number of rounds per transaction.
        watch: A callback that receives the number of rounds played so far, after each transaction.
        track: A callback that receives the plan and the rounds of each transaction.
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
        records = playing.play(plan.rounds, stop=stop)
        columns = columns_to_store(plan, RoundColumns.from_records(records, clients=clients))
        store.append(run, columns, snapshot=playing.state())
        done = stop
        if track is not None:
            track(plan, columns)
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
            for plan in plans:
                yield plan, play_plan(plan)
            return
        executor = JoblibExecutor(workers, backend=backend)
    # Long runs start first, so that no core is still busy with one while the others idle.
    ordered = sorted(plans, key=lambda plan: -plan.rounds)
    for index, data in executor.run(play_task, [WorkerTask.of([plan]) for plan in ordered]):
        yield ordered[index], RoundColumns.from_bytes(data)


def columns_to_store(plan: RunPlan, columns: RoundColumns) -> RoundColumns:
    """Returns the columns that the plan's `keep` setting stores."""
    if plan.keep == "all":
        return columns
    no_contexts = np.empty((len(columns.chosen), 0))
    return replace(columns, contexts=no_contexts, available=None, client_reasons={}, cohort_reasons={})


class WorkerTask(NamedTuple):
    """What a worker gets.

    Attributes:
        version: The version of turnout.
        plans: The plans of its runs.
        plugins: The policies, worlds and learners that only the process of the sweep knows: the noun of their registry,
            their name, and the pickled class or function.
        device: The torch device of runs that train.
    """

    version: str
    plans: list[dict[str, Any]]
    plugins: list[tuple[str, str, bytes]]
    device: str = "cpu"

    @classmethod
    def of(cls, plans: Sequence[RunPlan], device: str = "cpu") -> WorkerTask:
        """Returns the task that plays these plans."""
        named = {(registry.kind.noun, name): registry for plan in plans for registry, name in plan.plugins()}
        known = {key: registry.registered_here(key[1]) for key, registry in named.items()}
        plugins = [(*key, _pickled(value)) for key, value in known.items() if value is not None]
        return cls(__version__, [plan.as_dict() for plan in plans], plugins, device)

    def open(self) -> list[RunPlan]:
        """Returns the plans in a worker, after its version was checked and the plug-ins were made known there.

        Raises:
            ClusterError: If the worker has another version of turnout.
        """
        if self.version != __version__:
            raise ClusterError(
                f"a worker has turnout {__version__}, but the sweep was started by {self.version}: install "
                f"{self.version} on every machine"
            )
        for noun, name, data in self.plugins:
            REGISTRIES[noun].register_received(name, pickle.loads(data))
        return [RunPlan.from_dict(plan) for plan in self.plans]


def _pickled(value: Any) -> bytes:
    """Pickles a class or function with its code, unless its module is installed: a worker may not find the module."""
    import cloudpickle

    module = sys.modules.get(str(getattr(value, "__module__", "")))
    if module is None or not package_of_module(module.__name__).startswith("module "):
        return bytes(cloudpickle.dumps(value))
    cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(value))
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def play_task(task: WorkerTask) -> bytes:
    """Plays a run in a worker.

    The columns are returned as bytes, because some backends cannot serialise the columns themselves.
    """
    (plan,) = task.open()
    return play_plan(plan).to_bytes()


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
