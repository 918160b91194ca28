"""The scheduler of live fleets: clients have ids, and the whole state is in one file.

Everything in `__all__` is public; the modules of this package are private.
"""

from turnout.scheduler.audit import verify as verifier
from turnout.scheduler.audit.certify import certify
from turnout.scheduler.audit.doctor.doctor import Finding, examine
from turnout.scheduler.audit.explain import explain_closed_round
from turnout.scheduler.features import PAPER_FEATURES, ClientStatus, Feature, Features, FleetStatus, Statuses
from turnout.scheduler.identifiers import check_client_id
from turnout.scheduler.journal.amendments import Amendment
from turnout.scheduler.journal.answers import StoredAnswer
from turnout.scheduler.journal.backup import back_up_fleet
from turnout.scheduler.journal.ended import RecordedTurn
from turnout.scheduler.journal.events import FleetEvent, LateTime, RecordedRound
from turnout.scheduler.journal.figures import WriterFigures
from turnout.scheduler.journal.journal import is_fleet
from turnout.scheduler.journal.reader import FleetReader, Follower, ReplayStart, StaleError
from turnout.scheduler.journal.repair import doubled_closes, remove_doubled_closes
from turnout.scheduler.journal.replay import LIVE_DEFAULTS, live_policy
from turnout.scheduler.journal.summary import FleetTotals, Summary
from turnout.scheduler.operation.amending import Amendments
from turnout.scheduler.operation.metrics import SchedulerMetrics, seconds_since_report
from turnout.scheduler.outcomes import (
    ARRIVED,
    FAILED,
    KINDS,
    LATE,
    MISSED,
    OUTRUN,
    RETURNED,
    STILL_OUT,
    SURPLUS,
)
from turnout.scheduler.records import OpenRound, RecordedOffer, Turn
from turnout.scheduler.reporter import Reporter
from turnout.scheduler.rounds.history import JUDGED_AFTER, ClientHistory
from turnout.scheduler.scheduler import Scheduler
from turnout.scheduler.settings import SchedulerOptions, SchedulerSettings
from turnout.scheduler.slots.records import FilledSlots, Flight
from turnout.scheduler.slots.state import SlotFleet
from turnout.scheduler.slots.turns import GivenTurn, Wait
from turnout.scheduler.status import SchedulerStatus

__all__ = [
    "ARRIVED",
    "FAILED",
    "JUDGED_AFTER",
    "KINDS",
    "LATE",
    "LIVE_DEFAULTS",
    "MISSED",
    "OUTRUN",
    "PAPER_FEATURES",
    "RETURNED",
    "STILL_OUT",
    "SURPLUS",
    "Amendment",
    "Amendments",
    "ClientHistory",
    "ClientStatus",
    "Feature",
    "Features",
    "FilledSlots",
    "Finding",
    "FleetEvent",
    "FleetReader",
    "FleetStatus",
    "FleetTotals",
    "Flight",
    "Follower",
    "GivenTurn",
    "LateTime",
    "OpenRound",
    "RecordedOffer",
    "RecordedRound",
    "RecordedTurn",
    "ReplayStart",
    "Reporter",
    "Scheduler",
    "SchedulerMetrics",
    "SchedulerOptions",
    "SchedulerSettings",
    "SchedulerStatus",
    "SlotFleet",
    "StaleError",
    "Statuses",
    "StoredAnswer",
    "Summary",
    "Turn",
    "Wait",
    "WriterFigures",
    "back_up_fleet",
    "certify",
    "check_client_id",
    "doubled_closes",
    "examine",
    "explain_closed_round",
    "is_fleet",
    "live_policy",
    "remove_doubled_closes",
    "seconds_since_report",
    "verifier",
]
