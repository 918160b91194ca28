"""A scheduler for live fleets: clients by id, one file, nothing forgotten."""

from turnout.scheduler.features import ClientStatus, Feature, Features, FleetStatus
from turnout.scheduler.reporter import Reporter
from turnout.scheduler.scheduler import Scheduler
from turnout.scheduler.settings import SchedulerSettings
from turnout.scheduler.status import SchedulerStatus

__all__ = [
    "ClientStatus",
    "Feature",
    "Features",
    "FleetStatus",
    "Reporter",
    "Scheduler",
    "SchedulerSettings",
    "SchedulerStatus",
]
