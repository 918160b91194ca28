"""Many training runs at once: those that train alike take every round side by side, in one computation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from turnout.kernel.rounds import RoundRecord
from turnout.lab.learner_cache import LearnerCache
from turnout.lab.world import TrainingWorld, play_batched
from turnout.policies.base import prefixed, subset
from turnout.simulator.plans import RunPlan
from turnout.simulator.sweep import kept_columns, missing_plans, run_of, sweep, told_plan
from turnout.store import RoundColumns, RunStore

Watcher = Callable[[int], None]
RoundWatcher = Callable[[RunPlan, RoundRecord], None]
SAVING_COSTS = 20.0  # at least so many times longer is played than saved


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
    """Play every plan of the world "training" that the store does not hold yet; the ids of all, in order.

    Convolutional networks train side by side on `device`; small models, which NumPy trains, are swept over processes.
    Every so many seconds (less often where that would take more than a twentieth of the time) all runs are saved with
    their models; a sweep that was stopped goes on from there. With `keep_models` the last state of each run
    stays in the store. `watch` is told how many rounds were just played, and `on_round` each of those that are
    played side by side.
    """
    asked = list(plans)
    small = [plan for plan in asked if plan.world_settings.get("model", "mlp") == "mlp"]
    with LearnerCache(device, workers=workers) as shop:
        if small and not keep_models and on_round is None and device == "cpu":
            sweep(small, store, workers=workers, watch=None if watch is None else lambda plan: watch(plan.rounds))
        runs = [_Run(plan, store, shop.made_by) for plan in missing_plans(asked, store)]
        learners = {id(run.world.federation.learner): run.world.federation.learner for run in runs}
        for learner in learners.values():
            alike = [run for run in runs if run.world.federation.learner is learner]
            saved = _train(alike, save_every, keep_models, watch, on_round)
            learner.close()
            if saved and not keep_models:
                store.compact()
    return [run_of(store, plan) for plan in asked]


class _Run:
    """A run on its way: as far as the store has it, and the rounds since."""

    def __init__(self, plan: RunPlan, store: RunStore, made_by: str) -> None:
        self.plan, self._store = plan, store
        self.policy, world = plan.build()
        assert isinstance(world, TrainingWorld)
        self.world = world
        self.id = store.begin(plan.key, told_plan(store, plan), clients=world.clients, code_version=made_by)
        self.done = 0
        saved = store.snapshot(self.id)
        if saved is not None:
            self.done, state = saved
            self.policy.restore(subset(state, "policy"))
            self.world.restore(subset(state, "world"))
        self._fresh: list[RoundRecord] = []

    @property
    def over(self) -> bool:
        """Whether all its rounds are played."""
        return self.done >= self.plan.rounds

    def took(self, record: RoundRecord) -> None:
        """One more round."""
        self.policy.tell(record.report)
        self._fresh.append(record)
        self.done += 1

    def save(self, *, with_state: bool) -> None:
        """Everything up to now, in one transaction."""
        columns = kept_columns(self.plan, RoundColumns.from_records(self._fresh, clients=self.world.clients))
        state = (
            {**prefixed("policy", self.policy.state()), **prefixed("world", self.world.state())} if with_state else None
        )
        self._store.append(self.id, columns, snapshot=state, finish=self.over)
        self._fresh.clear()


def _train(
    runs: Sequence[_Run],
    save_every: float,
    keep_models: bool,
    watch: Watcher | None,
    on_round: RoundWatcher | None,
) -> bool:
    """Whether models were saved on the way, this time or before."""
    due, saved = time.monotonic() + save_every, any(run.done for run in runs)
    for run in runs:
        if run.over:  # it was stopped after its last round, before it was finished
            run.save(with_state=keep_models)
    going = [run for run in runs if not run.over]
    while going:
        for run, record in zip(going, _one_round(going), strict=True):
            if on_round is not None:
                on_round(run.plan, record)
        for run in going:
            if run.over:
                run.save(with_state=keep_models)
        if watch is not None:
            watch(len(going))
        going = [run for run in going if not run.over]
        if going and time.monotonic() >= due:
            begun = time.monotonic()
            for run in going:
                run.save(with_state=True)
            saved = True
            now = time.monotonic()
            due = now + max(save_every, SAVING_COSTS * (now - begun))
    return saved


def _one_round(runs: Sequence[_Run]) -> list[RoundRecord]:
    """Each run's own next round."""
    offers = [run.world.offer(run.done + 1) for run in runs]
    selections = [
        run.policy.ask(offer if run.policy.requires_expected_times else offer.without_truth())
        for run, offer in zip(runs, offers, strict=True)
    ]
    reports = play_batched([run.world for run in runs], offers, selections)
    records = [RoundRecord(selection, report) for selection, report in zip(selections, reports, strict=True)]
    for run, record in zip(runs, records, strict=True):
        run.took(record)
    return records
