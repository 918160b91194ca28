"""The web application of the service."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from turnout.service.access.rates import RateLimiter, Rates
from turnout.service.calls import FleetCalls
from turnout.service.errors import NO_ROUTE, status_of
from turnout.service.metrics import Traffic, service_metrics
from turnout.service.replies import read_examples
from turnout.service.routes.changes import CHANGES
from turnout.service.routes.queries import QUERIES
from turnout.service.routes.routing import ChangeDispatcher, check_access
from turnout.service.routes.waiting import HELD_FIELD
from turnout.version import __version__
from turnout.web.access import READERS, Access
from turnout.web.connections import LIMITS, Limits
from turnout.web.errors import ErrorAnswers
from turnout.web.guard import BodyLimits, CallGuard, caller_of
from turnout.web.prometheus import MEDIA_TYPE, metrics_text

#: The paths of the service; all others belong to the page.
PREFIX = "/v1/"
METRICS = "/metrics"
#: Paths that are answered without a token, for monitors and for those who write clients; they reveal nothing secret.
PUBLIC = ("/healthz", "/readyz", "/openapi.json")
DESCRIPTION = """Client selection for federated learning, over HTTP.

Send the token as `Authorization: Bearer …`. Roles (`x-roles` of each operation): *device* checks in and reports for its
own client, *server* selects clients and closes rounds, *viewer* reads, *operator* does everything. Send an
`Idempotency-Key` with every POST, and the same key again if you get no answer, 429 or 503: it is executed once. Errors
are `{"error": text}`. Clients must ignore fields that they do not know.
"""


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

    The state of the application has `ending`, a threading.Event that ends all streams.
    """
    app = FastAPI(
        title="turnout",
        version=__version__,
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    traffic, ending = Traffic(), threading.Event()
    app.state.fleets, app.state.ending = fleets, ending
    answer_error = ErrorAnswers(status_of, no_route=NO_ROUTE)
    answer_error.add_to(app)
    for resource in (QUERIES, CHANGES):
        app.include_router(resource.router)

    @app.get("/healthz", include_in_schema=False)
    async def healthz() -> Response:
        return JSONResponse({"status": "ok"})

    @app.get("/readyz", include_in_schema=False)
    async def readyz() -> Response:
        is_ready = all(calls.is_ready for calls in fleets.values())
        return JSONResponse({"status": "ready" if is_ready else "not ready"}, 200 if is_ready else 503)

    @app.get(METRICS, include_in_schema=False)
    def metrics(request: Request) -> Response:
        check_access(request, None, READERS)
        caller = caller_of(request.scope)
        own = {name: calls for name, calls in fleets.items() if caller is not None and caller.may_use(name)}
        return PlainTextResponse(metrics_text(service_metrics(own, traffic)), media_type=MEDIA_TYPE)

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
        seconds_to_wait=limiter.seconds_to_wait,
    )
    if page is not None:
        app.add_middleware(PageBeside, page=page)
    make_schema = app.openapi

    def openapi() -> dict[str, Any]:
        schema, examples = make_schema(), read_examples()
        for name, described in schema.get("components", {}).get("schemas", {}).items():
            if name in examples:  # not in the models, because FastAPI drops null in their examples
                described["examples"] = examples[name]
        schema.setdefault("components", {})["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        return schema

    app.openapi = openapi  # type: ignore[method-assign]
    return app


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
