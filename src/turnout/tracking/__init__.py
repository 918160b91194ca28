"""Trackers: the metrics of every round, in the tool with which a team follows its experiments.

Everything in `__all__` is public; the modules of this package are private.
"""

from turnout.tracking.base import GuardedTracker, Tracker
from turnout.tracking.registry import open_tracker
from turnout.tracking.round_metrics import RoundMeter

__all__ = ["GuardedTracker", "RoundMeter", "Tracker", "open_tracker"]
