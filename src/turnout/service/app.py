"""The web application of the service."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp

from turnout.errors import TurnoutError
from turnout.service.access.callers import Access, caller_of
from turnout.service.access.guard import METRICS, BodyLimits, Guard
from turnout.service.access.rates import Rates
from turnout.service.calls import FleetCalls
from turnout.service.direct import DirectCalls
from turnout.service.errors import http_error, library_error, validation_error
from turnout.service.examples import add_examples
from turnout.service.metrics import Traffic, metrics_text
from turnout.service.routes import READERS, ROLES_FIELD, check_access, make_router
from turnout.version import __version__
from turnout.web.connections import LIMITS, Limits
from turnout.web.prometheus import MEDIA_TYPE

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
        page: The application that answers all paths that are not of the service, such as a dashboard.
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
    app.state.fleets, app.state.remove_tokens = fleets, access.remove_client
    app.state.ending = ending
    router = make_router(fleets, ending.is_set)
    app.include_router(router)

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
        caller = caller_of(request)
        own = {name: calls for name, calls in fleets.items() if caller.fleet in (None, name)}
        return PlainTextResponse(metrics_text(own, traffic), media_type=MEDIA_TYPE)

    app.add_middleware(DirectCalls, routes=router.routes, check=check_access, roles_field=ROLES_FIELD)
    app.add_middleware(Guard, access=access, page=page, limits=limits, bodies=bodies, rates=rates, traffic=traffic)
    app.add_exception_handler(TurnoutError, library_error)
    app.add_exception_handler(RequestValidationError, validation_error)
    app.add_exception_handler(HTTPException, http_error)
    make_schema = app.openapi

    def openapi() -> dict[str, Any]:
        schema = make_schema()
        add_examples(schema)
        schema.setdefault("components", {})["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        return schema

    app.openapi = openapi  # type: ignore[method-assign]
    return app
