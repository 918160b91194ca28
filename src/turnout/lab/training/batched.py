"""Plays many training runs at once: runs that share a learner advance together, each step in one computation."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray
from turnout.kernel.rounds import RoundRecord
from turnout.lab.columns import RoundColumns
from turnout.lab.runs.plans import RunPlan
from turnout.lab.runs.play import visible_selection
from turnout.lab.runs.store import RunStore
from turnout.lab.runs.sweep import (
    StoredRun,
    StoredWatcher,
    missing_plans,
    run_id,
    sweep,
)
from turnout.lab.training.learner_cache import LearnerCache
from turnout.lab.training.learners.base import Learner
from turnout.lab.training.task import TorchTask, register_task
from turnout.lab.training.world import FederatedWorld, begin_rounds, finish_batched

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
    setup = [(plan, plan.world_settings) for plan in requested]
    small = [plan for plan, own in setup if own.get("learner") is None and own.get("model", "mlp") == "mlp"]
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
    finish_rounds = begin_rounds([run.world for run in runs], offers, selections)

    def finish() -> list[list[RoundRecord]]:
        reports = finish_rounds()
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


def play_plans(
    plans: Iterable[RunPlan],
    store: RunStore,
    *,
    workers: int | None = None,
    device: str = "cpu",
    watch: Watcher | None = None,
    track: StoredWatcher | None = None,
) -> None:
    """Plays every plan that is missing from the store, with or without training.

    Args:
        plans: The plans of the runs.
        store: The store that holds finished runs and receives new ones.
        workers: The number of processes, by default one per core.
        device: The torch device that trains convolutional networks.
        watch: Called with the number of rounds that were just played.
        track: Called with the plan and the rounds of runs as they are stored.
    """
    requested, stored = list(plans), Watchers(watch, track=track).stored
    train_plans(filter(trains, requested), store, device=device, workers=workers, watch=watch, track=track)
    sweep([plan for plan in requested if not trains(plan)], store, workers=workers, watch=stored)


def trains(plan: RunPlan) -> bool:
    """Returns whether the run of a plan trains a model."""
    return plan.world == "training"


def check_device(plans: Iterable[RunPlan], device: str) -> None:
    """Raises SettingError for a device other than the CPU if no plan trains a model."""
    if device != "cpu" and not any(trains(plan) for plan in plans):
        raise SettingError(
            f"these runs train no model: the device must be cpu, not {device}; runs in the world training use a device"
        )


@dataclass(frozen=True, slots=True, eq=False)
class TrainedRun:
    """One policy with one seed: its rounds and its model.

    `scores` is the metric of the task after each round, NaN where it was not measured. `weights` is the final model as
    one vector; `TorchTask.module` returns it as a module.
    """

    policy: str
    seed: int
    columns: RoundColumns
    scores: FloatArray
    weights: npt.NDArray[np.floating]

    @property
    def score(self) -> float:
        """The metric of the task when it was last measured."""
        measured = self.scores[~np.isnan(self.scores)]
        return float(measured[-1]) if len(measured) else float("nan")

    @property
    def seconds(self) -> float:
        """The simulated time of all rounds."""
        return float(self.columns.durations.sum())

    @property
    def least_share(self) -> float:
        """The smallest share of the rounds in which any client was selected."""
        return float(self.columns.turns.min() / len(self.columns))

    def seconds_to(self, score: float) -> float:
        """Returns the simulated time until the metric was at least `score`; infinity if it never was."""
        reached = np.flatnonzero(self.scores >= score)
        return float(self.columns.durations[: reached[0] + 1].sum()) if len(reached) else float("inf")


def train_policies(
    task: TorchTask,
    policies: Iterable[str] | Mapping[str, Mapping[str, Any]],
    *,
    rounds: int,
    seeds: Iterable[int] = (0,),
    world: str = "paper",
    world_settings: Mapping[str, Any] | None = None,
    evaluate_every: int = 1,
    device: str = "cpu",
    workers: int | None = None,
    store: Path | str | None = None,
    watch: Callable[[int], None] | None = None,
) -> list[TrainedRun]:
    """Trains a task under every policy with every seed; on a GPU, all of them in one computation.

    Args:
        task: The model and its data.
        policies: Names of policies, or a mapping from names to their settings.
        rounds: The number of rounds.
        seeds: Each seed is a run with its own world, partition, initial weights and batches, the same for all policies.
        world: The name of the world that determines availability and exchange times.
        world_settings: Its settings.
        evaluate_every: The test set is evaluated every so many rounds.
        device: The torch device.
        workers: The number of processes on a CPU, by default one per core.
        store: A file that keeps all runs. An interrupted call resumes from it, and finished runs are not trained again.
        watch: Called with the number of rounds that were just played.
    """
    if isinstance(policies, str):
        raise SettingError(f"policies must be a list of names, or a mapping from names to settings, not {policies!r}")
    settings = policies if isinstance(policies, Mapping) else {policy: {} for policy in policies}
    learner = f"task-{task.fingerprint}"  # another model, or other data, are other runs in the store
    register_task(task, learner)
    setup = {"learner": learner, "inner": world, "world": dict(world_settings or {}), "evaluate_every": evaluate_every}
    plans = [
        RunPlan(policy, rounds, seed, dict(own), world="training", world_settings=setup)
        for policy, own in settings.items()
        for seed in seeds
    ]
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "runs.turnout" if store is None else Path(store)
        with RunStore(path) as opened:
            ids = train_plans(plans, opened, device=device, workers=workers, keep_models=True, watch=watch)
            return [_read(task, plan, opened, run) for plan, run in zip(plans, ids, strict=True)]


def _read(task: TorchTask, plan: RunPlan, store: RunStore, run: int) -> TrainedRun:
    columns, snapshot = store.columns(run), store.snapshot(run)
    scores = columns.metrics.get(task.metric, np.full(len(columns.rounds), np.nan))
    if snapshot is None:
        raise SettingError(f"the store holds the run of {plan.policy}, seed {plan.seed}, without its model")
    return TrainedRun(plan.policy, plan.seed, columns, np.asarray(scores), snapshot[1]["world.weights"])
