"""What can be read about a fleet."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header, Path, Query, Request
from starlette.responses import JSONResponse, Response

from turnout.service import answers, replies
from turnout.service.events import EVENT_KINDS
from turnout.service.routes.routing import FLEET, ROUND, STREAM, Fleet, FleetName, Resource, caller_of
from turnout.web.access import READERS, ROLES

QUERIES = Resource()
#: The most clients that a list of the status names.
MAX_NAMED = 1000
#: What a stream sends: text, in which some programs find events before they look at the schema.
_TEXT = {"type": "string", "title": "Text"}
_LINES = {
    "id": {"type": "string", "description": "Its number; of a state, that of the event before it."},
    "event": {"type": "string", "enum": [*EVENT_KINDS, "state", "stale", "unreadable"]},
    "data": {"type": "string", "description": "JSON, as in an export of the fleet."},
}
_EVENT = {"type": "object", "title": "Event", "required": ["event", "data"], "properties": _LINES}
STREAM_CONTENT = {STREAM: {"schema": {"anyOf": [_TEXT, _EVENT], "examples": replies.read_examples()["Event"]}}}
ETAG = {"ETag": {"description": "The same as `etag`.", "schema": {"type": "string"}}}
ClientQuery = Annotated[
    str, Query(min_length=1, max_length=1024, description="The id of the client.", examples=["phone-1"])
]
RoundQuery = Annotated[int | None, Query(ge=1, le=2**62, description="The round; by default the latest.", examples=[1])]
Limit = Annotated[int, Query(ge=1, le=10_000, description="The most entries to list.", examples=[20])]
After = Annotated[
    str | None,
    Query(max_length=40, description="The `next` of the answer before; leave it out to begin.", examples=[None]),
]


@QUERIES.query("/fleets", ROLES, replies.Fleets)
async def list_fleets(request: Request) -> Response:
    """Lists the fleets that the token may use."""
    caller = caller_of(request)
    return JSONResponse({"fleets": [name for name in request.app.state.fleets if caller.may_use(name)]})


@QUERIES.query(FLEET, READERS, replies.FleetReply)
def status(fleet: FleetName, calls: Fleet) -> Response:
    """Shows the state of the fleet, and whether its promise is kept."""
    return JSONResponse({"fleet": fleet, **calls.scheduler.status().to_dict(MAX_NAMED)})


@QUERIES.query(f"{FLEET}/settings", READERS, replies.SettingsReply, headers=ETAG)
def settings(calls: Fleet) -> Response:
    """Shows all settings of the fleet, and the features of a status.

    Send the `etag` as If-Match with an amendment, so that it is refused if somebody else has amended them meanwhile.
    """
    data = answers.settings_to_dict(calls.scheduler)
    return JSONResponse(data, headers={"etag": data["etag"]})


@QUERIES.query(f"{FLEET}/clients", READERS, replies.ClientPage, refusals=[422])
def list_clients(calls: Fleet, limit: Limit = 1000, after: After = None) -> Response:
    """Lists the clients in the order in which they joined."""
    return JSONResponse(answers.clients_to_dict(calls.scheduler, answers.Page(limit, after)))


@QUERIES.query(f"{FLEET}/round", READERS, replies.RoundState)
def round_state(calls: Fleet) -> Response:
    """Shows the open round, and whether it can be closed."""
    scheduler = calls.scheduler
    opened = scheduler.open_round
    if opened is None:
        return JSONResponse({"open": None, "ready": False})
    cohort = [turn.id for turn in scheduler.history(round=opened.round)]
    return JSONResponse({"open": answers.open_round_to_dict(opened, cohort), "ready": scheduler.ready})


@QUERIES.query(f"{FLEET}/rounds/{ROUND}", READERS, replies.RoundPage, refusals=[410, 422])
def show_round(
    calls: Fleet,
    round: Annotated[int, Path(ge=1, le=2**62, description="The number of the round.", examples=[1])],
    limit: Limit = 1000,
    after: After = None,
) -> Response:
    """Shows a round, open or closed, and the outcomes of its turns."""
    return JSONResponse(answers.round_to_dict(calls.scheduler, round, answers.Page(limit, after)))


@QUERIES.query(f"{FLEET}/turns", READERS, replies.Turns, refusals=[409, 422])
def running(calls: Fleet, limit: Limit = 1000, after: After = None) -> Response:
    """Lists the turns whose results are not known yet."""
    return JSONResponse(answers.turns_to_dict(calls.scheduler, answers.Page(limit, after)))


@QUERIES.query(f"{FLEET}/certificate", READERS, replies.CertificatePage, refusals=[409, 422])
def certificate(
    calls: Fleet,
    client: Annotated[
        str | None, Query(min_length=1, max_length=1024, description="Only this client.", examples=["phone-1"])
    ] = None,
    limit: Limit = 20,
    after: After = None,
) -> Response:
    """Shows what clients were promised and got, those that are furthest behind first.

    Between two answers, a client may move from one part of the list to another.
    """
    return JSONResponse(answers.certificate_to_dict(calls.scheduler, client, answers.Page(limit, after)))


@QUERIES.query(f"{FLEET}/explanation", READERS, replies.ExplanationReply, refusals=[409, 422])
def explain(calls: Fleet, client: ClientQuery, round: RoundQuery = None) -> Response:
    """Explains why a client was selected in a round, or what it lacked."""
    return JSONResponse(answers.explanation_to_dict(calls.scheduler.explain(client, round)))


@QUERIES.query(f"{FLEET}/history", READERS, replies.History, refusals=[422])
def history(calls: Fleet, client: ClientQuery, limit: Limit = 100, after: After = None) -> Response:
    """Lists the turns of a client with their outcomes, the newest first."""
    return JSONResponse(answers.history_to_dict(calls.scheduler, client, answers.Page(limit, after)))


@QUERIES.query(
    f"{FLEET}/events",
    READERS,
    None,
    refusals=[410, 422],
    description="A stream of server-sent events: the lines `id`, `event` and `data` of each; `data` is JSON.",
    content=STREAM_CONTENT,
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
