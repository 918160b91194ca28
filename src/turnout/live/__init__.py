"""Real clients: the scheduler of live fleets, its reader and its reporter.

Everything in `__all__` is public and imported on first use; the modules of this package are private.
"""

from typing import TYPE_CHECKING

from turnout._lazy import lazy_exports

if TYPE_CHECKING:
    from turnout.live.audit.certify import certify as certify
    from turnout.live.features import PAPER_FEATURES as PAPER_FEATURES
    from turnout.live.features import ClientStatus as ClientStatus
    from turnout.live.features import Feature as Feature
    from turnout.live.features import Features as Features
    from turnout.live.features import FleetStatus as FleetStatus
    from turnout.live.features import Statuses as Statuses
    from turnout.live.journal.events import FleetEvent as FleetEvent
    from turnout.live.journal.journal import Amendment as Amendment
    from turnout.live.operation.monitoring import SchedulerMetrics as SchedulerMetrics
    from turnout.live.queries import SchedulerStatus as SchedulerStatus
    from turnout.live.reader import FleetReader as FleetReader
    from turnout.live.reporter import Reporter as Reporter
    from turnout.live.scheduler import Scheduler as Scheduler
    from turnout.live.settings import SchedulerOptions as SchedulerOptions
    from turnout.live.settings import SchedulerSettings as SchedulerSettings
    from turnout.live.turns.clients import ClientHistory as ClientHistory
    from turnout.live.turns.records import Turn as Turn
    from turnout.live.turns.slots.turns import RunningTurn as RunningTurn
    from turnout.live.turns.slots.turns import Wait as Wait
else:
    __getattr__, __dir__ = lazy_exports(__name__)
