"""What can be read about a fleet."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header, Query, Request
from starlette.responses import JSONResponse, Response

from turnout.service import replies
from turnout.service.answers import certificate_to_dict, explanation_to_dict, round_to_dict, turn_to_dict
from turnout.service.events import EVENT_KINDS
from turnout.service.routes.routing import FLEET, STREAM, Fleet, Resource, caller_of
from turnout.web.access import READERS, ROLES

QUERIES = Resource()
#: The most clients that a list of the status names.
MAX_NAMED = 1000
EVENT_SCHEMA = {
    "title": "Event",
    "description": "The fields of each event; `data` is JSON, as in an export of the fleet.",
    "type": "object",
    "required": ["event", "data"],
    "properties": {
        "id": {"type": "string", "description": "The number of the event; that of the event before it for a state."},
        "event": {"type": "string", "enum": [*EVENT_KINDS, "state", "stale", "unreadable"]},
        "data": {"type": "string"},
    },
    "examples": replies.read_examples()["Event"],
}
ClientQuery = Annotated[
    str, Query(min_length=1, max_length=1024, description="The id of the client.", examples=["phone-1"])
]
RoundQuery = Annotated[int | None, Query(ge=1, le=2**62, description="The round; by default the latest.", examples=[1])]
Limit = Annotated[int, Query(ge=1, le=10_000, description="The most entries to list.", examples=[20])]


@QUERIES.query("/fleets", ROLES, replies.Fleets)
async def list_fleets(request: Request) -> Response:
    """Lists the fleets that the token may use."""
    caller = caller_of(request)
    return JSONResponse({"fleets": [name for name in request.app.state.fleets if caller.may_use(name)]})


@QUERIES.query(FLEET, READERS, replies.FleetReply)
def status(fleet: str, calls: Fleet) -> Response:
    """Shows the state of the fleet, and whether its promise is kept."""
    return JSONResponse({"fleet": fleet, **calls.scheduler.status().to_dict(MAX_NAMED)})


@QUERIES.query(f"{FLEET}/round", READERS, replies.RoundState)
def round_state(calls: Fleet) -> Response:
    """Shows the open round, and whether it can be closed."""
    scheduler = calls.scheduler
    opened = scheduler.open_round
    if opened is None:
        return JSONResponse({"open": None, "ready": False})
    cohort = [turn.id for turn in scheduler.history(round=opened.round)]
    return JSONResponse({"open": round_to_dict(opened, cohort), "ready": scheduler.ready})


@QUERIES.query(f"{FLEET}/turns", READERS, replies.Turns)
def running(calls: Fleet) -> Response:
    """Lists the turns whose results are not known yet."""
    return JSONResponse({"turns": [turn_to_dict(turn) for turn in calls.scheduler.running()]})


@QUERIES.query(f"{FLEET}/certificate", READERS, replies.CertificatePage)
def certificate(
    calls: Fleet,
    client: Annotated[
        str | None, Query(min_length=1, max_length=1024, description="Only this client.", examples=["phone-1"])
    ] = None,
    limit: Limit = 20,
) -> Response:
    """Shows what clients were promised and got, those that are furthest behind first."""
    return JSONResponse(certificate_to_dict(calls.scheduler, client, limit))


@QUERIES.query(f"{FLEET}/explanation", READERS, replies.ExplanationReply)
def explain(calls: Fleet, client: ClientQuery, round: RoundQuery = None) -> Response:
    """Explains why a client was selected in a round, or what it lacked."""
    return JSONResponse(explanation_to_dict(calls.scheduler.explain(client, round)))


@QUERIES.query(f"{FLEET}/history", READERS, replies.History)
def history(calls: Fleet, client: ClientQuery, limit: Limit = 100) -> Response:
    """Lists the newest turns of a client, with their outcomes."""
    turns = calls.scheduler.history(client)
    return JSONResponse({"turns": [turn.to_dict() for turn in turns[-limit:]], "of": len(turns)})


@QUERIES.query(
    f"{FLEET}/events",
    READERS,
    None,
    description="A stream of server-sent events.",
    content={STREAM: {"schema": EVENT_SCHEMA}},
)
async def events(
    request: Request,
    calls: Fleet,
    after: Annotated[
        int | None,
        Query(
            ge=0,
            le=2**62,
            description="The number of the last event that you have; 0 for all that are kept.",
            examples=[0],
        ),
    ] = None,
    follow: Annotated[bool, Query(description="Whether to wait for further events.", examples=[False])] = True,
    last: Annotated[
        int | None,
        Header(alias="Last-Event-ID", ge=0, le=2**62, description="Replaces `after`; browsers send it.", examples=[2]),
    ] = None,
) -> Response:
    """Streams what happens, as server-sent events; by default, from now on.

    The events are *joined*, *retired*, *forgotten*, *amended*, *closed* (a round) and *filled* (slots). Between them,
    *state* says how many updates the open round has and whether it can be closed, or how many turns are running; its
    id is that of the event before it. A stream ends after ten minutes: open it again with the last id to miss nothing.
    *stale*: the next events are no longer kept. *unreadable*: the file cannot be read.
    """
    return await calls.events.respond(request, last if last is not None else after, follow=follow)
