"""Training runs in progress: what was played and not stored yet, and who follows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from turnout.kernel.rounds import RoundRecord
from turnout.lab.columns import RoundColumns
from turnout.lab.runs.plans import RunPlan
from turnout.lab.runs.play import RoundRun, Run
from turnout.lab.runs.slots import SlotRun
from turnout.lab.runs.store import RunStore
from turnout.lab.runs.sweep import StoredWatcher, columns_to_store, stored_plan
from turnout.lab.training.buffered import BufferedTraining
from turnout.lab.training.world import Federation, TrainingWorld

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


class RunInProgress:
    """A run in progress: its policy and world, and the records that are not stored yet.

    Args:
        plan: The plan of the run.
        playing: Its policy and world, which are restored where the run was interrupted.
        federation: The federation of its world.
        store: The store of the run.
        made_by: What makes the run (`code_version`).
    """

    def __init__(self, plan: RunPlan, playing: Run, federation: Federation, store: RunStore, made_by: str) -> None:
        self.plan, self.learner = plan, federation.learner
        self._playing, self._store = playing, store
        self._clients = playing.world.clients
        self._id = store.begin(plan.key, stored_plan(store, plan), clients=self._clients, code_version=made_by)
        self.done = 0
        snapshot = store.snapshot(self._id)
        if snapshot is not None:
            self.done, state = snapshot
            playing.restore(state, self.done)
        self._unsaved: list[RoundRecord] = []

    @property
    def finished(self) -> bool:
        """Whether all rounds, or turns, were played."""
        return self.done >= self.plan.rounds

    def append(self, records: Sequence[RoundRecord], watchers: Watchers) -> None:
        """Adds records that were played."""
        self._unsaved.extend(records)
        self.done += len(records)
        if watchers.on_round is not None:
            for record in records:
                watchers.on_round(self.plan, record)

    def save(self, watchers: Watchers, *, with_state: bool) -> None:
        """Stores all unsaved records, and with `with_state` a snapshot, in one transaction."""
        columns = columns_to_store(self.plan, RoundColumns.from_records(self._unsaved, clients=self._clients))
        state = self._playing.state() if with_state else None
        self._store.append(self._id, columns, snapshot=state, finish=self.finished)
        self._unsaved.clear()
        if watchers.track is not None:
            watchers.track(self.plan, columns)


class RoundsInProgress(RunInProgress):
    """A run in rounds."""

    def __init__(self, plan: RunPlan, playing: RoundRun, world: TrainingWorld, store: RunStore, made_by: str) -> None:
        self.policy, self.world = playing.policy, world
        super().__init__(plan, playing, world.federation, store, made_by)


class TurnsInProgress(RunInProgress):
    """A run without rounds."""

    def __init__(self, plan: RunPlan, playing: SlotRun, world: BufferedTraining, store: RunStore, made_by: str) -> None:
        self.slots, self.world = playing, world
        super().__init__(plan, playing, world.federation, store, made_by)


def begin_run(plan: RunPlan, store: RunStore, made_by: str) -> RunInProgress:
    """Builds a run, and restores it where it resumes."""
    playing = plan.start()
    if isinstance(playing, SlotRun):
        assert isinstance(playing.world, BufferedTraining)
        return TurnsInProgress(plan, playing, playing.world, store, made_by)
    assert isinstance(playing, RoundRun)
    assert isinstance(playing.world, TrainingWorld)
    return RoundsInProgress(plan, playing, playing.world, store, made_by)
