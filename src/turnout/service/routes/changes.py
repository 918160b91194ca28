"""What calls change: the clients and settings of a fleet, rounds, turns without rounds, and the outcomes of turns."""

from __future__ import annotations

from collections.abc import Iterator

from turnout.errors import ReportError, TurnoutError
from turnout.live import RunningTurn, Scheduler, Wait
from turnout.live import _internals as internals
from turnout.live._internals import StoredAnswer, forget_in_steps
from turnout.service import models, replies
from turnout.service.access.callers import own_client
from turnout.service.answers import round_to_dict, turn_to_dict
from turnout.service.calls import Answer
from turnout.service.errors import DeniedError
from turnout.service.routes.routing import FLEET, OPERATORS, REPORTERS, SERVERS, Resource
from turnout.web.access import Caller

CHANGES = Resource()


@CHANGES.change(f"{FLEET}/clients", SERVERS, replies.Registered)
def register(scheduler: Scheduler, body: models.Registration, _: Caller) -> Answer:
    """Adds clients before they are first available. Clients that are selected or check in join by themselves.

    Of very many clients, 100,000 join in one transaction: if it is interrupted, send the request again.
    """
    return Answer({"new": scheduler.register(body.clients)})


@CHANGES.change(f"{FLEET}/amendments", OPERATORS, replies.Amended)
def amend(scheduler: Scheduler, body: models.AmendmentRequest, _: Caller) -> Answer:
    """Changes settings of the fleet from the next round on."""
    if "features" in body.settings:
        raise ReportError("features cannot be amended over HTTP: amend them in Python")
    return Answer({"changed": scheduler.amend(**body.settings)})


@CHANGES.change(f"{FLEET}/retirements", OPERATORS, replies.Empty)
def retire(scheduler: Scheduler, body: models.ClientName, _: Caller) -> Answer:
    """Excludes a client that has left for good."""
    scheduler.retire(body.client)
    return Answer({})


@CHANGES.change(f"{FLEET}/removals", OPERATORS, replies.Empty, is_stepped=True)
def forget(scheduler: Scheduler, body: models.ClientName, answer: StoredAnswer | None) -> Iterator[None]:
    """Removes the id and all reports of a client, and its tokens; its turns stay in the certificate."""
    return forget_in_steps(scheduler, body.client, answer)


@CHANGES.change(f"{FLEET}/rounds", SERVERS, replies.Round)
def choose(scheduler: Scheduler, body: models.Available, _: Caller) -> Answer:
    """Selects the cohort of the next round; while a round is open, returns its cohort again."""
    cohort = scheduler.choose(body.offered)
    opened = scheduler.open_round
    assert opened is not None, "choose opens a round"
    return Answer(round_to_dict(opened, cohort))


@CHANGES.change(f"{FLEET}/rounds/close", SERVERS, replies.ClosedRoundReply)
def close_round(scheduler: Scheduler, body: models.Closing, _: Caller) -> Answer:
    """Closes the round with the clients that have reported."""
    closed = scheduler.close_round(body.after).round
    return Answer({"round": closed, "turns": [turn.to_dict() for turn in scheduler.history(round=closed)]})


@CHANGES.change(f"{FLEET}/rounds/abandon", SERVERS, replies.Abandoned)
def abandon_round(scheduler: Scheduler, body: models.Nothing, _: Caller) -> Answer:  # noqa: ARG001  # it names the model
    """Cancels a round without any reports, as if its cohort had never been selected."""
    round_ = scheduler.round
    scheduler.abandon_round()
    return Answer({"round": round_})


def listen(scheduler: Scheduler, body: models.CheckIn, caller: Caller) -> Answer:
    """Does the same as `check_in` for a device that waits in its call."""
    return _checked_in(internals.listen(scheduler, own_client(caller, body.client), body.status))


@CHANGES.change(f"{FLEET}/check-ins", REPORTERS, replies.CheckInReply, listen=listen)
def check_in(scheduler: Scheduler, body: models.CheckIn, caller: Caller) -> Answer:
    """Answers a device that asks for work: its turn, or how long to wait.

    A device whose answer was lost asks again, and gets the same turn.
    """
    return _checked_in(scheduler.check_in(own_client(caller, body.client), body.status))


def _checked_in(answer: RunningTurn | Wait) -> Answer:
    if isinstance(answer, RunningTurn):
        return Answer({"turn": turn_to_dict(answer), "wait": None})
    return Answer({"turn": None, "wait": {"seconds": answer.seconds, "why": answer.why}}, is_change=False)


@CHANGES.change(f"{FLEET}/turns", SERVERS, replies.Turns)
def fill(scheduler: Scheduler, body: models.Available, _: Caller) -> Answer:
    """Gives one client a turn for every free slot, after ending the turns that were reported or are late."""
    return Answer({"turns": [turn_to_dict(turn) for turn in scheduler.fill(body.offered)]})


@CHANGES.change(f"{FLEET}/reports", REPORTERS, replies.RecordReply)
def report(scheduler: Scheduler, body: models.Report, caller: Caller) -> Answer:
    """Records that the update of a client has arrived."""
    return Answer({"new": _report(scheduler, body, caller)})


@CHANGES.change(f"{FLEET}/reports/batch", SERVERS, replies.RecordedBatch)
def report_batch(scheduler: Scheduler, body: models.ReportBatch, caller: Caller) -> Answer:
    """Records many arrivals, 2,000 in one transaction. A report that is refused does not prevent the others."""
    new, refused = 0, []
    for index, one in enumerate(body.reports):
        try:
            new += _report(scheduler, one, caller)
        except TurnoutError as error:
            refused.append({"index": index, "error": str(error)})
    return Answer({"new": new, "refused": refused})


@CHANGES.change(f"{FLEET}/failures", REPORTERS, replies.RecordReply)
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
