"""The web application of the service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from turnout.errors import TurnoutError
from turnout.service.access import Access
from turnout.service.calls import FleetCalls
from turnout.service.direct import DirectCalls
from turnout.service.errors import http_error, library_error, validation_error
from turnout.service.guard import BodyLimits, Guard
from turnout.service.routes import ROLES_FIELD, check_access, make_router
from turnout.version import __version__
from turnout.web.connections import LIMITS, Limits

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
) -> FastAPI:
    """Returns the application that serves these fleets.

    Args:
        fleets: The fleets by name; their threads must have been started.
        access: Finds the caller of a request.
        page: The application that answers all paths that are not of the service, such as a dashboard.
        limits: The limits of headers.
        bodies: The limits of bodies.
    """
    app = FastAPI(
        title="turnout",
        version=__version__,
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.fleets, app.state.remove_tokens = fleets, access.remove_client
    router = make_router(fleets)
    app.include_router(router)

    @app.get("/healthz", include_in_schema=False)
    async def healthz() -> Response:
        return JSONResponse({"status": "ok"})

    @app.get("/readyz", include_in_schema=False)
    async def readyz() -> Response:
        is_ready = all(calls.is_ready for calls in fleets.values())
        return JSONResponse({"status": "ready" if is_ready else "not ready"}, 200 if is_ready else 503)

    app.add_middleware(DirectCalls, routes=router.routes, check=check_access, roles_field=ROLES_FIELD)
    app.add_middleware(Guard, access=access, page=page, limits=limits, bodies=bodies)
    app.add_exception_handler(TurnoutError, library_error)
    app.add_exception_handler(RequestValidationError, validation_error)
    app.add_exception_handler(HTTPException, http_error)
    make_schema = app.openapi

    def openapi() -> dict[str, Any]:
        schema = make_schema()
        schema.setdefault("components", {})["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        return schema

    app.openapi = openapi  # type: ignore[method-assign]
    return app
