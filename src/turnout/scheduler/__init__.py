"""A scheduler for live fleets: clients by id, one file, nothing forgotten."""

from turnout.scheduler.features import ClientStatus, Feature, Features, FleetStatus
from turnout.scheduler.outcomes import (
    ARRIVED,
    FAILED,
    KINDS,
    LATE,
    MISSED,
    OUTCOME_OF_KIND,
    OUTRUN,
    RETURNED,
    STILL_OUT,
    SURPLUS,
)
from turnout.scheduler.records import OpenRound, Turn
from turnout.scheduler.reporter import Reporter
from turnout.scheduler.scheduler import Scheduler
from turnout.scheduler.settings import SchedulerSettings
from turnout.scheduler.status import SchedulerStatus

__all__ = [
    "ARRIVED",
    "FAILED",
    "KINDS",
    "LATE",
    "MISSED",
    "OUTCOME_OF_KIND",
    "OUTRUN",
    "RETURNED",
    "STILL_OUT",
    "SURPLUS",
    "ClientStatus",
    "Feature",
    "Features",
    "FleetStatus",
    "OpenRound",
    "Reporter",
    "Scheduler",
    "SchedulerSettings",
    "SchedulerStatus",
    "Turn",
]
