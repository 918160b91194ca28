"""Trackers: the metrics of every round, in the tool with which a team follows its experiments.

Everything in `__all__` is public; the modules of this package are private.
"""

from turnout.tracking.round_metrics import RoundMeter
from turnout.tracking.trackers import GuardedTracker, Tracker, open_tracker

__all__ = ["GuardedTracker", "RoundMeter", "Tracker", "open_tracker"]
