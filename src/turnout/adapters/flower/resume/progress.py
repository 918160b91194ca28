"""Saves the progress of a training run after each round; a restarted server resumes from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord
from flwr.serverapp.strategy import Result, Strategy

from turnout.adapters.common.fleet import Fleet
from turnout.adapters.flower.core.progress import EndedRound, Progress
from turnout.adapters.flower.resume.saved_run import RunFiles, SavedRun, shapes_of
from turnout.adapters.flower.resume.strategy_state import (
    has_hooks,
    restore_strategy,
    setting_digests,
    strategy_state,
)
from turnout.adapters.flower.simulated import SimulatedFleet
from turnout.errors import StateError
from turnout.log import get_log

log = get_log("flwr")


class SavedProgress(Progress):
    """Keeps the progress of a run in memory and in files.

    Args:
        scheduler: the fleet.
        strategy: the strategy, whose state is saved.
        simulated: the simulated world, whose state is saved; None if there is none.
        path: what the names of the files begin with.
        resume: whether to resume an unfinished run; False discards it.
    """

    def __init__(
        self, scheduler: Fleet, strategy: Strategy, simulated: SimulatedFleet | None, *, path: Path, resume: bool
    ) -> None:
        has_hooks(strategy)  # raises an error if it has only one of both methods
        super().__init__(scheduler)
        self._strategy, self._simulated, self._resume = strategy, simulated, resume
        self._settings = setting_digests(strategy)
        self._unsaved: set[str] = set()  # the attributes that were logged because they are not saved
        self._files = RunFiles(path)
        self._initial_shapes: dict[str, list[int]] = {}

    def begin(self, arrays: ArrayRecord, rounds: int) -> None:
        """Begins a run of `rounds` rounds with this model, or restores an unfinished one."""
        super().begin(arrays, rounds)
        self._initial_shapes = shapes_of(arrays)
        saved = self._files.read() if self._resume else None
        if saved is None:
            self._files.remove()  # metrics without a model are of a run that has finished, or was never saved
        else:
            self._restore(saved)
        self._unsaved.clear()
        self._strategy_state()  # raises an error, before the first round, if a hook returns what cannot be stored

    def keep_metrics(self, kind: str, number: int, metrics: Mapping[str, Any]) -> None:
        """Keeps the metrics of a round."""
        super().keep_metrics(kind, number, metrics)
        self._files.append_metrics(kind, number, self._metrics[kind][number])

    def finish(self) -> Result:
        """Ends the run, whose files are kept as those of the last run."""
        if self.rounds:
            self._files.finish()
        return super().finish()

    def _save(self, ended: EndedRound) -> None:
        self._files.write(
            SavedRun(
                **{part.name: getattr(ended, part.name) for part in fields(EndedRound)},
                begun_with=self._initial_shapes,
                arrays=self.arrays,
                settings=self._settings,
                strategy=self._strategy_state(),
                world={} if self._simulated is None else self._simulated.state(),
            )
        )

    def _restore(self, saved: SavedRun) -> None:
        if saved.begun_with != self._initial_shapes:
            raise StateError(
                f"{self._files.model} holds an unfinished run of another model: finish it with that model, or start a "
                "new run with resume=False"
            )
        restore_strategy(self._strategy, saved.strategy, saved.settings, self._settings)
        if self._simulated is not None:
            self._simulated.restore(saved.world)
        self.last, self.arrays = saved.server_round, saved.arrays
        self._metrics |= self._files.read_metrics(saved.server_round)
        self._files.write_metrics(self._metrics)  # without a line that the earlier server did not complete
        if not self.has_metrics("train", saved.server_round):
            self._close(saved)  # the server stopped after saving the model, before closing the round
        log.info("turnout: resuming after round %d of %d", saved.server_round, self.rounds)

    def _strategy_state(self) -> dict[str, Any]:
        """Returns what is saved of the strategy; logs what is not, once."""
        state, unsaved = strategy_state(self._strategy)
        new = [name for name in unsaved if name not in self._unsaved]
        self._unsaved.update(new)
        if new:
            log.warning(
                "turnout: these attributes of %s are not saved, and a restarted server begins without them: %s. Give "
                "them, or the strategy, state_dict() and load_state_dict(state)",
                type(self._strategy).__name__,
                ", ".join(new),
            )
        return state
