"""The web application of the service, and its OpenAPI document as far as FastAPI does not write it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from turnout.service.access import RateLimiter, Rates
from turnout.service.calls import FleetCalls
from turnout.service.errors import NO_ROUTE, UnknownFleetError, code_of, status_of
from turnout.service.metrics import Traffic, service_metrics
from turnout.service.replies import Problem, read_examples
from turnout.service.routes.changes import CHANGES
from turnout.service.routes.queries import QUERIES
from turnout.service.routes.routing import ROLES_FIELD, TAGS, ChangeDispatcher, check_access
from turnout.service.routes.waiting import HELD_FIELD
from turnout.version import __version__
from turnout.web.access import READERS, Access
from turnout.web.errors import PROBLEM, RETRY_SECONDS, ErrorAnswers
from turnout.web.guard import BodyLimits, CallGuard, caller_of
from turnout.web.prometheus import MEDIA_TYPE, metrics_text
from turnout.web.serving import LIMITS, Limits, Refusals

DESCRIPTION = """Client selection for federated learning, over HTTP.

Send the token as `Authorization: Bearer …`. Roles (`x-roles` of each operation): *device* checks in and reports for its
own client, *server* selects clients and closes rounds, *viewer* reads, *operator* does everything. Send an
`Idempotency-Key` with every POST, and the same key again if you get no answer, 429 or 503: it is executed once. Errors
are `application/problem+json`; programs tell them apart by `code`. Lists have a `next`: pass it as `after` to get the
following entries. Clients must ignore fields that they do not know.
"""
#: The headers that the answers refer to.
HEADERS: Mapping[str, Any] = {
    "Retry-After": {
        "description": "After how many seconds to send the call again, with the same Idempotency-Key.",
        "schema": {"type": "integer", "minimum": 0, "examples": [1]},
    },
    "RateLimit-Policy": {
        "description": "How many calls (q) a token may send within so many seconds (w); missing if there is no limit.",
        "schema": {"type": "string", "examples": ['"token";q=30;w=3']},
    },
    "RateLimit": {
        "description": "How many calls are left (r), and after how many seconds (t) all are allowed again.",
        "schema": {"type": "string", "examples": ['"token";r=29;t=1']},
    },
}


#: What the probes answer.
_STATUS = {"type": "object", "required": ["status"], "properties": {"status": {"type": "string"}}}
STATE: Mapping[str, Any] = {
    "description": "The state of the service.",
    "content": {"application/json": {"schema": {**_STATUS, "examples": [{"status": "ok"}]}}},
}
FIGURES: Mapping[str, Any] = {"description": "The figures.", "content": {"text/plain": {"schema": {"type": "string"}}}}
#: The paths of the service; all others belong to the page.
PREFIX = "/v1/"
METRICS = "/metrics"
#: The methods that a path may have.
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
#: Paths that are answered without a token, for monitors and for those who write clients; they reveal nothing secret.
PUBLIC = ("/healthz", "/readyz", "/openapi.json")


def _get(name: str, description: str, responses: Mapping[str, Any], **further: Any) -> dict[str, Any]:
    """Returns the description of a path for monitors."""
    described = {"operationId": name, "summary": name.capitalize(), "description": description, "tags": ["service"]}
    return {"get": {**described, "security": [], "responses": responses, **further}}


def describe(schema: dict[str, Any]) -> dict[str, Any]:
    """Completes the document that FastAPI has written, in place, and returns it."""
    schema["info"]["contact"] = {"name": "Whoever runs this service"}
    schema["servers"] = [{"url": "/", "description": "The service from which this document was read."}]
    schema["tags"] = [{"name": tag, "description": text} for tag, (text, _) in TAGS.items()]
    components = schema.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    schemas["Problem"] = Problem.model_json_schema()
    for methods in schema["paths"].values():
        for operation in methods.values():
            refused = operation["responses"].get("422", {})
            if PROBLEM not in refused.get("content", {}):  # FastAPI adds it wherever there is any parameter
                operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for name, examples in read_examples().items():  # not in the models, because FastAPI drops null in their examples
        if name in schemas:
            schemas[name]["examples"] = examples
    components["headers"] = dict(HEADERS)
    components["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer", "description": "A token of the fleet; `x-roles` names the roles."}
    }
    paths = schema["paths"]
    refusals = {status: text for status, text in paths["/v1/fleets"]["get"]["responses"].items() if status != "200"}
    refusals["403"] = {**refusals["401"], "description": "A device must not read them."}
    paths["/healthz"] = _get("healthz", "Says that the process runs.", {"200": STATE})
    paths["/readyz"] = _get("readyz", "Says whether changes can be stored; 503 if not.", {"200": STATE, "503": STATE})
    paths["/metrics"] = _get(
        "metrics",
        "Figures for Prometheus about the fleets that the token may read.",
        {"200": FIGURES, **refusals},
        **{"security": [{"token": []}], ROLES_FIELD: list(READERS)},
    )
    return schema


def make_app(
    fleets: Mapping[str, FleetCalls],
    access: Access,
    *,
    page: ASGIApp | None = None,
    limits: Limits = LIMITS,
    bodies: BodyLimits | None = None,
    rates: Rates | None = None,
) -> FastAPI:
    """Returns the application that serves these fleets.

    Args:
        fleets: The fleets by name; their threads must have been started.
        access: Finds the caller of a request.
        page: The application that answers all paths that are not of the service, such as a dashboard; it has its own
            guard.
        limits: The limits of headers.
        bodies: The limits of bodies.
        rates: How often a token may be used.

    The state of the application has `ending`, a threading.Event that ends all streams, and `refusals`, which counts the
    connections that its server refuses.
    """
    app = FastAPI(
        title="turnout",
        version=__version__,
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    traffic, refusals = Traffic(), Refusals()
    app.state.fleets, app.state.ending, app.state.refusals = fleets, threading.Event(), refusals
    answer_error = ErrorAnswers(status_of, code_of=code_of, no_route=NO_ROUTE)
    answer_error.add_to(app)

    def refuse_method(request: Request, _: Exception) -> Response:
        """Names all methods of a path; a route knows only its own."""
        allowed = [name for name in METHODS if _has_method(app, request.scope, name)]
        return answer_error(request, HTTPException(405, headers={"allow": ", ".join(allowed)}))

    app.add_exception_handler(405, refuse_method)
    for resource in (QUERIES, CHANGES):
        app.include_router(resource.router)

    @app.get("/healthz", include_in_schema=False)
    async def healthz() -> Response:
        return JSONResponse({"status": "ok"})

    @app.get("/readyz", include_in_schema=False)
    async def readyz(fleet: str | None = None) -> Response:
        asked = fleets if fleet is None else {fleet: fleets[fleet]} if fleet in fleets else {}
        if fleet is not None and not asked:
            raise UnknownFleetError(f"there is no fleet {fleet!r}: check the name")
        problems = await asyncio.gather(*(calls.probe() for calls in asked.values()))
        failing = {name: problem for name, problem in zip(asked, problems, strict=True) if problem is not None}
        if not failing:
            return JSONResponse({"status": "ready"})
        is_ready = len(failing) < len(asked)  # the others are served
        retry = {} if is_ready else {"retry-after": str(RETRY_SECONDS)}
        body = {"status": "partly ready" if is_ready else "not ready", "fleets": failing}
        return JSONResponse(body, 200 if is_ready else 503, headers=retry)

    @app.get(METRICS, include_in_schema=False)
    async def metrics(request: Request) -> Response:
        check_access(request, None, READERS)
        caller = caller_of(request.scope)
        own = {name: calls for name, calls in fleets.items() if caller is not None and caller.may_use(name)}
        return PlainTextResponse(metrics_text(await service_metrics(own, traffic, refusals)), media_type=MEDIA_TYPE)

    def count(scope: Scope, status: int, seconds: float) -> None:
        """Counts a request under its fleet and operation; "" if the router has found none."""
        if _is_own(scope["path"]):
            fleet, endpoint = scope.get("path_params", {}).get("fleet", ""), scope.get("endpoint")
            seconds -= scope.get(HELD_FIELD, 0.0)  # a device that waits keeps nobody busy
            traffic.count(fleet if fleet in fleets else "", getattr(endpoint, "__name__", ""), status, seconds)

    app.add_middleware(ChangeDispatcher, changes=CHANGES.changes, answer_error=answer_error)
    limiter = RateLimiter(rates or Rates())
    app.add_middleware(
        CallGuard,
        access=access,
        public=PUBLIC,
        limits=limits,
        on_end=count,
        bodies=bodies,
        count_call=limiter.count,
    )
    if page is not None:
        app.add_middleware(PageBeside, page=page)
    make_schema = app.openapi
    app.openapi = lambda: describe(make_schema())  # type: ignore[method-assign]
    return app


def _has_method(app: FastAPI, scope: Scope, method: str) -> bool:
    asked = {**scope, "method": "GET" if method == "HEAD" else method}
    return any(route.matches(asked)[0] is Match.FULL for route in app.routes)


class PageBeside:
    """ASGI middleware that passes all requests that are not of the service to a page."""

    def __init__(self, app: ASGIApp, page: ASGIApp) -> None:
        self._app, self._page = app, page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on."""
        is_own = scope["type"] != "http" or scope["path"] in PUBLIC or _is_own(scope["path"])
        await (self._app if is_own else self._page)(scope, receive, send)


def _is_own(path: str) -> bool:
    return f"{path}/".startswith(PREFIX) or path == METRICS
