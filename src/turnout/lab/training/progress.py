"""Training runs in progress: what was played and not stored yet, and who follows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from turnout.kernel.rounds import RoundRecord
from turnout.lab.columns import RoundColumns
from turnout.lab.runs.plans import RunPlan
from turnout.lab.runs.play import RoundRun
from turnout.lab.runs.slots import SlotRun
from turnout.lab.runs.store import RunStore
from turnout.lab.runs.sweep import StoredRun, StoredWatcher
from turnout.lab.training.buffered import BufferedTraining
from turnout.lab.training.learners.base import Learner
from turnout.lab.training.world import TrainingWorld

Watcher = Callable[[int], None]
RoundWatcher = Callable[[RunPlan, RoundRecord], None]


class Watchers(NamedTuple):
    """Who follows the runs: the callbacks of `train_plans`."""

    watch: Watcher | None = None
    on_round: RoundWatcher | None = None
    track: StoredWatcher | None = None

    def stored(self, plan: RunPlan, columns: RoundColumns) -> None:
        """Says that a whole run was played elsewhere, and stored."""
        if self.watch is not None:
            self.watch(len(columns))
        if self.track is not None:
            self.track(plan, columns)


class RunInProgress(StoredRun):
    """A run in progress, with the learner of its world."""

    learner: Learner


class RoundsInProgress(RunInProgress):
    """A run in rounds."""

    def __init__(self, plan: RunPlan, playing: RoundRun, world: TrainingWorld, store: RunStore, made_by: str) -> None:
        self.policy, self.world, self.learner = playing.policy, world, world.federation.learner
        super().__init__(plan, playing, store, made_by)


class TurnsInProgress(RunInProgress):
    """A run without rounds."""

    def __init__(self, plan: RunPlan, playing: SlotRun, world: BufferedTraining, store: RunStore, made_by: str) -> None:
        self.slots, self.world, self.learner = playing, world, world.federation.learner
        super().__init__(plan, playing, store, made_by)


def begin_run(plan: RunPlan, store: RunStore, made_by: str) -> RunInProgress:
    """Builds a run, and restores it where it resumes."""
    playing = plan.start()
    if isinstance(playing, SlotRun):
        assert isinstance(playing.world, BufferedTraining)
        return TurnsInProgress(plan, playing, playing.world, store, made_by)
    assert isinstance(playing, RoundRun)
    assert isinstance(playing.world, TrainingWorld)
    return RoundsInProgress(plan, playing, playing.world, store, made_by)
