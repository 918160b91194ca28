"""Turns without rounds, and the outcomes of all turns."""

from __future__ import annotations

from starlette.responses import JSONResponse, Response

from turnout.errors import ReportError, TurnoutError
from turnout.live import RunningTurn, Scheduler
from turnout.service import models, replies
from turnout.service.access.callers import own_client
from turnout.service.answers import turn_to_dict
from turnout.service.calls import Answer
from turnout.service.errors import DeniedError
from turnout.service.routes.routing import FLEET, REPORTERS, SERVERS, Fleet, Resource
from turnout.web.access import READERS, Caller

TURNS = Resource()


@TURNS.change(f"{FLEET}/check-ins", REPORTERS, replies.CheckInReply)
def check_in(scheduler: Scheduler, body: models.CheckIn, caller: Caller) -> Answer:
    """Answers a device that asks for work: its turn, or how long to wait.

    A device whose answer was lost asks again, and gets the same turn.
    """
    found = scheduler.check_in(own_client(caller, body.client), body.status)
    if isinstance(found, RunningTurn):
        return Answer({"turn": turn_to_dict(found), "wait": None})
    return Answer({"turn": None, "wait": {"seconds": found.seconds, "why": found.why}}, is_change=False)


@TURNS.change(f"{FLEET}/turns", SERVERS, replies.Turns)
def fill(scheduler: Scheduler, body: models.Available, _: Caller) -> Answer:
    """Gives one client a turn for every free slot, after ending the turns that were reported or are late."""
    return Answer({"turns": [turn_to_dict(turn) for turn in scheduler.fill(body.offered)]})


@TURNS.query(f"{FLEET}/turns", READERS, replies.Turns)
def running(calls: Fleet) -> Response:
    """Lists the turns whose results are not known yet."""
    return JSONResponse({"turns": [turn_to_dict(turn) for turn in calls.scheduler.running()]})


@TURNS.change(f"{FLEET}/reports", REPORTERS, replies.RecordReply)
def report(scheduler: Scheduler, body: models.Report, caller: Caller) -> Answer:
    """Records that the update of a client has arrived."""
    return Answer({"new": _report(scheduler, body, caller)})


@TURNS.change(f"{FLEET}/reports/batch", SERVERS, replies.RecordedBatch)
def report_batch(scheduler: Scheduler, body: models.ReportBatch, caller: Caller) -> Answer:
    """Records many arrivals in one transaction. A report that is refused does not prevent the others."""
    new, refused = 0, []
    for index, one in enumerate(body.reports):
        try:
            new += _report(scheduler, one, caller)
        except TurnoutError as error:
            refused.append({"index": index, "error": str(error)})
    return Answer({"new": new, "refused": refused})


@TURNS.change(f"{FLEET}/failures", REPORTERS, replies.RecordReply)
def report_failure(scheduler: Scheduler, body: models.Failure, caller: Caller) -> Answer:
    """Records that a client has failed."""
    if body.turn is not None:
        _check_turn(scheduler, caller, body.turn, body.client)
        return Answer({"new": scheduler.report_failure(body.turn, body.why)})
    return Answer({"new": scheduler.report_failure(own_client(caller, body.client), body.why, round=body.round)})


def _report(scheduler: Scheduler, report: models.Report, caller: Caller) -> bool:
    if report.turn is not None:
        _check_turn(scheduler, caller, report.turn, report.client)
        return scheduler.report(report.turn, report.seconds, loss=report.loss)
    client = own_client(caller, report.client)
    if report.seconds is None and not scheduler.settings.has_rounds:
        raise ReportError(f"send the turn of {client!r}, or the seconds that it took")
    return scheduler.report(client, report.seconds, loss=report.loss, round=report.round)


def _check_turn(scheduler: Scheduler, caller: Caller, turn: int, client: str | None) -> None:
    """Raises an error if the turn is not of the client that is named, or whose device calls."""
    if caller.client is None and client is None:
        return
    named = own_client(caller, client)
    if scheduler.settings.has_rounds:
        return  # the scheduler refuses ids of turns
    if any(given.id != named for given in scheduler.history(round=turn)):
        raise DeniedError(f"turn {turn} was not given to {named!r}: check the id of the turn")
