"""What calls change: the clients and settings of a fleet, rounds, turns without rounds, and the outcomes of turns."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from starlette.requests import Request

from turnout.errors import ReportError, SettingError, TurnoutError
from turnout.live import FleetStatus, RunningTurn, Scheduler, Wait
from turnout.live import _internals as internals
from turnout.live._internals import StoredAnswer, forget_in_steps
from turnout.service import models, replies
from turnout.service.access import own_client
from turnout.service.answers import open_round_to_dict, round_to_dict, settings_to_dict, turn_to_dict
from turnout.service.calls import Answer
from turnout.service.errors import AmendedError, ClosedRoundError, DeniedError, OtherRoundError, code_of
from turnout.service.routes.bodies import read_in_steps
from turnout.service.routes.routing import FLEET, OPERATORS, REPORTERS, ROUND, SERVERS, Resource, caller_of
from turnout.web.access import Caller

CHANGES = Resource()
#: How many turns are given in one transaction among very many clients, which takes about 0.2 s.
TURNS_AT_ONCE = 10
ROUND_NUMBER: Mapping[str, Any] = {
    "name": "round",
    "in": "path",
    "required": True,
    "description": "The number of the open round, so that a late or repeated request closes no other.",
    "schema": {"type": "integer", "minimum": 1, "maximum": 2**62, "examples": [1]},
}
#: The statuses of nobody: a fleet of the other kind refuses the call, and an open round needs none.
_NOBODY = FleetStatus({})
IF_MATCH: Mapping[str, Any] = {
    "name": "If-Match",
    "in": "header",
    "description": "The `etag` of the settings that you have read: if they were amended since, the answer is 412.",
    "schema": {"type": "string", "maxLength": 1000, "examples": ["*"]},
}


@CHANGES.change(f"{FLEET}/clients", SERVERS, replies.Registered)
def register(scheduler: Scheduler, body: models.Registration, _: Request) -> Answer:
    """Adds clients before they are first available. Clients that are selected or check in join by themselves.

    Of very many clients, 100,000 join in one transaction: if it is interrupted, send the request again.
    """
    new = scheduler.register(body.clients)
    return Answer({"new": new}, is_change=new > 0)


@CHANGES.change(f"{FLEET}/amendments", OPERATORS, replies.Amended, parameters=[IF_MATCH], refusals=[412])
def amend(scheduler: Scheduler, body: models.AmendmentRequest, request: Request) -> Answer:
    """Changes settings of the fleet from the next round on.

    With If-Match, the settings must be those that the caller has read, so that two operators do not undo what the other
    has changed.
    """
    if "features" in body.settings:
        raise SettingError("features cannot be amended over HTTP: amend them in Python")
    tags, etag = request.headers.get("if-match"), settings_to_dict(scheduler)["etag"]
    if tags is not None and not {"*", etag} & {tag.strip() for tag in tags.split(",")}:
        raise AmendedError("the settings were amended since you read them: GET /settings, and decide again")
    changed = scheduler.amend(**body.settings)
    return Answer({"changed": changed, "etag": settings_to_dict(scheduler)["etag"]}, is_change=bool(changed))


@CHANGES.change(f"{FLEET}/retirements", OPERATORS, replies.Empty)
def retire(scheduler: Scheduler, body: models.ClientName, _: Request) -> Answer:
    """Excludes a client that has left for good."""
    scheduler.retire(body.client)
    return Answer({})


@CHANGES.change(f"{FLEET}/removals", OPERATORS, replies.Empty, is_stepped=True)
def forget(scheduler: Scheduler, body: models.ClientName, answer: StoredAnswer | None) -> Iterator[None]:
    """Removes the id and all reports of a client, and its tokens; its turns stay in the certificate."""
    return forget_in_steps(scheduler, body.client, answer)


def choose_in_steps(
    scheduler: Scheduler, body: models.Available, answer: StoredAnswer | None
) -> Generator[str | None, None, None]:
    """Does the same as `choose` for very many clients, which are read in steps."""
    offered = _NOBODY
    if scheduler.settings.has_rounds and scheduler.open_round is None:
        offered = yield from read_in_steps(internals.session_of(scheduler), body.offered)
    with scheduler.group():
        text = _stored(scheduler, answer, _chosen(scheduler, offered, body.cold))
    yield text


@CHANGES.change(f"{FLEET}/rounds", SERVERS, replies.SelectedRound, in_steps=choose_in_steps)
def choose(scheduler: Scheduler, body: models.Available, _: Request) -> Answer:
    """Selects the cohort of the next round; while a round is open, returns its cohort again."""
    return Answer(_chosen(scheduler, body.offered, body.cold))


def _chosen(
    scheduler: Scheduler, offered: FleetStatus | Mapping[str, Any] | Sequence[str], cold: Sequence[str]
) -> dict[str, Any]:
    cohort = scheduler.choose(offered, cold=cold)
    opened = scheduler.open_round
    assert opened is not None, "choose opens a round"
    clients = map(asdict, internals.selected_clients(internals.session_of(scheduler)))
    return {**open_round_to_dict(opened, cohort), "clients": list(clients)}


def _stored(scheduler: Scheduler, answer: StoredAnswer | None, data: Mapping[str, Any]) -> str:
    """Stores what a stepped change answers so far, if the request has a key, and returns it as JSON."""
    text = Answer(data).text
    if answer is not None:
        internals.session_of(scheduler).store_answer(replace(answer, answer=text))
    return text


@CHANGES.change(f"{FLEET}/rounds/{ROUND}/close", SERVERS, replies.RoundPage, parameters=[ROUND_NUMBER])
def close_round(scheduler: Scheduler, body: models.Closing, request: Request) -> Answer:
    """Closes the round with the clients that have reported."""
    _check_open(scheduler, request.path_params["round"])
    return Answer(round_to_dict(scheduler, scheduler.close_round(body.after).round))


@CHANGES.change(f"{FLEET}/rounds/{ROUND}/abandon", SERVERS, replies.Abandoned, parameters=[ROUND_NUMBER])
def abandon_round(scheduler: Scheduler, body: models.Nothing, request: Request) -> Answer:  # noqa: ARG001  # it names the model
    """Cancels a round without any reports, as if its cohort had never been selected."""
    _check_open(scheduler, request.path_params["round"])
    scheduler.abandon_round()
    return Answer({"round": request.path_params["round"]})


def listen(scheduler: Scheduler, body: models.CheckIn, request: Request) -> Answer:
    """Does the same as `check_in` for a device that waits in its call."""
    return _checked_in(internals.listen(scheduler, own_client(caller_of(request), body.client), body.status))


@CHANGES.change(f"{FLEET}/check-ins", REPORTERS, replies.CheckInReply, listen=listen)
def check_in(scheduler: Scheduler, body: models.CheckIn, request: Request) -> Answer:
    """Answers a device that asks for work: its turn, or how long to wait.

    A device whose answer was lost asks again, and gets the same turn.
    """
    return _checked_in(scheduler.check_in(own_client(caller_of(request), body.client), body.status))


def _checked_in(answer: RunningTurn | Wait) -> Answer:
    if isinstance(answer, RunningTurn):
        return Answer({"turn": turn_to_dict(answer), "wait": None})
    return Answer({"turn": None, "wait": {"seconds": answer.seconds, "why": answer.why}}, is_change=False)


def fill_in_steps(
    scheduler: Scheduler, body: models.Available, answer: StoredAnswer | None
) -> Generator[str | None, None, None]:
    """Does the same as `fill` for very many clients: they are read in steps, and so are their turns given.

    The answer is stored with every turn that it contains. After an interruption, the same request is answered with the
    turns that were given before.
    """
    turns, offered = list[RunningTurn](), _NOBODY
    if not scheduler.settings.has_rounds:
        offered = yield from read_in_steps(internals.session_of(scheduler), body.offered)
    is_left = True
    while is_left:
        with scheduler.group():
            given = internals.fill_some(scheduler, offered, frozenset(body.cold), TURNS_AT_ONCE)
            turns += given
            text = _stored(scheduler, answer if turns else None, _turns_to_dict(turns))
        yield text
        is_left = len(given) == TURNS_AT_ONCE and len(turns) < (scheduler.settings.concurrency or 1)


@CHANGES.change(f"{FLEET}/turns", SERVERS, replies.Turns, in_steps=fill_in_steps)
def fill(scheduler: Scheduler, body: models.Available, _: Request) -> Answer:
    """Gives one client a turn for every free slot, after ending the turns that were reported or are late.

    With very many clients, some slots are filled in one transaction: if it is interrupted, send the request again.
    """
    turns = scheduler.fill(body.offered, cold=body.cold)
    return Answer(_turns_to_dict(turns), is_change=bool(turns))


def _turns_to_dict(turns: Sequence[RunningTurn]) -> dict[str, Any]:
    return {"turns": [turn_to_dict(turn) for turn in turns], "next": None}


@CHANGES.change(f"{FLEET}/reports", REPORTERS, replies.RecordReply)
def report(scheduler: Scheduler, body: models.Report, request: Request) -> Answer:
    """Records that the update of a client has arrived."""
    is_new = _report(scheduler, body, caller_of(request))
    return Answer({"new": is_new}, is_change=is_new)


@CHANGES.change(f"{FLEET}/reports/batch", SERVERS, replies.RecordedBatch)
def report_batch(scheduler: Scheduler, body: models.ReportBatch, request: Request) -> Answer:
    """Records many arrivals, 2,000 in one transaction. A report that is refused does not prevent the others."""
    new, refused = 0, []
    for index, one in enumerate(body.reports):
        try:
            new += _report(scheduler, one, caller_of(request))
        except TurnoutError as error:
            refused.append({"index": index, "code": code_of(error), "detail": str(error)})
    return Answer({"new": new, "refused": refused}, is_change=new > 0)


@CHANGES.change(f"{FLEET}/failures", REPORTERS, replies.RecordReply)
def report_failure(scheduler: Scheduler, body: models.Failure, request: Request) -> Answer:
    """Records that a client has failed."""
    caller = caller_of(request)
    if body.turn is not None:
        _check_turn(scheduler, caller, body.turn, body.client)
        is_new = scheduler.report_failure(body.turn, body.why)
    else:
        is_new = scheduler.report_failure(own_client(caller, body.client), body.why, round=body.round)
    return Answer({"new": is_new}, is_change=is_new)


def _check_open(scheduler: Scheduler, round: int) -> None:
    """Raises an error if another round is open, or none: a request that is late must not close a later round."""
    opened = scheduler.open_round
    if not scheduler.settings.has_rounds or (opened is not None and opened.round == round):
        return  # the scheduler refuses to close rounds where there are none
    if 1 <= round <= scheduler.round:
        raise ClosedRoundError(f"round {round} is closed already: GET /rounds/{round} shows it")
    raise OtherRoundError(f"round {round} is not open: {'no round' if opened is None else f'round {opened.round}'} is")


def _report(scheduler: Scheduler, report: models.Report, caller: Caller) -> bool:
    if report.turn is not None:
        _check_turn(scheduler, caller, report.turn, report.client)
        return scheduler.report(report.turn, report.seconds, loss=report.loss, signals=report.signals)
    client = own_client(caller, report.client)
    if report.seconds is None and not scheduler.settings.has_rounds:
        raise ReportError(f"send the turn of {client!r}, or the seconds that it took")
    return scheduler.report(client, report.seconds, loss=report.loss, signals=report.signals, round=report.round)


def _check_turn(scheduler: Scheduler, caller: Caller, turn: int, client: str | None) -> None:
    """Raises an error if the turn is not of the client that is named, or whose device calls."""
    if caller.client is None and client is None:
        return
    named = own_client(caller, client)
    if scheduler.settings.has_rounds:
        return  # the scheduler refuses ids of turns
    if any(given.id != named for given in scheduler.history(round=turn)):
        raise DeniedError(f"turn {turn} was not given to {named!r}: check the id of the turn")
