"""The routes of the service: what each does, and which roles may use it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response, StreamingResponse

from turnout.errors import ReportError, TurnoutError
from turnout.live import GivenTurn, Scheduler
from turnout.live._internals import forget_in_steps
from turnout.service import models
from turnout.service.access.callers import Caller, caller_of
from turnout.service.access.guard import JSON
from turnout.service.access.tokens import Role
from turnout.service.answers import (
    certificate_to_dict,
    explanation_to_dict,
    round_to_dict,
    status_to_dict,
    turn_to_dict,
)
from turnout.service.calls import Answer, FleetCalls, GroupedCall, RequestKey
from turnout.service.errors import DeniedError, UnknownFleetError
from turnout.service.events import EVENT_KINDS, stream

#: Who may use a route.
EVERYONE: tuple[Role, ...] = ("device", "server", "operator", "viewer")
READERS: tuple[Role, ...] = ("server", "operator", "viewer")
SERVERS: tuple[Role, ...] = ("server", "operator")
REPORTERS: tuple[Role, ...] = ("device", "server", "operator")
OPERATORS: tuple[Role, ...] = ("operator",)
ROLES_FIELD = "x-roles"
#: Where the roles of a route stand in the OpenAPI document.
STREAM = "text/event-stream"
STREAM_SCHEMA = {
    "schema": {
        "title": "Event",
        "description": "The fields of each event; `data` is JSON.",
        "type": "object",
        "required": ["event", "data"],
        "properties": {
            "id": {
                "type": "string",
                "description": "The number of the event; that of the event before it for a state.",
            },
            "event": {"type": "string", "enum": [*EVENT_KINDS, "state", "stale", "trouble"]},
            "data": {"type": "string"},
        },
    }
}
ERROR_SCHEMA = {"$ref": "#/components/schemas/Error"}
REFUSALS: Mapping[int, str] = {
    400: "The request is malformed.",
    401: "There is no token, or it is unknown, revoked or expired.",
    403: "The role of the token does not allow this, or the token is of the device of another client.",
    404: "There is no such fleet for this token, or no such client.",
    409: "The state or the settings of the fleet do not allow this.",
    410: "These events are no longer kept.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    421: "A service without tokens accepts only loopback host names.",
    422: "A value is invalid, or the Idempotency-Key was used for another request.",
    429: "Too many calls are waiting, or the token is used too often: retry after Retry-After seconds, with the same "
    "Idempotency-Key.",
    431: "The headers are too large.",
    503: "The file cannot be written now, or the service is shutting down: retry with the same Idempotency-Key.",
}

Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        pattern=r"^[\x21-\x7e]+$",
        description="A key that no other request of this token has, such as a UUID. A request that is sent again with "
        "the same key is not executed again: the first answer is returned, for a day at least.",
    ),
]
ClientQuery = Annotated[str, Query(min_length=1, max_length=1024, description="The id of the client.")]
RoundQuery = Annotated[int | None, Query(ge=1, le=2**62, description="The round; by default the latest.")]


def check_access(request: Request, fleet: str | None, roles: Iterable[str]) -> None:
    """Raises an error if the caller must not use a fleet, or has none of the roles that a route needs."""
    caller = caller_of(request)
    if fleet is not None and (fleet not in request.app.state.fleets or caller.fleet not in (None, fleet)):
        raise UnknownFleetError(f"there is no fleet {fleet!r} for this token: check the address")
    if caller.role not in roles:
        raise DeniedError(f"the role {caller.role} does not allow this: it needs {' or '.join(sorted(roles))}")


class RoleRoute(APIRoute):
    """A route that checks the fleet and the role of the caller before it reads the body."""

    def get_route_handler(self) -> Callable[[Request], Any]:
        """Returns the handler of the route, behind the check."""
        handler = super().get_route_handler()
        roles = frozenset((self.openapi_extra or {})[ROLES_FIELD])

        async def checked(request: Request) -> Response:
            check_access(request, request.path_params.get("fleet"), roles)
            response: Response = await handler(request)
            return response

        return checked


def make_router(fleets: Mapping[str, FleetCalls], is_ending: Callable[[], bool]) -> APIRouter:
    """Returns all routes about these fleets.

    Args:
        fleets: The fleets by name.
        is_ending: Returns whether the service is shutting down, so that streams must end.
    """
    router = APIRouter(prefix="/v1", route_class=RoleRoute)

    def route(
        method: str, path: str, roles: tuple[Role, ...], model: type[models.Reply] | None
    ) -> Callable[[Any], Any]:
        # FastAPI builds a validator for each response with a model, which would take most of the time of the start.
        # So one response names the model, which puts its schema into the document, and the others refer to it.
        refusals: dict[int | str, dict[str, Any]] = {
            status: {"description": text, "content": {JSON: {"schema": ERROR_SCHEMA}}}
            for status, text in REFUSALS.items()
        }
        refusals[400] = {"description": REFUSALS[400], "model": models.Error}
        if model is None:
            refusals[200] = {"description": "A stream of server-sent events.", "content": {STREAM: STREAM_SCHEMA}}

        def add(endpoint: Any) -> Any:
            router.add_api_route(
                path,
                endpoint,
                methods=[method],
                response_model=model,
                response_class=JSONResponse if model is not None else StreamingResponse,
                operation_id=endpoint.__name__,
                responses=refusals,
                openapi_extra={ROLES_FIELD: list(roles), "security": [{"token": []}]},
            )
            return endpoint

        return add

    async def change(request: Request, fleet: str, key: str | None, call: GroupedCall) -> Response:
        text = await fleets[fleet].execute(call, await _request_key(request, key))
        return Response(text, media_type=JSON)

    @route("GET", "/fleets", EVERYONE, models.Fleets)
    async def list_fleets(request: Request) -> Response:
        """Lists the fleets that the token may use."""
        caller = caller_of(request)
        return JSONResponse({"fleets": [name for name in fleets if caller.fleet in (None, name)]})

    # Clients and settings

    @route("POST", "/fleets/{fleet}/clients", SERVERS, models.Registered)
    async def register(request: Request, fleet: str, body: models.Registration, key: Key = None) -> Response:
        """Adds clients before they are first available. Clients that are selected or check in join by themselves."""
        return await change(request, fleet, key, lambda scheduler: Answer({"new": scheduler.register(body.clients)}))

    @route("POST", "/fleets/{fleet}/amendments", OPERATORS, models.Amended)
    async def amend(request: Request, fleet: str, body: models.Amendment, key: Key = None) -> Response:
        """Changes settings of the fleet from the next round on."""

        def call(scheduler: Scheduler) -> Answer:
            changes: dict[str, Any] = dict(body.settings)
            if "features" in changes:
                raise ReportError("features cannot be amended over HTTP: amend them in Python")
            return Answer({"changed": scheduler.amend(**changes)})

        return await change(request, fleet, key, call)

    @route("POST", "/fleets/{fleet}/retirements", OPERATORS, models.Done)
    async def retire(request: Request, fleet: str, body: models.ClientName, key: Key = None) -> Response:
        """Excludes a client that has left for good."""

        def call(scheduler: Scheduler) -> Answer:
            scheduler.retire(body.client)
            return Answer({})

        return await change(request, fleet, key, call)

    @route("POST", "/fleets/{fleet}/removals", OPERATORS, models.Done)
    async def forget(request: Request, fleet: str, body: models.ClientName, key: Key = None) -> Response:
        """Removes the id and all reports of a client, and its tokens; its turns stay in the certificate."""

        def steps(scheduler: Scheduler) -> Iterator[None]:
            yield from forget_in_steps(scheduler, body.client)
            request.app.state.remove_tokens(fleet, body.client)

        text = await fleets[fleet].execute_steps(steps, await _request_key(request, key))
        return Response(text, media_type=JSON)

    # Rounds

    @route("POST", "/fleets/{fleet}/rounds", SERVERS, models.Round)
    async def choose(request: Request, fleet: str, body: models.Available, key: Key = None) -> Response:
        """Selects the cohort of the next round; while a round is open, returns its cohort again."""

        def call(scheduler: Scheduler) -> Answer:
            cohort = scheduler.choose(body.offered)
            opened = scheduler.open_round
            assert opened is not None, "choose opens a round"
            return Answer(round_to_dict(opened, cohort))

        return await change(request, fleet, key, call)

    @route("POST", "/fleets/{fleet}/rounds/close", SERVERS, models.ClosedRound)
    async def close_round(request: Request, fleet: str, body: models.Closing, key: Key = None) -> Response:
        """Closes the round with the clients that have reported."""

        def call(scheduler: Scheduler) -> Answer:
            closed = scheduler.close_round(body.after).round
            turns = [turn.to_dict() for turn in scheduler.history(round=closed)]
            return Answer({"round": closed, "turns": turns})

        return await change(request, fleet, key, call)

    @route("POST", "/fleets/{fleet}/rounds/abandon", SERVERS, models.Abandoned)
    async def abandon_round(request: Request, fleet: str, body: models.Nothing, key: Key = None) -> Response:  # noqa: ARG001
        """Cancels a round without any reports, as if its cohort had never been selected."""

        def call(scheduler: Scheduler) -> Answer:
            round_ = scheduler.round
            scheduler.abandon_round()
            return Answer({"round": round_})

        return await change(request, fleet, key, call)

    @route("GET", "/fleets/{fleet}/round", READERS, models.RoundState)
    def round_state(fleet: str) -> Response:
        """Shows the open round, and whether it can be closed."""
        scheduler = fleets[fleet].scheduler
        opened = scheduler.open_round
        if opened is None:
            return JSONResponse({"open": None, "ready": False})
        cohort = [turn.id for turn in scheduler.history(round=opened.round)]
        return JSONResponse({"open": round_to_dict(opened, cohort), "ready": scheduler.ready})

    # Turns without rounds

    @route("POST", "/fleets/{fleet}/check-ins", REPORTERS, models.CheckedIn)
    async def check_in(request: Request, fleet: str, body: models.CheckIn, key: Key = None) -> Response:
        """Answers a device that asks for work: its turn, or how long to wait.

        A device whose answer was lost asks again, and gets the same turn.
        """
        client = caller_of(request).own_client(body.client)

        def call(scheduler: Scheduler) -> Answer:
            found = scheduler.check_in(client, body.status)
            if isinstance(found, GivenTurn):
                return Answer({"turn": turn_to_dict(found), "wait": None})
            return Answer({"turn": None, "wait": {"seconds": found.seconds, "why": found.why}}, is_change=False)

        return await change(request, fleet, key, call)

    @route("POST", "/fleets/{fleet}/turns", SERVERS, models.Turns)
    async def fill(request: Request, fleet: str, body: models.Available, key: Key = None) -> Response:
        """Gives one client a turn for every free slot, after ending the turns that were reported or are late."""
        return await change(
            request,
            fleet,
            key,
            lambda scheduler: Answer({"turns": [turn_to_dict(turn) for turn in scheduler.fill(body.offered)]}),
        )

    @route("GET", "/fleets/{fleet}/turns", READERS, models.Turns)
    def in_flight(fleet: str) -> Response:
        """Lists the turns whose results are not known yet."""
        return JSONResponse({"turns": [turn_to_dict(turn) for turn in fleets[fleet].scheduler.in_flight()]})

    # Outcomes

    @route("POST", "/fleets/{fleet}/reports", REPORTERS, models.Recorded)
    async def report(request: Request, fleet: str, body: models.Report, key: Key = None) -> Response:
        """Records that the update of a client has arrived."""
        caller = caller_of(request)
        return await change(request, fleet, key, lambda scheduler: Answer({"new": _report(scheduler, caller, body)}))

    @route("POST", "/fleets/{fleet}/reports/batch", SERVERS, models.RecordedBatch)
    async def report_batch(request: Request, fleet: str, body: models.ReportBatch, key: Key = None) -> Response:
        """Records many arrivals in one transaction. A report that is refused does not prevent the others."""
        caller = caller_of(request)

        def call(scheduler: Scheduler) -> Answer:
            new, refused = 0, []
            for index, report in enumerate(body.reports):
                try:
                    new += _report(scheduler, caller, report)
                except TurnoutError as error:
                    refused.append({"index": index, "error": str(error)})
            return Answer({"new": new, "refused": refused})

        return await change(request, fleet, key, call)

    @route("POST", "/fleets/{fleet}/failures", REPORTERS, models.Recorded)
    async def report_failure(request: Request, fleet: str, body: models.Failure, key: Key = None) -> Response:
        """Records that a client has failed."""
        caller = caller_of(request)

        def call(scheduler: Scheduler) -> Answer:
            if body.turn is not None:
                _check_turn(scheduler, caller, body.turn, body.client)
                return Answer({"new": scheduler.report_failure(body.turn, body.why)})
            client = caller.own_client(body.client)
            return Answer({"new": scheduler.report_failure(client, body.why, round=body.round)})

        return await change(request, fleet, key, call)

    # Queries

    @route("GET", "/fleets/{fleet}", READERS, models.FleetState)
    def status(fleet: str) -> Response:
        """Shows the state of the fleet, and whether its promise is kept."""
        return JSONResponse(status_to_dict(fleet, fleets[fleet].scheduler))

    @route("GET", "/fleets/{fleet}/certificate", READERS, models.CertificatePage)
    def certificate(
        fleet: str,
        client: Annotated[str | None, Query(min_length=1, max_length=1024, description="Only this client.")] = None,
        limit: Annotated[int, Query(ge=1, le=10_000, description="The most clients to list.")] = 20,
    ) -> Response:
        """Shows what clients were promised and got, those that are furthest behind first."""
        return JSONResponse(certificate_to_dict(fleets[fleet].scheduler, client, limit))

    @route("GET", "/fleets/{fleet}/explanation", READERS, models.Explanation)
    def explain(fleet: str, client: ClientQuery, round: RoundQuery = None) -> Response:
        """Explains why a client was selected in a round, or what it lacked."""
        return JSONResponse(explanation_to_dict(fleets[fleet].scheduler.explain(client, round)))

    @route("GET", "/fleets/{fleet}/history", READERS, models.History)
    def history(
        fleet: str,
        client: ClientQuery,
        limit: Annotated[int, Query(ge=1, le=10_000, description="The most turns to list.")] = 100,
    ) -> Response:
        """Lists the newest turns of a client, with their outcomes."""
        turns = fleets[fleet].scheduler.history(client)
        return JSONResponse({"turns": [turn.to_dict() for turn in turns[-limit:]], "of": len(turns)})

    @route("GET", "/fleets/{fleet}/events", READERS, None)
    async def events(
        fleet: str,
        after: Annotated[
            int | None,
            Query(ge=0, le=2**62, description="The number of the last event that you have; 0 for all that are kept."),
        ] = None,
        follow: Annotated[bool, Query(description="Whether to wait for further events.")] = True,
        last: Annotated[
            int | None,
            Header(alias="Last-Event-ID", ge=0, le=2**62, description="Replaces `after`; browsers send it."),
        ] = None,
    ) -> Response:
        """Streams what happens, as server-sent events; by default, from now on.

        The events are *joined*, *retired*, *forgotten*, *amended*, *closed* (a round) and *filled* (slots). Between
        them, *state* says how many updates the open round has and whether it can be closed, or how many turns are under
        way; its id is that of the event before it. A stream ends after ten minutes: open it again with the last id to
        miss nothing. *stale*: the next events are no longer kept. *trouble*: the file cannot be read.
        """
        calls = fleets[fleet]
        begin = last if last is not None else after
        if begin is None:
            begin = await run_in_threadpool(calls.events.newest)
        else:
            await run_in_threadpool(calls.events.check, begin)
        calls.events.check_streams()
        return StreamingResponse(stream(calls, begin, follow=follow, is_ending=is_ending), media_type=STREAM)

    return router


def _report(scheduler: Scheduler, caller: Caller, report: models.Report) -> bool:
    if report.turn is not None:
        _check_turn(scheduler, caller, report.turn, report.client)
        return scheduler.report(report.turn, report.seconds, loss=report.loss)
    client = caller.own_client(report.client)
    if report.seconds is None and not scheduler.settings.has_rounds:
        raise ReportError(f"send the turn of {client!r}, or the seconds that it took")
    return scheduler.report(client, report.seconds, loss=report.loss, round=report.round)


def _check_turn(scheduler: Scheduler, caller: Caller, turn: int, client: str | None) -> None:
    """Raises an error if the turn is not of the client that is named, or whose device calls."""
    if caller.client is None and client is None:
        return
    named = caller.own_client(client)
    if scheduler.settings.has_rounds:
        return  # the scheduler refuses ids of turns
    if any(given.id != named for given in scheduler.history(round=turn)):
        raise DeniedError(f"turn {turn} was not given to {named!r}: check the id of the turn")


async def _request_key(request: Request, key: str | None) -> RequestKey | None:
    """Returns digests of the key, for this caller, and of the request."""
    if key is None:
        return None
    own = f"{caller_of(request).token}\n{key}".encode()
    head = f"{request.method}\n{request.scope['path']}\n".encode()
    return RequestKey(hashlib.sha256(own).digest(), hashlib.sha256(head + await request.body()).digest())
