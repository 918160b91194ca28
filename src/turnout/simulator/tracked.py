"""Logs the rounds of a simulated run to a tracker while they are played."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from turnout.kernel.rounds import RoundRecord
from turnout.simulator.play import RoundRun, Run
from turnout.tracking import RoundMeter, Tracker


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
