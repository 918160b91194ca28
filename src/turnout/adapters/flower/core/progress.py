"""The progress of a training run: the model, the number of rounds and the metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import Result

from turnout.adapters.common.fleet import Fleet, facts_of
from turnout.adapters.common.round_texts import summarize_round
from turnout.log import get_log
from turnout.storage.training_log import METRIC_KINDS, OWN_PREFIX, Metrics

log = get_log("flwr")


@dataclass(frozen=True, slots=True)
class EndedRound:
    """A round, or a version of the model, after its aggregation.

    Attributes:
        server_round: the round of the server.
        fleet_round: the round of the fleet.
        metrics: the metrics of the strategy.
        waited: the duration of the round in seconds.
        expected: the predicted seconds of the clients.
    """

    server_round: int
    fleet_round: int
    metrics: dict[str, Any] = field(default_factory=dict)
    waited: float = 0.0
    expected: dict[str, float] = field(default_factory=dict)


class Progress:
    """Keeps the progress of a run in memory.

    Attributes:
        arrays: the model.
        rounds: the number of rounds of the run.
        last: the number of rounds that have ended.
    """

    def __init__(self, scheduler: Fleet) -> None:
        self._scheduler = scheduler
        self.arrays, self.rounds, self.last = ArrayRecord(), 0, 0
        self._metrics: dict[str, Metrics] = {}

    def begin(self, arrays: ArrayRecord, rounds: int) -> None:
        """Begins a run of `rounds` rounds with this model."""
        self.arrays, self.rounds, self.last = arrays, rounds, 0
        self._metrics = {kind: {} for kind in METRIC_KINDS}

    def has_metrics(self, kind: str, number: int) -> bool:
        """Returns whether the metrics of a round are known."""
        return number in self._metrics[kind]

    def end_round(self, ended: EndedRound) -> None:
        """Saves the run, then closes the round in the fleet: after a crash in between, neither of them is lost."""
        self._save(ended)
        self._close(ended)

    def keep_metrics(self, kind: str, number: int, metrics: Mapping[str, Any]) -> None:
        """Keeps the metrics of a round: "train", "evaluate" or "server"."""
        self._metrics[kind][number] = metrics_of(metrics)
        if (tracker := facts_of(self._scheduler).tracker) is not None:
            values = {
                f"{kind}/{name}": float(value)
                for name, value in metrics.items()
                if isinstance(value, int | float) and not name.startswith(OWN_PREFIX)
            }
            if values:
                tracker.log(values, self._scheduler.round)  # the round of the fleet, as for the selection

    def finish(self) -> Result:
        """Ends the run and returns its result."""
        return self.result()

    def result(self, *, with_own: bool = True) -> Result:
        """Returns the model and the metrics so far, with those that the adapter adds or without."""
        records = [
            {
                number: MetricRecord(
                    {name: value for name, value in metrics.items() if with_own or not name.startswith(OWN_PREFIX)}
                )
                for number, metrics in self._metrics[kind].items()
            }
            for kind in METRIC_KINDS
        ]
        return Result(self.arrays, *records)

    def _save(self, ended: EndedRound) -> None:
        """Saves the run after a round."""

    def _close(self, ended: EndedRound) -> None:
        """Closes the round in the fleet, and keeps its metrics, including those of the selection."""
        own: dict[str, float] = {}
        if self._scheduler.settings.has_rounds:
            opened = self._scheduler.open_round
            number, after, facts = ended.fleet_round, ended.waited or None, facts_of(self._scheduler)
            is_open = opened is not None and opened.round == number
            turns = facts.close_round(after) if is_open else self._scheduler.history(round=number)
            text, own = summarize_round(self._scheduler, turns, ended.expected, ended.waited)
            log.info("turnout: round %d %s", ended.server_round, text)
        self.last = ended.server_round
        self.keep_metrics("train", ended.server_round, {**ended.metrics, **own})


def metrics_of(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Converts metrics to a dict that can be serialised as JSON."""
    return {name: list(value) if isinstance(value, list) else value for name, value in metrics.items()}
