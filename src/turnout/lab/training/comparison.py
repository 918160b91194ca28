"""Trains one task under several policies, from Python."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray
from turnout.lab.columns import RoundColumns
from turnout.lab.runs.plans import RunPlan
from turnout.lab.runs.store import RunStore
from turnout.lab.training.batched import train_plans
from turnout.lab.training.task import TorchTask, register_task


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
        turns = np.bincount(self.columns.chosen, minlength=self.columns.clients)
        return float(turns.min() / len(self.columns.rounds))

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
    details = {"learner": learner, "inner": world, "world": dict(world_settings or {})}
    plans = [
        RunPlan(
            policy,
            rounds,
            seed,
            dict(own),
            world="training",
            world_settings={**details, "evaluate_every": evaluate_every},
        )
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
