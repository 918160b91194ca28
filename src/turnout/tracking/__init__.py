"""Trackers: the metrics of every round, in the tool with which a team follows its experiments.

Everything in `__all__` is public; the modules of this package are private.
"""

from turnout.tracking.trackers import GuardedTracker, RoundMeter, Tracker, open_tracker

__all__ = ["GuardedTracker", "RoundMeter", "Tracker", "open_tracker"]
