"""How routes are declared and called."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, get_type_hints

from fastapi import APIRouter, Depends, Header, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.responses import JSONResponse, Response, StreamingResponse

from turnout.live import Scheduler
from turnout.live._internals import StoredAnswer
from turnout.service import models, replies
from turnout.service.calls import Answer, FleetCalls, RequestKey
from turnout.service.errors import DeniedError, UnknownFleetError
from turnout.web.access import Caller, Role
from turnout.web.guard import JSON
from turnout.web.guard import caller_of as known_caller

#: Who may use a route.
SERVERS: tuple[Role, ...] = ("server", "operator")
REPORTERS: tuple[Role, ...] = ("device", "server", "operator")
OPERATORS: tuple[Role, ...] = ("operator",)
FLEET = "/fleets/{fleet}"
#: Where the roles of a route stand in the OpenAPI document.
ROLES_FIELD = "x-roles"
STREAM = "text/event-stream"
ERROR_SCHEMA = {"$ref": "#/components/schemas/Error"}
#: Why a request is refused, by status, with an example of the error.
REFUSALS: Mapping[int, tuple[str, str]] = {
    400: ("The request is malformed.", "the body is not valid JSON, from character 11 on"),
    401: (
        "There is no token, or it is unknown, revoked or expired.",
        "this service needs a token: send the header Authorization: Bearer …",
    ),
    403: (
        "The role of the token does not allow this, or the token is of the device of another client.",
        "this token is of the device 'phone-1': it cannot call for 'phone-2'",
    ),
    404: (
        "There is no such fleet for this token, or no such client.",
        "there is no fleet 'fleets' for this token: check the address",
    ),
    409: ("The state or the settings of the fleet do not allow this.", "no round is open: choose first"),
    410: ("These events are no longer kept.", "the events from 1 to 40 are no longer kept: begin after event 40"),
    413: ("The body is too large.", "the body must have at most 65,536 bytes: send less at a time"),
    415: ("The body is not JSON.", "the body must be JSON: send the header Content-Type: application/json"),
    421: (
        "A service without tokens accepts only loopback host names.",
        "a server without tokens accepts only localhost or 127.0.0.1 as the host name",
    ),
    422: (
        "A value is invalid, or the Idempotency-Key was used for another request.",
        "seconds: input should be greater than 0",
    ),
    429: (
        "Too many calls are waiting, or the token is used too often: retry after Retry-After seconds, with the same "
        "Idempotency-Key.",
        "1,000 calls are waiting already: try again soon",
    ),
    431: ("The headers are too large.", "a request must have at most 100 headers and 16,384 bytes: remove cookies"),
    503: (
        "The file cannot be written now, or the service is shutting down: retry with the same Idempotency-Key.",
        "the service is shutting down: try again soon",
    ),
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
#: A change that is executed with others in one transaction.
ChangeCall = Callable[[Scheduler, Any, Caller], Answer]
#: A change that writes transactions of its own, and stores its answer with the first.
SteppedChange = Callable[[Scheduler, Any, StoredAnswer | None], Iterator[None]]


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


async def _fleet_of(request: Request, fleet: str) -> FleetCalls:
    calls: FleetCalls = request.app.state.fleets[fleet]
    return calls


#: The fleet that the path of a query names.
Fleet = Annotated[FleetCalls, Depends(_fleet_of)]


class CheckedRoute(APIRoute):
    """A route that checks the fleet and the role of the caller before it reads the body.

    The body and the key of a change are read here and not by FastAPI, which takes about as long to prepare a call as
    the rest of the service takes to execute and answer it: with it, check-ins and reports, which are most of what a
    service is asked, fall below half of the rate of an empty request (`turnout bench service`).
    """

    def get_route_handler(self) -> Callable[[Request], Any]:
        """Returns the handler of the route, behind the check."""
        model: type[models.Body] | None = self.endpoint.__annotations__.get("body")
        handler = super().get_route_handler() if model is None else partial(_execute, self.endpoint, model)
        roles = frozenset((self.openapi_extra or {})[ROLES_FIELD])

        async def checked(request: Request) -> Response:
            check_access(request, request.path_params.get("fleet"), roles)
            response: Response = await handler(request)
            return response

        return checked


class Resource:
    """The routes of one kind of things.

    `change` and `query` are decorators. A change is a function of the scheduler, the body and the caller; its body has
    the model that the function names. A query is an endpoint of FastAPI; with the model None it answers with a stream.
    """

    def __init__(self) -> None:
        self.router = APIRouter(prefix="/v1", route_class=CheckedRoute)

    def query(
        self, path: str, roles: Sequence[Role], model: type[replies.Reply] | None, **success: Any
    ) -> Callable[[Any], Any]:
        """Adds a route that reads; `success` describes an answer that has no model."""
        return partial(self._add, "GET", path, roles, model, success)

    def change(
        self, path: str, roles: Sequence[Role], model: type[replies.Reply]
    ) -> Callable[[ChangeCall], ChangeCall]:
        """Adds a route that changes something in the transaction of a group."""

        def add(call: ChangeCall) -> ChangeCall:
            async def endpoint(request: Request, fleet: str, body: Any, key: str | None = None) -> Response:
                caller, request_key = caller_of(request), await _request_key(request, key)
                text = await (await _fleet_of(request, fleet)).execute(
                    lambda scheduler: call(scheduler, body, caller), request_key
                )
                return Response(text, media_type=JSON)

            self._add_change(path, roles, model, call, endpoint)
            return call

        return add

    def stepped_change(
        self, path: str, roles: Sequence[Role], model: type[replies.Reply]
    ) -> Callable[[SteppedChange], SteppedChange]:
        """Adds a route that writes several transactions."""

        def add(call: SteppedChange) -> SteppedChange:
            async def endpoint(request: Request, fleet: str, body: Any, key: str | None = None) -> Response:
                request_key = await _request_key(request, key)
                text = await (await _fleet_of(request, fleet)).execute_steps(
                    lambda scheduler, answer: call(scheduler, body, answer), request_key
                )
                return Response(text, media_type=JSON)

            self._add_change(path, roles, model, call, endpoint)
            return call

        return add

    def _add_change(
        self, path: str, roles: Sequence[Role], model: type[replies.Reply], call: Any, endpoint: Any
    ) -> None:
        """Adds the endpoint of a change, which the OpenAPI document describes by the function that it calls."""
        endpoint.__name__, endpoint.__doc__ = call.__name__, call.__doc__
        body = get_type_hints(call)["body"]
        endpoint.__annotations__ = {"request": Request, "fleet": str, "body": body, "key": Key, "return": Response}
        self._add("POST", path, roles, model, {}, endpoint)

    def _add(
        self,
        method: str,
        path: str,
        roles: Sequence[Role],
        model: type[replies.Reply] | None,
        success: Mapping[str, Any],
        endpoint: Any,
    ) -> Any:
        # FastAPI builds a validator for each response with a model, which would take most of the time of the start.
        # So one response names the model, which puts its schema into the document, and the others refer to it.
        responses: dict[int | str, dict[str, Any]] = {
            status: {"description": text, "content": {JSON: {"schema": ERROR_SCHEMA, "example": {"error": example}}}}
            for status, (text, example) in REFUSALS.items()
        }
        responses[400]["model"] = replies.Error
        responses[200] = dict(success) if model is None else {"description": model.__doc__}
        self.router.add_api_route(
            path,
            endpoint,
            methods=[method],
            response_model=model,
            response_class=JSONResponse if model is not None else StreamingResponse,
            operation_id=endpoint.__name__,
            responses=responses,
            openapi_extra={ROLES_FIELD: list(roles), "security": [{"token": []}]},
        )
        return endpoint


async def _execute(endpoint: Any, model: type[models.Body], request: Request) -> Response:
    """Reads the body and the key of a change, and calls its endpoint."""
    content = await request.body()
    try:
        body = model.model_validate(json.loads(content))
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from error
    except (ValueError, RecursionError) as error:
        where = error.pos if isinstance(error, json.JSONDecodeError) else 0
        raise RequestValidationError([{"type": "json_invalid", "loc": ("body", where), "msg": str(error)}]) from error
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
