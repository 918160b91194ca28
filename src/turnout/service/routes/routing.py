"""How routes are declared and called."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, wraps
from inspect import iscoroutinefunction, signature
from typing import Annotated, Any, NamedTuple, get_type_hints

from fastapi import APIRouter, Depends, Header, Path, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from turnout.live import Scheduler
from turnout.live._internals import StoredAnswer
from turnout.service import models, replies
from turnout.service.access import own_client
from turnout.service.calls import FleetCalls, RequestKey, SteppedCall
from turnout.service.errors import DeniedError, UnknownFleetError
from turnout.service.routes import bodies
from turnout.service.routes.bodies import execute_in_pieces, read_body
from turnout.service.routes.waiting import PARAMETER, WaitingCheckIn, preferred_seconds
from turnout.web.access import Caller, Role
from turnout.web.errors import PROBLEM, ErrorAnswers
from turnout.web.guard import JSON
from turnout.web.guard import caller_of as known_caller

#: Who may use a route.
SERVERS: tuple[Role, ...] = ("server", "operator")
REPORTERS: tuple[Role, ...] = ("device", "server", "operator")
OPERATORS: tuple[Role, ...] = ("operator",)
FLEET = "/fleets/{fleet}"
#: The number of a round in a path.
ROUND = "{round:int}"
_ROUND_PATH = re.compile(r"/rounds/0*([1-9][0-9]{0,17})/([a-z]+)")
#: What the paths of all changes begin with.
CHANGES = "/v1/fleets/"
#: Where the roles of a route stand in the OpenAPI document.
ROLES_FIELD = "x-roles"
STREAM = "text/event-stream"
#: The groups of calls: their descriptions, and the first parts of their paths; all others are of the fleet.
TAGS: Mapping[str, tuple[str, Sequence[str]]] = {
    "devices": ("What a device calls.", ("check-ins", "reports", "failures")),
    "rounds": ("Fleets with rounds.", ("round", "rounds")),
    "turns": ("Fleets without rounds.", ("turns",)),
    "fleet": ("Clients, settings and the promise.", ()),
    "service": ("Monitoring.", ("fleets",)),
}
#: Why a request is refused, by status.
REFUSALS: Mapping[int, str] = {
    400: "The request is malformed.",
    401: "There is no token, or it is unknown, revoked or expired.",
    403: "The role of the token does not allow this, or the token is of the device of another client.",
    404: "There is no such fleet for this token, or no such client or round.",
    409: "The state or the settings of the fleet do not allow this.",
    410: "These events, or this round, are no longer kept; or there is no such event, because a backup was restored.",
    412: "The settings were amended since you read them.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    421: "A service without tokens accepts only loopback host names.",
    422: "A value is invalid, or the Idempotency-Key was used for another request.",
    429: "Too many calls are waiting, or the token is used too often: retry after Retry-After seconds, with the same "
    "Idempotency-Key.",
    431: "The headers are too large.",
    500: "A fault of the service: its log says more.",
    503: "The file cannot be written now, or the service is shutting down: retry with the same Idempotency-Key.",
}
#: What may happen to every request, to every request about a fleet, and to every change.
ALWAYS, IN_FLEET, IN_CHANGE = (401, 421, 429, 431, 500, 503), (403, 404), (400, 409, 413, 415, 422)
#: The headers of an answer by its status: when to call again, and how often a token may be used.
RATE_HEADERS = ("RateLimit-Policy", "RateLimit")
ANSWER_HEADERS: Mapping[int, Sequence[str]] = {
    200: RATE_HEADERS,
    429: ("Retry-After", *RATE_HEADERS),
    503: ("Retry-After",),
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
        examples=["8c6bd8f1-4d1f-4b0e-9d2e-7a5f6f1f8a55"],
    ),
]
_KEY = re.compile(r"[\x21-\x7e]{1,200}")


def caller_of(request: Request) -> Caller:
    """Returns who sent a request."""
    caller = known_caller(request.scope)
    assert caller is not None, "the guard lets nobody else through"
    return caller


def check_access(request: Request, fleet: str | None, roles: Iterable[str]) -> None:
    """Raises an error if the caller must not use a fleet, or has none of the roles that a route needs."""
    caller = caller_of(request)
    if fleet is not None and (fleet not in request.app.state.fleets or not caller.may_use(fleet)):
        raise UnknownFleetError(f"there is no fleet {fleet!r} for this token: check the address")
    if caller.role not in roles:
        raise DeniedError(f"the role {caller.role} does not allow this: it needs {' or '.join(sorted(roles))}")


#: The name of a fleet in a path.
FleetName = Annotated[str, Path(description="The name of the fleet.", examples=["fleet"])]


async def _fleet_of(request: Request, fleet: FleetName) -> FleetCalls:
    calls: FleetCalls = request.app.state.fleets[fleet]
    return calls


#: The fleet that the path of a query names.
Fleet = Annotated[FleetCalls, Depends(_fleet_of)]


class CheckedRoute(APIRoute):
    """A route that checks the fleet and the role of the caller first."""

    def get_route_handler(self) -> Callable[[Request], Any]:
        """Returns the handler of the route, behind the check."""
        return _checked(super().get_route_handler(), (self.openapi_extra or {})[ROLES_FIELD])


def _checked(handler: Callable[[Request], Any], roles: Iterable[str]) -> Callable[[Request], Any]:
    allowed = frozenset(roles)

    async def checked(request: Request) -> Response:
        check_access(request, request.path_params.get("fleet"), allowed)
        response: Response = await handler(request)
        return response

    return checked


class ChangeRoute(NamedTuple):
    """A change: its endpoint, and what checks the caller, reads the body and calls the endpoint."""

    endpoint: Any
    handle: Callable[[Request], Any]


class ChangeDispatcher:
    """ASGI middleware that answers all changes; FastAPI only describes them.

    FastAPI takes about as long to find and prepare a call as the rest of the service takes to execute and answer it:
    with it, check-ins and reports, which are most of what a service is asked, fall below half of the rate of an empty
    request (`python -m benchmarks service`).

    Args:
        app: Answers all other requests.
        changes: The changes by their paths after that of the fleet.
        answer_error: Answers the errors of changes, as the application answers those of other requests.
    """

    def __init__(self, app: ASGIApp, changes: Mapping[str, ChangeRoute], answer_error: ErrorAnswers) -> None:
        self._app, self._changes, self._answer_error = app, changes, answer_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        fleet, slash, path = scope.get("path", "").removeprefix(CHANGES).partition("/")
        change, params = self._changes.get(slash + path), {"fleet": fleet}
        if change is None and (named := _ROUND_PATH.fullmatch(slash + path)) is not None:
            change, params = self._changes.get(f"/rounds/{ROUND}/{named[2]}"), {"fleet": fleet, "round": int(named[1])}
        if change is None or scope.get("method") != "POST" or not scope["path"].startswith(CHANGES):
            await self._app(scope, receive, send)
            return
        scope["endpoint"], scope["path_params"] = change.endpoint, params  # as a router would
        request = Request(scope, receive)
        try:
            response = await change.handle(request)
        except ErrorAnswers.KINDS as error:
            response = self._answer_error(request, error)
        await response(scope, receive, send)


class Resource:
    """The routes of one kind of things.

    `change` and `query` are decorators. A change is a function of the scheduler, the body and the request; its body has
    the model that the function names. One that is stepped is given its answer in place of the request, to store it with
    its first transaction. A query is an endpoint of FastAPI; with the model None it answers with a stream.
    """

    def __init__(self) -> None:
        self.router = APIRouter(prefix="/v1", route_class=CheckedRoute)
        self.changes: dict[str, ChangeRoute] = {}

    def query(
        self,
        path: str,
        roles: Sequence[Role],
        model: type[replies.Reply] | None,
        *,
        refusals: Iterable[int] = (),
        **success: Any,
    ) -> Callable[[Any], Any]:
        """Adds a route that reads.

        Args:
            path: The path.
            roles: Who may use it.
            model: What it answers.
            refusals: The statuses of its own with which it may be refused.
            success: What the OpenAPI document says about the answer besides the model.
        """
        return lambda endpoint: self._add("GET", path, roles, model, refusals, success, _in_own_thread(endpoint))

    def change(
        self,
        path: str,
        roles: Sequence[Role],
        model: type[replies.Reply],
        *,
        is_stepped: bool = False,
        refusals: Iterable[int] = (),
        parameters: Sequence[Mapping[str, Any]] = (),
        listen: Any = None,
        in_steps: Any = None,
    ) -> Callable[[Any], Any]:
        """Adds a route that changes something, in the transaction of a group or, if it is stepped, in several.

        Args:
            path: The path.
            roles: Who may use it.
            model: What it answers.
            is_stepped: Whether it is stepped.
            refusals: The statuses of its own with which it may be refused.
            parameters: The parameters that it reads from the request, for the OpenAPI document.
            listen: What is called in its place for a check-in that may be held.
            in_steps: What is called in its place, as a stepped change, for very many clients.
        """

        def add(call: Any) -> Any:
            """Adds the endpoint of a change, which the OpenAPI document describes by the function that it calls."""

            async def endpoint(request: Request, fleet: str, body: Any, key: str | None = None) -> Response:
                def run(body: Any, scheduler: Scheduler, *answer: StoredAnswer | None) -> Any:
                    return call(scheduler, body, *(answer if is_stepped else [request]))

                calls, once = await _fleet_of(request, fleet), await _request_key(request, key)
                if listen is not None and (seconds := preferred_seconds(request)):
                    held = WaitingCheckIn(
                        calls, request, once, partial(run, body), lambda fleet: listen(fleet, body, request)
                    )
                    return await held.answer(own_client(caller_of(request), body.client), seconds)
                if in_steps is not None and len(body.offered) > bodies.READ_AT_ONCE:
                    stepped: SteppedCall = lambda fleet, answer: in_steps(fleet, body, answer)  # noqa: E731
                    text = await calls.execute(stepped, once, is_stepped=True)
                elif is_stepped:
                    text = await calls.execute(partial(run, body), once, is_stepped=True)
                else:
                    text = await execute_in_pieces(calls, partial(partial, run), body, once)
                return Response(text, media_type=JSON)

            endpoint.__name__, endpoint.__doc__ = call.__name__, call.__doc__
            body = get_type_hints(call)["body"]
            endpoint.__annotations__ |= {"request": Request, "fleet": FleetName, "body": body, "key": Key}
            described = (*parameters, *(() if listen is None else (PARAMETER,)))
            self._add("POST", path, roles, model, (*IN_CHANGE, *refusals), {}, endpoint, described)
            handle = _checked(partial(_execute, endpoint, body), roles)
            self.changes[path.removeprefix(FLEET)] = ChangeRoute(endpoint, handle)
            return call

        return add

    def _add(
        self,
        method: str,
        path: str,
        roles: Sequence[Role],
        model: type[replies.Reply] | None,
        refusals: Iterable[int],
        success: Mapping[str, Any],
        endpoint: Any,
        parameters: Sequence[Mapping[str, Any]] = (),
    ) -> Any:
        statuses = sorted({*ALWAYS, *refusals, *(IN_FLEET if FLEET in path else ())})
        responses: dict[int | str, dict[str, Any]] = {
            status: {
                "description": REFUSALS[status],
                "content": {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}},
            }
            for status in statuses
        }
        responses[200] = {"description": getattr(model, "__doc__", None), **success}
        for status, response in responses.items():
            named = {name: {"$ref": f"#/components/headers/{name}"} for name in ANSWER_HEADERS.get(int(status), ())}
            response["headers"] = {**named, **response.get("headers", {})}
        described: dict[str, Any] = {ROLES_FIELD: list(roles), "security": [{"token": []}]}
        if parameters:
            described["parameters"] = list(parameters)
        self.router.add_api_route(
            path,
            endpoint,
            methods=[method],
            response_model=model,
            response_class=JSONResponse if model is not None else StreamingResponse,
            operation_id=endpoint.__name__,
            responses=responses,
            tags=[_tag_of(path)],
            openapi_extra=described,
        )
        return endpoint


def _in_own_thread(endpoint: Any) -> Any:
    """Returns an endpoint that reads in a thread of its fleet, so that it waits for no other fleet."""
    if iscoroutinefunction(endpoint):
        return endpoint

    @wraps(endpoint)
    async def read(calls: FleetCalls, **arguments: Any) -> Response:
        response: Response = await calls.file.read(partial(endpoint, calls=calls, **arguments))
        return response

    # Older versions of FastAPI would look for the names of its types in this module.
    read.__signature__ = signature(endpoint, eval_str=True)  # type: ignore[attr-defined]
    return read


def _tag_of(path: str) -> str:
    """Returns the group of calls to which a path belongs."""
    name = path.removeprefix(FLEET).strip("/").partition("/")[0]
    return next((tag for tag, (_, names) in TAGS.items() if name in names), "fleet")


async def _execute(endpoint: Any, model: type[models.Body], request: Request) -> Response:
    """Reads the body and the key of a change, and calls its endpoint."""
    body = await read_body(model, await request.body())
    key = request.headers.get("idempotency-key")
    if key is not None and not _KEY.fullmatch(key):
        message = "must have 1 to 200 visible ASCII characters"
        raise RequestValidationError([{"type": "value_error", "loc": ("Idempotency-Key",), "msg": message}])
    response: Response = await endpoint(request, request.path_params["fleet"], body, key)
    return response


async def _request_key(request: Request, key: str | None) -> RequestKey | None:
    """Returns digests of the key, for this caller, and of the request."""
    if key is None:
        return None
    own = f"{caller_of(request).token}\n{key}".encode()
    head = f"{request.method}\n{request.scope['path']}\n".encode()
    return RequestKey(hashlib.sha256(own).digest(), hashlib.sha256(head + await request.body()).digest())
