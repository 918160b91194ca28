"""The progress of a training run, which is saved after each round, and from which a restarted server resumes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import Result, Strategy

from turnout.adapters.flower.resume.saved_run import RunFiles, SavedRun, metrics_of, shapes_of
from turnout.adapters.flower.resume.strategy_state import (
    check_storable,
    has_hooks,
    restore_strategy,
    settings_of,
    strategy_state,
)
from turnout.adapters.flower.rounds.round_summary import summarize_round
from turnout.adapters.flower.setup import TrainingSetup
from turnout.errors import SettingError, StateError
from turnout.live._internals import session_of
from turnout.log import get_log
from turnout.storage.training_log import METRIC_KINDS, OWN_PREFIX, Metrics

log = get_log("flwr")
Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]
Save = Callable[[Strategy], Any]
Load = Callable[[Strategy, Any], None]


class TrainingRun:
    """The model, the number of rounds and the metrics of a run, in memory and next to the fleet file.

    Args:
        setup: the strategy and the simulated world, whose states are saved, and the fleet.
        resume: whether to resume an unfinished run; False discards it.
        save: whether to save the run after each round, or a function that returns what else to save.
        load: a function that restores what `save` returned.
    """

    def __init__(self, setup: TrainingSetup, *, resume: bool, save: bool | Save, load: Load | None) -> None:
        if callable(save) != (load is not None):
            raise SettingError("save and load must both be functions, or load must be None: pass save=…, load=…")
        has_hooks(setup.strategy)  # raises an error if it has only one of both methods
        self._strategy, self._scheduler, self._simulated = setup.strategy, setup.scheduler, setup.simulated
        self._resume, self._is_saved = resume, bool(save)
        self._save_extra, self._load_extra = (save if callable(save) else None), load
        self._settings = settings_of(setup.strategy)
        self._unsaved: set[str] = set()  # the attributes that were logged because they are not saved
        self._files = RunFiles(setup.scheduler.path)
        self._initial_shapes: dict[str, list[int]] = {}
        self._metrics: dict[str, Metrics] = {}
        self._rounds = 0
        self.offset = 0  # the number of rounds before this start
        self.arrays = ArrayRecord()

    def begin(self, arrays: ArrayRecord, rounds: int) -> None:
        """Begins a run of `rounds` rounds with this model, or restores an unfinished one."""
        self._rounds, self.offset, self.arrays = rounds, 0, arrays
        self._initial_shapes = shapes_of(arrays)
        self._metrics = {kind: {} for kind in METRIC_KINDS}
        if not self._resume:
            self._files.remove()
        saved = self._files.read() if self._is_saved else None
        if saved is not None:
            self._restore(saved)
        self._unsaved.clear()
        if self._is_saved:  # raises an error, before the first round, if a hook returns what cannot be stored
            self._strategy_state()
            self._extra()

    @property
    def is_evaluated(self) -> bool:
        """Whether the clients have evaluated the model with which this start began."""
        return not self.offset or self.offset in self._metrics["evaluate"]

    def end_round(
        self,
        number: int,
        fleet_round: int,
        metrics: MetricRecord | None,
        waited: float = 0.0,
        expected: dict[str, float] | None = None,
    ) -> MetricRecord:
        """Saves the run after a round or version, closes the round in the fleet, and returns its metrics.

        The order matters: after a crash in between, neither the model nor the round is lost.

        Args:
            number: the round of the server.
            fleet_round: the round of the fleet.
            metrics: the metrics of the strategy.
            waited: the duration of the round in seconds.
            expected: the predicted seconds of the clients.
        """
        run = SavedRun(
            number,
            fleet_round,
            waited,
            self._initial_shapes,
            self.arrays,
            {} if metrics is None else metrics_of(metrics),
            expected or {},
            self._settings,
            self._strategy_state() if self._is_saved else {},
            {} if self._simulated is None else self._simulated.state(),
            self._extra() if self._is_saved else None,
        )
        if self._is_saved:
            self._files.write(run)
        return self._close(run)

    def keep_metrics(self, kind: str, number: int, metrics: MetricRecord) -> None:
        """Stores the metrics of a round: "train", "evaluate" or "server"."""
        self._metrics[kind][number] = metrics_of(metrics)
        if self._is_saved:
            self._files.write_metrics(self._metrics)
        if (tracker := session_of(self._scheduler).tracker) is not None:
            values = {
                f"{kind}/{name}": float(value)
                for name, value in metrics.items()
                if isinstance(value, int | float) and not name.startswith(OWN_PREFIX)
            }
            if values:
                tracker.log(values, self._scheduler.round)  # the round of the fleet, as for the selection

    def with_true_round(self, evaluate: Evaluate) -> Evaluate:
        """Wraps the server's evaluation so that it receives the round number counted from the start of the run."""

        def evaluate_true_round(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            number = server_round + self.offset
            if number in self._metrics["server"]:
                return None  # evaluated before the interruption
            metrics = evaluate(number, arrays)
            if metrics is not None:
                self.keep_metrics("server", number, metrics)
            return metrics

        return evaluate_true_round

    def finish(self, result: Result) -> None:
        """Completes Flower's result by the rounds before a restart, and keeps the files as those of the last run."""
        result.arrays = self.arrays
        for kind, by_round in (
            ("train", result.train_metrics_clientapp),
            ("evaluate", result.evaluate_metrics_clientapp),
            ("server", result.evaluate_metrics_serverapp),
        ):
            by_round.clear()  # Flower numbers the rounds since the restart
            by_round.update({number: MetricRecord(metrics) for number, metrics in self._metrics[kind].items()})
        if self._is_saved and self._rounds:
            self._files.finish()

    def _restore(self, saved: SavedRun) -> None:
        if saved.begun_with != self._initial_shapes:
            raise StateError(
                f"{self._files.model} holds an unfinished run of another model: finish it with that model, or start a "
                "new run with resume=False"
            )
        restore_strategy(self._strategy, saved.strategy, saved.settings)
        if self._load_extra is not None:
            self._load_extra(self._strategy, saved.extra)
        if self._simulated is not None:
            self._simulated.restore(saved.world)
        self.offset, self.arrays = saved.server_round, saved.arrays
        self._metrics |= self._files.read_metrics(saved.server_round)
        if saved.server_round not in self._metrics["train"]:
            self._close(saved)  # the server stopped after saving the model, before closing the round
        log.info(
            "turnout: resuming after round %d of %d (Flower counts from 1 again)", saved.server_round, self._rounds
        )

    def _extra(self) -> Any:
        """Returns what the app's own function saves."""
        if self._save_extra is None:
            return None
        extra = self._save_extra(self._strategy)
        check_storable(extra, "the function save")
        return extra

    def _strategy_state(self) -> dict[str, Any]:
        """Returns what is saved of the strategy; logs what is not, once, unless the app has its own function for it."""
        state, unsaved = strategy_state(self._strategy)
        new = [name for name in unsaved if name not in self._unsaved and self._save_extra is None]
        self._unsaved.update(new)
        if new:
            log.warning(
                "turnout: these attributes of %s are not saved, and a restarted server begins without them: %s. Give "
                "the strategy state_dict() and load_state_dict(state), or pass save= and load= to FairSelection",
                type(self._strategy).__name__,
                ", ".join(new),
            )
        return state

    def _close(self, run: SavedRun) -> MetricRecord:
        """Closes the round in the fleet and returns its metrics, including those of the selection."""
        metrics = MetricRecord(run.metrics)
        if self._scheduler.settings.has_rounds:
            opened = self._scheduler.open_round
            if opened is not None and opened.round == run.fleet_round:
                self._scheduler.close_round(after=run.waited or None)
            text, own = summarize_round(self._scheduler, run.fleet_round, run.expected, run.waited)
            log.info("turnout: round %d %s", run.server_round, text)
            metrics = MetricRecord({**run.metrics, **own})
        self.keep_metrics("train", run.server_round, metrics)
        return metrics
