"""Training runs in progress: what was played and not stored yet, where a run resumes, and who follows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from turnout.kernel.certificate import Certificate
from turnout.kernel.rounds import RoundRecord
from turnout.lab.columns import RoundColumns
from turnout.lab.runs.plans import RunPlan
from turnout.lab.runs.play import RoundRun, Run
from turnout.lab.runs.slots import SlotRun
from turnout.lab.runs.store import RunStore
from turnout.lab.runs.sweep import columns_to_store, stored_plan
from turnout.lab.runs.tracked import MetricsWatcher
from turnout.lab.training.buffered import BufferedTraining
from turnout.lab.training.world import Federation, TrainingWorld
from turnout.tracking import RoundMeter

Watcher = Callable[[int], None]
RoundWatcher = Callable[[RunPlan, RoundRecord], None]


class RunPart(Protocol):
    """Where a run resumes, and what receives its next rounds."""

    def begin(self, clients: int) -> None:
        """Begins the run, or continues it; called once, before everything else."""

    def snapshot(self) -> tuple[int, dict[str, Any]] | None:
        """Returns the number of rounds that were played, and the state after them; None for a new run."""

    def elapsed(self) -> float:
        """Returns the simulated seconds of the rounds that were played."""

    def append(self, columns: RoundColumns, *, snapshot: Mapping[str, Any] | None, finish: bool) -> None:
        """Receives rounds, the state after them if it is to be kept, and whether they are the last."""


class Watchers(NamedTuple):
    """Who follows the runs: the callbacks of `train_plans`."""

    watch: Watcher | None = None
    on_round: RoundWatcher | None = None
    track: MetricsWatcher | None = None


class StoredRun:
    """A run in a store."""

    def __init__(self, store: RunStore, plan: RunPlan, made_by: str) -> None:
        self._store, self._plan, self._made_by = store, plan, made_by

    def begin(self, clients: int) -> None:
        """Begins the run, or continues it."""
        stored = stored_plan(self._store, self._plan)
        self._id = self._store.begin(self._plan.key, stored, clients=clients, code_version=self._made_by)

    def snapshot(self) -> tuple[int, dict[str, Any]] | None:
        """Returns the newest snapshot."""
        return self._store.snapshot(self._id)

    def elapsed(self) -> float:
        """Returns the seconds of all stored rounds."""
        return float(self._store.columns(self._id).durations.sum())

    def append(self, columns: RoundColumns, *, snapshot: Mapping[str, Any] | None, finish: bool) -> None:
        """Stores rounds, and the state after them, in one transaction."""
        self._store.append(self._id, columns, snapshot=snapshot, finish=finish)


class RunInProgress:
    """A run in progress: its policy and world, and the records that are not stored yet."""

    def __init__(self, plan: RunPlan, playing: Run, federation: Federation, part: RunPart) -> None:
        self.plan, self.learner = plan, federation.learner
        self._playing, self._part = playing, part
        self._clients = playing.world.clients
        self.done = 0
        snapshot = part.snapshot()
        if snapshot is not None:
            self.done, state = snapshot
            playing.restore(state, self.done)
        self._unsaved: list[RoundRecord] = []
        self._meter: RoundMeter | None = None

    @property
    def finished(self) -> bool:
        """Whether all rounds, or turns, were played."""
        return self.done >= self.plan.rounds

    def append(self, records: Sequence[RoundRecord], watchers: Watchers) -> None:
        """Adds records that were played."""
        if watchers.track is not None and self._meter is None:
            self._meter = RoundMeter(self._part.elapsed() if self.done else 0.0)
        self._unsaved.extend(records)
        self.done += len(records)
        for record in records:
            if watchers.on_round is not None:
                watchers.on_round(self.plan, record)
            if watchers.track is not None and self._meter is not None:
                watchers.track(self.plan, self._meter.measure(record, self.certificate()), record.round)

    def certificate(self) -> Certificate | None:
        """Returns how far clients are behind, after the last record; None without rounds, where decisions go on."""
        return None

    def save(self, *, with_state: bool) -> None:
        """Stores all unsaved records, and with `with_state` a snapshot, in one transaction."""
        columns = columns_to_store(self.plan, RoundColumns.from_records(self._unsaved, clients=self._clients))
        state = self._playing.state() if with_state else None
        self._part.append(columns, snapshot=state, finish=self.finished)
        self._unsaved.clear()


class RoundsInProgress(RunInProgress):
    """A run in rounds."""

    def __init__(self, plan: RunPlan, playing: RoundRun, world: TrainingWorld, part: RunPart) -> None:
        self.policy, self.world = playing.policy, world
        super().__init__(plan, playing, world.federation, part)

    def certificate(self) -> Certificate | None:
        """Returns the certificate of the policy after the last round."""
        return self.policy.certificate()


class TurnsInProgress(RunInProgress):
    """A run without rounds."""

    def __init__(self, plan: RunPlan, playing: SlotRun, world: BufferedTraining, part: RunPart) -> None:
        self.slots, self.world = playing, world
        super().__init__(plan, playing, world.federation, part)


def begin_run(plan: RunPlan, part: RunPart) -> RunInProgress:
    """Builds a run, and restores it where it resumes."""
    playing = plan.start()
    part.begin(playing.world.clients)
    if isinstance(playing, SlotRun):
        assert isinstance(playing.world, BufferedTraining)
        return TurnsInProgress(plan, playing, playing.world, part)
    assert isinstance(playing, RoundRun)
    assert isinstance(playing.world, TrainingWorld)
    return RoundsInProgress(plan, playing, playing.world, part)
