"""Plays many training runs at once: runs that share a learner advance together, each step in one computation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from turnout.kernel.rounds import RoundRecord
from turnout.lab.columns import RoundColumns
from turnout.lab.runs.plans import RunPlan
from turnout.lab.runs.play import visible_selection
from turnout.lab.runs.store import RunStore
from turnout.lab.runs.sweep import StoredRun, StoredWatcher, missing_plans, run_id, sweep
from turnout.lab.training.buffered import finish_batched
from turnout.lab.training.learner_cache import LearnerCache
from turnout.lab.training.learners.base import Learner
from turnout.lab.training.world import BegunRounds, FederatedWorld

Watcher = Callable[[int], None]
#: Finishes one step of some runs that was begun; returns the records that each can store now.
Step = Callable[[], list[list[RoundRecord]]]
LANES = 2  # of a learner that trains while this process goes on
MIN_PLAY_TO_SAVE_RATIO = 20.0  # playing takes at least this many times longer than saving


class Watchers(NamedTuple):
    """Who follows the runs: the callbacks of `train_plans`."""

    watch: Watcher | None = None
    track: StoredWatcher | None = None

    def stored(self, plan: RunPlan, columns: RoundColumns) -> None:
        """Says that a whole run was played elsewhere, and stored."""
        if self.watch is not None:
            self.watch(len(columns))
        if self.track is not None:
            self.track(plan, columns)


class RunInProgress(StoredRun):
    """A run that trains, with the learner of its world; it resumes where it was interrupted."""

    def __init__(self, plan: RunPlan, store: RunStore, made_by: str) -> None:
        self.playing: Any = plan.start()  # a RoundRun, or without rounds a SlotRun
        assert isinstance(self.playing.world, FederatedWorld)
        self.world: Any = self.playing.world
        self.learner: Learner = self.world.federation.learner
        super().__init__(plan, self.playing, store, made_by)


def train_plans(
    plans: Iterable[RunPlan],
    store: RunStore,
    *,
    device: str = "cpu",
    workers: int | None = None,
    save_every: float = 30.0,
    keep_models: bool = False,
    watch: Watcher | None = None,
    track: StoredWatcher | None = None,
) -> list[int]:
    """Plays every plan of the world "training" that is missing from the store; returns the run ids in plan order.

    Convolutional networks and models of your own train in batches on `device`; small models, which NumPy trains, are
    distributed over processes. Interrupted runs resume from their last snapshot.

    Args:
        plans: The plans of the runs.
        store: The store that holds finished runs and receives new ones.
        device: The torch device on which convolutional networks train.
        workers: The number of CPU processes, by default one per core.
        save_every: The interval in seconds between snapshots of all runs with their models. It is extended if saving
            would take more than a twentieth of the time.
        keep_models: Whether the store keeps the final state of each run, with its model.
        watch: Called with the number of rounds, or of turns without rounds, that were just played.
        track: Called with the plan and the rounds or turns of runs as they are stored.
    """
    requested, watchers = list(plans), Watchers(watch, track)
    small = [plan for plan in requested if _is_small(plan)]
    with LearnerCache(device, workers=workers) as cache:
        if small and not keep_models and device == "cpu":
            sweep(small, store, workers=workers, watch=watchers.stored)
        runs = [RunInProgress(plan, store, cache.made_by) for plan in missing_plans(requested, store)]
        for batch in _sharing_a_learner(runs):
            for begin, without_rounds in ((_begin_round, False), (_begin_turn, True)):
                alike = [run for run in batch if run.world.needs_slots is without_rounds]
                _play_runs(alike, begin, save_every, keep_models, watchers)
            batch[0].learner.close()
            if not keep_models and any(run.has_snapshot for run in batch):
                store.compact()
    return [run_id(store, plan) for plan in requested]


def _is_small(plan: RunPlan) -> bool:
    """Returns whether NumPy trains the model."""
    return plan.world_settings.get("learner") is None and plan.world_settings.get("model", "mlp") == "mlp"


def _sharing_a_learner(runs: Sequence[RunInProgress]) -> list[list[RunInProgress]]:
    """Returns the runs of each learner."""
    learners = {id(run.learner): run.learner for run in runs}.values()
    return [[run for run in runs if run.learner is learner] for learner in learners]


def _play_runs(
    runs: Sequence[RunInProgress],
    begin: Callable[[Sequence[RunInProgress]], Step],
    save_every: float,
    keep_models: bool,
    watchers: Watchers,
) -> None:
    """Plays all runs to their end.

    If the learner trains while this process goes on, the runs form two lanes: the rounds of one lane are selected and
    prepared while the learner trains those of the other.

    Args:
        runs: Runs that share a learner.
        begin: Begins one step of each of these runs.
        save_every: The interval between snapshots, in seconds.
        keep_models: Whether a finished run keeps its state.
        watchers: Who follows the runs.
    """
    count = LANES if runs and runs[0].learner.overlaps else 1
    lanes = [_Lane(part, begin, save_every) for part in (runs[lane::count] for lane in range(count)) if part]
    while lanes:
        for lane in lanes:
            played = lane.finish(keep_models, watchers)
            if watchers.watch is not None and played:
                watchers.watch(played)
        lanes = [lane for lane in lanes if lane.runs]


class _Lane:
    """Runs that advance together; between two calls of `finish`, their next step is running."""

    def __init__(
        self, runs: Sequence[RunInProgress], begin: Callable[[Sequence[RunInProgress]], Step], save_every: float
    ) -> None:
        self.runs, self._begin, self._save_every = list(runs), begin, save_every
        self._next_save = time.monotonic() + save_every
        self._step = begin(self.runs)

    def finish(self, keep_models: bool, watchers: Watchers) -> int:
        """Finishes the step of all runs, saves what is due, and begins the next; returns the number of records.

        Args:
            keep_models: Whether a finished run keeps its state.
            watchers: Who follows the runs.
        """
        steps = self._step()
        for run, records in zip(self.runs, steps, strict=True):
            run.add(records)
            if run.finished:
                run.save(watchers.track, with_state=keep_models)
        self.runs = [run for run in self.runs if not run.finished]
        if self.runs and time.monotonic() >= self._next_save:
            start = time.monotonic()
            for run in self.runs:
                run.save(watchers.track, with_state=True)
            now = time.monotonic()
            self._next_save = now + max(self._save_every, MIN_PLAY_TO_SAVE_RATIO * (now - start))
        if self.runs:
            self._step = self._begin(self.runs)
        return sum(map(len, steps))


def _begin_round(runs: Sequence[RunInProgress]) -> Step:
    """Begins the next round of each run."""
    offers = [run.world.offer(run.done + 1) for run in runs]
    selections = [visible_selection(run.playing.policy, offer) for run, offer in zip(runs, offers, strict=True)]
    begun = BegunRounds([run.world for run in runs], offers, selections)

    def finish() -> list[list[RoundRecord]]:
        reports = begun.finish()
        for run, report in zip(runs, reports, strict=True):
            run.playing.policy.tell(report)
        return [[RoundRecord(selection, report)] for selection, report in zip(selections, reports, strict=True)]

    return finish


def _begin_turn(runs: Sequence[RunInProgress]) -> Step:
    """Gives turns in each run until one must end, which happens when the step is finished."""
    running_turns = [run.playing.next_end(run.plan.rounds) for run in runs]

    def finish() -> list[list[RoundRecord]]:
        reports = finish_batched(
            [run.world for run in runs], [running_turn.record.report for running_turn in running_turns]
        )
        return [
            run.playing.end(running_turn, report)
            for run, running_turn, report in zip(runs, running_turns, reports, strict=True)
        ]

    return finish
