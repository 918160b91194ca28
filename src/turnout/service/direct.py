"""Calls the endpoints of valid changes directly: check-ins and reports are most of what a service is asked.

FastAPI takes about as long to find and prepare a call as the rest of the service takes to execute and answer it. So
requests that need nothing of it are called here, by the same routes, with the same models and the same check of the
role. All others, also those with an invalid body or key, are left to FastAPI, which says what is wrong with them.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple, get_type_hints

from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnout.errors import TurnoutError
from turnout.service.errors import http_error, library_error

_FLEET = "/v1/fleets/{fleet}/"
_PREFIX = _FLEET.partition("{")[0]
#: The parameters of an endpoint that can be called directly.
_PARAMETERS = ["request", "fleet", "body", "key"]
_KEY = re.compile(r"[\x21-\x7e]{1,200}")

Check = Callable[[Request, str, Iterable[str]], None]


class _Endpoint(NamedTuple):
    call: Callable[[Request, str, Any, str | None], Awaitable[Response]]
    model: type[BaseModel]
    roles: frozenset[str]


class DirectCalls:
    """ASGI middleware that calls endpoints directly where it can.

    Args:
        app: Answers all other requests.
        routes: The routes of the service.
        check: Raises an error if the caller must not use the fleet, or has none of the roles.
        roles_field: Where a route names its roles.
    """

    def __init__(self, app: ASGIApp, *, routes: Sequence[Any], check: Check, roles_field: str) -> None:
        self._app, self._check = app, check
        self._endpoints: dict[str, _Endpoint] = {}
        for route in routes:
            if not isinstance(route, APIRoute) or route.methods != {"POST"} or not route.path.startswith(_FLEET):
                continue
            if list(inspect.signature(route.endpoint).parameters) == _PARAMETERS:
                roles = frozenset((route.openapi_extra or {})[roles_field])
                model = get_type_hints(route.endpoint)["body"]
                self._endpoints[route.path.removeprefix(_FLEET)] = _Endpoint(route.endpoint, model, roles)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        endpoint, fleet = self._find(scope)
        if endpoint is None:
            await self._app(scope, receive, send)
            return
        scope["endpoint"], scope["path_params"] = endpoint.call, {"fleet": fleet}  # as a router would
        request = Request(scope, receive)
        try:
            self._check(request, fleet, endpoint.roles)
            content = await request.body()
            try:
                body = endpoint.model.model_validate(json.loads(content))
            except (ValueError, RecursionError):
                body = None
            key = request.headers.get("idempotency-key")
            if body is None or (key is not None and not _KEY.fullmatch(key)):
                await self._app(scope, _again(content, receive), send)
                return
            response = await endpoint.call(request, fleet, body, key)
        except TurnoutError as error:
            response = library_error(request, error)
        except HTTPException as error:
            response = http_error(request, error)
        await response(scope, receive, send)

    def _find(self, scope: Scope) -> tuple[_Endpoint | None, str]:
        if scope["type"] != "http" or scope["method"] != "POST" or not scope["path"].startswith(_PREFIX):
            return None, ""
        fleet, _, rest = scope["path"][len(_PREFIX) :].partition("/")
        return self._endpoints.get(rest), fleet


def _again(content: bytes, receive: Receive) -> Receive:
    """Returns a function that receives a body which was received already, and then whatever comes."""
    is_first = True

    async def received() -> Message:
        nonlocal is_first
        if is_first:
            is_first = False
            return {"type": "http.request", "body": content, "more_body": False}
        return await receive()

    return received
