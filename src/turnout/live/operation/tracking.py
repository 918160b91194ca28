"""Logs the rounds of a live fleet to a tracker."""

from __future__ import annotations

import numpy as np

from turnout.kernel.rounds import RoundRecord
from turnout.live.turns.outcomes import KINDS
from turnout.live.turns.slots.filling import FillResult
from turnout.live.turns.state import Fleet
from turnout.tracking import GuardedTracker, RoundMeter
from turnout.tracking.trackers import furthest_behind


def track_round(tracker: GuardedTracker, fleet: Fleet, record: RoundRecord) -> None:
    """Logs the metrics of a closed round."""
    tracker.log(RoundMeter(None).measure(record, fleet.certificate()), record.round)


def track_fill(tracker: GuardedTracker, fleet: Fleet, filled: FillResult) -> None:
    """Logs what a call of `fill` has changed, in a fleet without rounds; the step is the newest decision."""
    ended = filled.event.ended
    if not len(ended) and not filled.running_turns:
        return
    metrics = {"turns/given": float(len(filled.running_turns)), "turns/ended": float(len(ended))}
    metrics |= {f"turns/{kind}": float((ended.kinds == index).sum()) for index, kind in enumerate(KINDS)}
    if len(ended):
        metrics["turns/mean_seconds"] = float(ended.seconds.mean())
        if not np.isnan(ended.losses).all():
            metrics["metrics/loss"] = float(np.nanmean(ended.losses))
    if (certificate := fleet.certificate()) is not None:
        metrics["promise/turns_behind"] = furthest_behind(certificate)
    tracker.log(metrics, fleet.round)
