"""Plays many training runs at once: runs that share a learner advance round by round, each round in one computation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from turnout.kernel.rounds import RoundRecord
from turnout.lab.learner_cache import LearnerCache
from turnout.lab.world import TrainingWorld, play_batched
from turnout.policies.base import prefixed, subset
from turnout.simulator.plans import RunPlan
from turnout.simulator.sweep import columns_to_store, missing_plans, run_id, stored_plan, sweep
from turnout.store import RoundColumns, RunStore

Watcher = Callable[[int], None]
RoundWatcher = Callable[[RunPlan, RoundRecord], None]
MIN_PLAY_TO_SAVE_RATIO = 20.0  # playing takes at least this many times longer than saving


def train_plans(
    plans: Iterable[RunPlan],
    store: RunStore,
    *,
    device: str = "cpu",
    workers: int | None = None,
    save_every: float = 30.0,
    keep_models: bool = False,
    watch: Watcher | None = None,
    on_round: RoundWatcher | None = None,
) -> list[int]:
    """Plays every plan of the world "training" that is missing from the store; returns the run ids in plan order.

    Convolutional networks train in batches on `device`; small models, which NumPy trains, are distributed over
    processes. Interrupted runs resume from their last snapshot.

    Args:
        plans: The plans of the runs.
        store: The store that holds finished runs and receives new ones.
        device: The torch device on which convolutional networks train.
        workers: The number of CPU processes, by default one per core.
        save_every: The interval in seconds between snapshots of all runs with their models. It is extended if saving
            would take more than a twentieth of the time.
        keep_models: Whether the store keeps the final state of each run in rounds, with its model.
        watch: Called with the number of rounds that were just played.
        on_round: Called with the plan and the record of each round, but not of turns without rounds; small models then
            run in this process.
    """
    requested = list(plans)
    without_rounds = [plan for plan in requested if plan.concurrency is not None]
    of_rounds = [plan for plan in requested if plan.concurrency is None]
    small = [plan for plan in of_rounds if plan.world_settings.get("model", "mlp") == "mlp"]
    with LearnerCache(device, workers=workers) as cache:
        _train_without_rounds(without_rounds, store, device, workers, watch)
        if small and not keep_models and on_round is None and device == "cpu":
            sweep(small, store, workers=workers, watch=None if watch is None else lambda plan: watch(plan.rounds))
        runs = [_Run(plan, store, cache.made_by) for plan in missing_plans(of_rounds, store)]
        learners = {id(run.world.federation.learner): run.world.federation.learner for run in runs}
        for learner in learners.values():
            batch = [run for run in runs if run.world.federation.learner is learner]
            has_snapshots = _play_runs(batch, save_every, keep_models, watch, on_round)
            learner.close()
            if has_snapshots and not keep_models:
                store.compact()
    return [run_id(store, plan) for plan in requested]


def _train_without_rounds(
    plans: Sequence[RunPlan], store: RunStore, device: str, workers: int | None, watch: Watcher | None
) -> None:
    """Plays runs in which one client at a time is given a turn: small models in several processes, others one by one.

    Args:
        plans: The plans of the runs.
        store: The store that holds finished runs and receives new ones.
        device: The torch device on which convolutional networks train.
        workers: The number of CPU processes, by default one per core.
        watch: Called with the number of turns that were just played.
    """
    are_small = all(plan.world_settings.get("model", "mlp") == "mlp" for plan in plans)
    processes = workers if are_small and device == "cpu" else 1
    sweep(plans, store, workers=processes, watch=None if watch is None else lambda plan: watch(plan.rounds))


class _Run:
    """A run in progress: its policy and world, and the rounds that are not stored yet."""

    def __init__(self, plan: RunPlan, store: RunStore, made_by: str) -> None:
        self.plan, self._store = plan, store
        self.policy, world = plan.build()
        assert isinstance(world, TrainingWorld)
        self.world = world
        self.id = store.begin(plan.key, stored_plan(store, plan), clients=world.clients, code_version=made_by)
        self.rounds_done = 0
        snapshot = store.snapshot(self.id)
        if snapshot is not None:
            self.rounds_done, state = snapshot
            self.policy.restore(subset(state, "policy"))
            self.world.restore(subset(state, "world"))
        self._unsaved: list[RoundRecord] = []

    @property
    def finished(self) -> bool:
        """Whether all rounds were played."""
        return self.rounds_done >= self.plan.rounds

    def append(self, record: RoundRecord) -> None:
        """Adds a round that was played."""
        self.policy.tell(record.report)
        self._unsaved.append(record)
        self.rounds_done += 1

    def save(self, *, with_state: bool) -> None:
        """Stores all unsaved rounds, and with `with_state` a snapshot, in one transaction."""
        columns = columns_to_store(self.plan, RoundColumns.from_records(self._unsaved, clients=self.world.clients))
        state = (
            {**prefixed("policy", self.policy.state()), **prefixed("world", self.world.state())} if with_state else None
        )
        self._store.append(self.id, columns, snapshot=state, finish=self.finished)
        self._unsaved.clear()


def _play_runs(
    runs: Sequence[_Run],
    save_every: float,
    keep_models: bool,
    watch: Watcher | None,
    on_round: RoundWatcher | None,
) -> bool:
    """Plays all runs to their end; returns whether snapshots were saved, now or by an interrupted call.

    Args:
        runs: Runs that share a learner.
        save_every: The interval between snapshots, in seconds.
        keep_models: Whether a finished run keeps its state.
        watch: Called with the number of rounds that were just played.
        on_round: Called with the plan and the record of each round.
    """
    next_save, has_snapshots = time.monotonic() + save_every, any(run.rounds_done for run in runs)
    for run in runs:
        if run.finished:  # interrupted after its last round, before it was marked as finished
            run.save(with_state=keep_models)
    active = [run for run in runs if not run.finished]
    while active:
        for run, record in zip(active, _play_round(active), strict=True):
            if on_round is not None:
                on_round(run.plan, record)
        for run in active:
            if run.finished:
                run.save(with_state=keep_models)
        if watch is not None:
            watch(len(active))
        active = [run for run in active if not run.finished]
        if active and time.monotonic() >= next_save:
            start = time.monotonic()
            for run in active:
                run.save(with_state=True)
            has_snapshots = True
            now = time.monotonic()
            next_save = now + max(save_every, MIN_PLAY_TO_SAVE_RATIO * (now - start))
    return has_snapshots


def _play_round(runs: Sequence[_Run]) -> list[RoundRecord]:
    """Plays the next round of each run."""
    offers = [run.world.offer(run.rounds_done + 1) for run in runs]
    selections = [
        run.policy.ask(offer if run.policy.requires_expected_times else offer.without_truth())
        for run, offer in zip(runs, offers, strict=True)
    ]
    reports = play_batched([run.world for run in runs], offers, selections)
    records = [RoundRecord(selection, report) for selection, report in zip(selections, reports, strict=True)]
    for run, record in zip(runs, records, strict=True):
        run.append(record)
    return records
