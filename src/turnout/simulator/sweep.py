"""Many runs, on all cores or on a cluster; what the store holds is not played again."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from turnout.errors import SettingError
from turnout.kernel.arrays import as_count
from turnout.policies.base import prefixed, subset
from turnout.simulator.plans import RunPlan
from turnout.simulator.play import play
from turnout.store import RoundColumns, RunStore
from turnout.version import __version__

Watcher = Callable[[RunPlan], None]


def sweep(
    plans: Iterable[RunPlan],
    store: RunStore,
    *,
    workers: int | None = None,
    backend: str | None = None,
    watch: Watcher | None = None,
) -> list[int]:
    """Play every plan that the store does not hold yet; the ids of all of them, in the order of `plans`.

    Each run is written when it is over, in one transaction: what is killed in between is played again, and ends
    alike. `workers`: processes, by default one a core (1 plays here, without joblib). `backend`: a joblib backend such
    as "ray" or "dask" that was registered before; see docs/simulating.md. `watch` is called with each plan once done.
    """
    asked = list(plans)
    missing = {plan.key: plan for plan in asked if not _is_finished(store, plan)}
    for plan, columns in _played(list(missing.values()), workers, backend):
        store.write_run(plan.key, told_plan(store, plan), columns, clients=columns.clients, code_version=__version__)
        if watch is not None:
            watch(plan)
    return [run_of(store, plan) for plan in asked]


def missing_plans(plans: Iterable[RunPlan], store: RunStore) -> list[RunPlan]:
    """Those a sweep would play."""
    return list({plan.key: plan for plan in plans if not _is_finished(store, plan)}.values())


def play_plan(plan: RunPlan) -> RoundColumns:
    """A whole run, in memory."""
    policy, world = plan.build()
    return kept_columns(plan, RoundColumns.from_records(play(policy, world, plan.rounds), clients=world.clients))


def play_into(store: RunStore, plan: RunPlan, *, every: int = 500, watch: Callable[[int], None] | None = None) -> int:
    """Play one run into the store, `every` so many rounds a transaction; a run that stopped goes on where it stopped.

    The policy and the world are saved with the rounds, so a resumed run ends as an uninterrupted one.
    """
    every = as_count("every", every, SettingError)
    policy, world = plan.build()
    found = store.find(plan.key)
    if found is not None and found.finished:
        return found.id
    run = store.begin(plan.key, told_plan(store, plan), clients=world.clients, code_version=__version__)
    saved = store.snapshot(run)
    done = 0
    if saved is not None:
        done, state = saved
        policy.restore(subset(state, "policy"))
        world.restore(subset(state, "world"))
    while done < plan.rounds:
        last = min(done + every, plan.rounds)
        records = list(play(policy, world, last, first=done + 1))
        columns = kept_columns(plan, RoundColumns.from_records(records, clients=world.clients))
        state = {**prefixed("policy", policy.state()), **prefixed("world", world.state())}
        store.append(run, columns, snapshot=state)
        done = last
        if watch is not None:
            watch(done)
    store.finish(run)
    return run


def _played(
    plans: Sequence[RunPlan], workers: int | None, backend: str | None
) -> Iterator[tuple[RunPlan, RoundColumns]]:
    if workers is not None:
        as_count("workers", workers, SettingError)
    alone = backend is None and len(plans) == 1
    if alone or workers == 1 or importlib.util.find_spec("joblib") is None:
        if backend is not None:
            raise SettingError(
                f"the backend {backend!r} needs joblib and more than one worker: pip install 'turnout[cluster]'"
            )
        yield from ((plan, play_plan(plan)) for plan in plans)
        return
    if not plans:
        return
    # Long runs first, so that no core is left with one at the end.
    ordered = sorted(range(len(plans)), key=lambda place: -plans[place].rounds)
    for place, columns in _by_joblib(ordered, plans, workers or -1, {} if backend is None else {"backend": backend}):
        yield plans[place], columns


def _by_joblib(
    ordered: Sequence[int], plans: Sequence[RunPlan], workers: int, options: dict[str, Any]
) -> Iterator[tuple[int, RoundColumns]]:
    from joblib import Parallel, delayed, effective_n_jobs, parallel_config

    tasks = [delayed(_play_numbered)(place, plans[place].as_dict()) for place in ordered]
    try:
        team = Parallel(n_jobs=workers, return_as="generator_unordered", **options)
    except ValueError:
        # Some backends, such as Ray's, hand back whole lists only: short ones, so that what is over is soon written.
        with parallel_config(n_jobs=workers, **options):
            at_once = 4 * effective_n_jobs(workers)
        for start in range(0, len(tasks), at_once):
            for place, data in Parallel(n_jobs=workers, **options)(tasks[start : start + at_once]):
                yield place, RoundColumns.from_bytes(data)
        return
    over = team(tasks)
    try:
        # Not `yield from`: that would close the team before the warnings are silenced.
        for place, data in over:
            yield place, RoundColumns.from_bytes(data)
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that some runs were not over when we stopped, we know
            over.close()


def kept_columns(plan: RunPlan, columns: RoundColumns) -> RoundColumns:
    """What the plan wants to keep of them."""
    if plan.keep == "all":
        return columns
    nothing = np.empty((len(columns.chosen), 0))
    return replace(columns, contexts=nothing, available=None, client_reasons={}, cohort_reasons={})


def _play_numbered(place: int, plan: dict[str, Any]) -> tuple[int, bytes]:
    """As bytes, for not every backend can send columns."""
    return place, play_plan(RunPlan.from_dict(plan)).to_bytes()


def told_plan(store: RunStore, plan: RunPlan) -> dict[str, Any]:
    """The plan as the store knows it: under its first label, where it was begun before."""
    found = store.find(plan.key)
    return plan.as_dict() if found is None else found.plan


def _is_finished(store: RunStore, plan: RunPlan) -> bool:
    found = store.find(plan.key)
    return found is not None and found.finished


def run_of(store: RunStore, plan: RunPlan) -> int:
    """The id of a run that the store holds."""
    found = store.find(plan.key)
    if found is None:
        raise SettingError(f"the run of {plan.name} is missing from the store")
    return found.id
