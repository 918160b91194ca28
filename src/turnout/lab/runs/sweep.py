"""Sweeps: play many runs in parallel, and skip the runs that the store holds."""

from __future__ import annotations

import importlib.util
import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from turnout.errors import ClusterError, SettingError
from turnout.kernel.arrays import as_count
from turnout.kernel.backend import available_cores, sharing_cores
from turnout.kernel.rounds import RoundRecord
from turnout.lab.columns import RoundColumns
from turnout.lab.runs.plans import RunPlan
from turnout.lab.runs.play import Run
from turnout.lab.runs.store import RunStore
from turnout.lab.worlds import registry as worlds
from turnout.policies import registry as policies
from turnout.version import __version__

Task = TypeVar("Task")
Result = TypeVar("Result")
#: How often a task is started again after its worker died. A task that ends every worker may need too much memory.
MAX_REPEATS = 4


class Executor(Protocol):
    """Runs tasks in other processes.

    Functions must be importable, and tasks and results picklable.
    """

    def run(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        """Yields the index and the result of each task, in the order in which they end.

        A task whose worker dies is repeated. An error of a task is raised here, and ends the others.

        Args:
            function: The function to call.
            tasks: The arguments, one per call; they start in this order.
        """


class JoblibExecutor:
    """Runs tasks with joblib: in processes of this machine, or where `joblib.parallel_config` says.

    Args:
        workers: The number of processes, by default one per core. A cluster has its own number of workers.
    """

    def __init__(self, workers: int | None = None) -> None:
        if importlib.util.find_spec("joblib") is None:
            raise SettingError("parallel runs need the package joblib: pip install 'turnout[plots]'")
        self.workers = available_cores() if workers is None else as_count("workers", workers, SettingError)

    def run(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        """Yields the index and the result of each task, in the order in which they end."""
        from joblib.externals.loky.process_executor import BrokenProcessPool

        left = dict(enumerate(tasks))
        losses = 0
        while left:
            try:
                for index, result in self._run_once(function, left):
                    del left[index]
                    losses = 0
                    yield index, result
            except BrokenProcessPool as error:  # a worker died, or was started without the folder of a plug-in
                losses += 1
                if losses > MAX_REPEATS:
                    raise ClusterError(
                        f"worker processes died {losses} times in a row, and no run was finished in between: they may "
                        "need more memory than there is; use fewer workers"
                    ) from error

    def _run_once(self, function: Callable[[Task], Result], tasks: dict[int, Task]) -> Iterator[tuple[int, Result]]:
        from joblib import Parallel, delayed

        calls = [delayed(_call_indexed)(function, index, task) for index, task in tasks.items()]
        with ignored_interrupts():
            results = Parallel(self.workers, return_as="generator_unordered")(calls)  # starts the workers
        try:
            # `yield from` would close the pool before the warnings are silenced.
            for index, result in results:  # noqa: UP028
                yield index, result
        finally:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # joblib warns about runs that were unfinished at the stop
                results.close()


def _call_indexed(function: Callable[[Task], Result], index: int, task: Task) -> tuple[int, Result]:
    return index, function(task)


@contextmanager
def ignored_interrupts() -> Iterator[None]:
    """Ignores SIGINT for a moment, and for good in the processes that are started inside the `with` block.

    A terminal sends Ctrl-C to all processes. This process handles it and ends its workers; a worker that is still
    starting would print a traceback. Only an ignored signal stays ignored in a new process.
    """
    before = signal.getsignal(signal.SIGINT)
    # Python changes signals in the main thread only, and cannot restore a handler that it did not install.
    if before is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


#: Receives the plan of a run, and the rounds of it that were just stored.
StoredWatcher = Callable[[RunPlan, RoundColumns], None]
REGISTRIES = {registry.kind.noun: registry for registry in (policies.REGISTRY, worlds.REGISTRY, worlds.LEARNERS)}


def sweep(
    plans: Iterable[RunPlan],
    store: RunStore,
    *,
    workers: int | None = None,
    backend: Executor | None = None,
    watch: StoredWatcher | None = None,
) -> list[int]:
    """Plays every plan that the store does not hold yet and returns the run ids in the order of `plans`.

    Each run is written in one transaction when it is finished. A run that is killed before that, with its worker or
    with this process, is played again and gives the same result.

    Args:
        plans: The plans to play; plans with equal keys are played once.
        store: The store that receives the runs.
        workers: The number of processes, by default one per core; 1 plays in this process, without joblib.
        backend: An executor; by default joblib's, in processes of this machine or where `joblib.parallel_config` says.
        watch: A callback that receives each plan and its rounds when they are stored.
    """
    requested = list(plans)
    for plan, columns in _play_all(missing_plans(requested, store), workers, backend):
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
    if _is_finished(store, plan):
        return run_id(store, plan)
    run = StoredRun(plan, playing, store)
    while not run.finished:
        stop = min(run.done + every, plan.rounds)
        run.add(playing.play(plan.rounds, stop=stop))
        run.save(track, with_state=True)
        if watch is not None:
            watch(run.done)
    return run.id


class StoredRun:
    """A run that is played into a store, part by part; it resumes where it was interrupted.

    Args:
        plan: The plan of the run.
        playing: Its policy and world, which are restored where the run was interrupted.
        store: The store of the run.
        made_by: What makes the run (`code_version`).
    """

    def __init__(self, plan: RunPlan, playing: Run, store: RunStore, made_by: str = __version__) -> None:
        self.plan, self._playing, self._store = plan, playing, store
        self._clients = playing.world.clients
        self.id = store.begin(plan.key, stored_plan(store, plan), clients=self._clients, code_version=made_by)
        self.done = 0
        self.has_snapshot = False  # now or earlier, which leaves unused space in the store
        self._unsaved: list[RoundRecord] = []
        if (snapshot := store.snapshot(self.id)) is not None:
            self.has_snapshot, (self.done, state) = True, snapshot
            playing.restore(state, self.done)

    @property
    def finished(self) -> bool:
        """Whether all rounds, or turns, were played."""
        return self.done >= self.plan.rounds

    def add(self, records: Iterable[RoundRecord]) -> None:
        """Adds records that were played."""
        before = len(self._unsaved)
        self._unsaved.extend(records)
        self.done += len(self._unsaved) - before

    def save(self, track: StoredWatcher | None, *, with_state: bool) -> None:
        """Stores all unsaved records in one transaction, with a snapshot of the state; the last ones finish the run.

        Args:
            track: Receives the plan and the rounds that were stored.
            with_state: Whether the state of the run is stored, too.
        """
        columns = columns_to_store(self.plan, RoundColumns.from_records(self._unsaved, clients=self._clients))
        state = self._playing.state() if with_state else None
        self.has_snapshot |= with_state
        self._store.append(self.id, columns, snapshot=state, finish=self.finished)
        self._unsaved.clear()
        if track is not None:
            track(self.plan, columns)


def _play_all(
    plans: Sequence[RunPlan], workers: int | None, executor: Executor | None
) -> Iterator[tuple[RunPlan, RoundColumns]]:
    if workers is not None:
        as_count("workers", workers, SettingError)
    if executor is None:
        if len(plans) == 1 or workers == 1 or importlib.util.find_spec("joblib") is None:
            for plan in plans:
                yield plan, play_plan(plan)
            return
        executor = JoblibExecutor(workers)
    # Long runs start first, so that no core is still busy with one while the others idle.
    ordered = sorted(plans, key=lambda plan: -plan.rounds)
    for index, data in executor.run(play_task, [WorkerTask.of(plan) for plan in ordered]):
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
        plan: The plan of its run.
        plugins: The policies, worlds and learners that only the process of the sweep knows: the noun of their registry,
            their name, and the class or function.
    """

    version: str
    plan: dict[str, Any]
    plugins: list[tuple[str, str, Any]]

    @classmethod
    def of(cls, plan: RunPlan) -> WorkerTask:
        """Returns the task that plays this plan."""
        named = {(registry.kind.noun, name): registry for registry, name in plan.plugins()}
        known = {key: registry.registered_here(key[1]) for key, registry in named.items()}
        plugins = [(*key, value) for key, value in known.items() if value is not None]
        return cls(__version__, plan.as_dict(), plugins)

    def open(self) -> RunPlan:
        """Returns the plan in a worker, after its version was checked and the plug-ins were made known there.

        Raises:
            ClusterError: If the worker has another version of turnout.
        """
        if self.version != __version__:
            raise ClusterError(
                f"a worker has turnout {__version__}, but the sweep was started by {self.version}: install "
                f"{self.version} on every machine"
            )
        for noun, name, value in self.plugins:
            REGISTRIES[noun].register_received(name, value)
        return RunPlan.from_dict(self.plan)


def play_task(task: WorkerTask) -> bytes:
    """Plays a run in a worker, on one core: the workers share the cores.

    The columns are returned as bytes, because some backends cannot serialise the columns themselves.
    """
    with sharing_cores():
        return play_plan(task.open()).to_bytes()


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
