"""Logs the rounds of a simulated run to a tracker while they are played."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from turnout.kernel.rounds import RoundRecord
from turnout.lab.runs.plans import RunPlan
from turnout.lab.runs.play import RoundRun, Run
from turnout.tracking import RoundMeter, Tracker

#: Receives the plan of a run, the metrics of a round, and the number of the round, while the run is played.
MetricsWatcher = Callable[[RunPlan, Mapping[str, float], int], None]


class WatchedRun:
    """A tracker that passes the metrics of one run on.

    Args:
        watch: Receives the metrics.
        plan: The plan of the run.
    """

    def __init__(self, watch: MetricsWatcher, plan: RunPlan) -> None:
        self._watch, self._plan = watch, plan

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Passes the metrics of a round on."""
        self._watch(self._plan, metrics, step)

    def close(self) -> None:
        """Does nothing: who watches a run knows its last round."""


def track_records(
    records: Iterable[RoundRecord], run: Run, tracker: Tracker, *, elapsed: float = 0.0
) -> Iterator[RoundRecord]:
    """Yields the records, after the metrics of each were logged.

    How far clients are behind is logged in runs with rounds: without rounds, decisions go on while a turn lasts.

    Args:
        records: The records of the run, as they are played.
        run: The run.
        tracker: The tracker.
        elapsed: The seconds of the rounds before the first record.
    """
    meter = RoundMeter(elapsed)
    for record in records:
        certificate = run.policy.certificate() if isinstance(run, RoundRun) else None
        tracker.log(meter.measure(record, certificate), record.round)
        yield record
