"""Real clients: the scheduler of live fleets, its reader and its reporter.

Everything in `__all__` is public and imported on first use; the modules of this package are private.
"""

from typing import TYPE_CHECKING

from turnout._lazy import lazy_exports

if TYPE_CHECKING:
    from turnout.live.audit.certify import certify
    from turnout.live.features import PAPER_FEATURES, ClientStatus, Feature, Features, FleetStatus, Statuses
    from turnout.live.journal.amendments import Amendment
    from turnout.live.journal.events import FleetEvent
    from turnout.live.operation.metrics import SchedulerMetrics
    from turnout.live.reader import FleetReader
    from turnout.live.reporter import Reporter
    from turnout.live.scheduler import Scheduler
    from turnout.live.settings import SchedulerOptions, SchedulerSettings
    from turnout.live.status import SchedulerStatus
    from turnout.live.turns.history import ClientHistory
    from turnout.live.turns.records import Turn
    from turnout.live.turns.slots.turns import RunningTurn, Wait
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "audit.certify": ("certify",),
            "features": (
                "ClientStatus",
                "Feature",
                "Features",
                "FleetStatus",
                "PAPER_FEATURES",
                "Statuses",
            ),
            "journal.amendments": ("Amendment",),
            "journal.events": ("FleetEvent",),
            "operation.metrics": ("SchedulerMetrics",),
            "reader": ("FleetReader",),
            "reporter": ("Reporter",),
            "scheduler": ("Scheduler",),
            "settings": (
                "SchedulerOptions",
                "SchedulerSettings",
            ),
            "status": ("SchedulerStatus",),
            "turns.records": ("Turn",),
            "turns.history": ("ClientHistory",),
            "turns.slots.turns": (
                "RunningTurn",
                "Wait",
            ),
        },
    )

__all__ = [
    "PAPER_FEATURES",
    "Amendment",
    "ClientHistory",
    "ClientStatus",
    "Feature",
    "Features",
    "FleetEvent",
    "FleetReader",
    "FleetStatus",
    "Reporter",
    "RunningTurn",
    "Scheduler",
    "SchedulerMetrics",
    "SchedulerOptions",
    "SchedulerSettings",
    "SchedulerStatus",
    "Statuses",
    "Turn",
    "Wait",
    "certify",
]
