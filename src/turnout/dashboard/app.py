"""The web application: one page, its static files, and a read-only JSON API."""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from turnout.dashboard.files import page_files
from turnout.dashboard.views import client, comparing, fairness, overview, queues, rounds, runs, speed, system
from turnout.dashboard.views.common import RoundNumber, Run, Text, json_number
from turnout.dashboard.watch import Watch
from turnout.errors import ReportError, StoreError, TurnoutError
from turnout.version import __version__
from turnout.web.access import Access
from turnout.web.connections import LIMITS, Limits
from turnout.web.errors import ErrorAnswers, error_response
from turnout.web.guard import JSON, READING, PageGuard, caller_of
from turnout.web.prometheus import MEDIA_TYPE, metrics_text

STREAM_POLL_SECONDS = 0.25  # interval between two checks of the version, for each open stream
KEEPALIVE_SECONDS = 15.0  # prevents proxies from closing idle connections
CACHED_RESPONSES = 64
STREAM = "text/event-stream"
#: Returns the data of a page.
View = Callable[..., dict[str, Any]]
#: Paths that are answered without a token, for monitors and load balancers; their responses reveal nothing then.
PUBLIC = ("/healthz",)

#: The views of a fleet or run, each at /api/NAME; the parameters of a request are those of the function.
VIEWS: dict[str, View] = {
    "overview": overview.overview,
    "fairness": fairness.fairness,
    "clients": fairness.clients,
    "queues": queues.queues,
    "turns": queues.turns,
    "speed": speed.speed,
    "rounds": rounds.rounds,
    "round": rounds.round_detail,
    "client": client.client,
    "compare": comparing.compare,
    "training": comparing.training,
    "runs": runs.runs,
}


class ResponseCache:
    """The most recent response bodies, each valid for one version of the data."""

    def __init__(self) -> None:
        self._bodies: OrderedDict[tuple[Any, ...], tuple[int, bytes]] = OrderedDict()

    def get(self, key: tuple[Any, ...], version: int) -> bytes | None:
        """Returns the body for this version; None if it is not cached."""
        entry = self._bodies.get(key)
        return entry[1] if entry is not None and entry[0] == version else None

    def put(self, key: tuple[Any, ...], version: int, body: bytes) -> None:
        """Stores a body and drops the oldest if the cache is full."""
        self._bodies[key] = (version, body)
        while len(self._bodies) > CACHED_RESPONSES:
            self._bodies.popitem(last=False)


def make_app(watch: Watch, access: Access, *, fleet: str | None = None, limits: Limits = LIMITS) -> FastAPI:
    """Returns the application that serves the watched store.

    Args:
        watch: Follows the store.
        access: Finds the caller of a request.
        fleet: The fleet that the tokens name, if the access is to several.
        limits: The limits of headers.
    """
    app = FastAPI(title="turnout", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    latencies, cache = system.Latencies(), ResponseCache()
    route = partial(app.api_route, methods=list(READING))
    app.add_middleware(PageGuard, access=access, fleet=fleet, public=PUBLIC, limits=limits)

    def add_view(name: str, view: View) -> None:
        def respond(run: Run = None, **arguments: Any) -> Response:
            """Computes the view under the lock of the watch, or returns the cached response of the same version."""
            start = time.perf_counter()
            key = (name, run, *arguments.items())
            with watch.locked_source(run) as source:
                version = watch.state.version
                body = cache.get(key, version)
                if body is None:
                    data = view(watch, source, **arguments)
                    body = as_json(data)
                    # Elapsed times of open rounds, of running turns and of the system page, and figures of runs that
                    # are still being computed, change without a new version.
                    is_timed = any(data.get(key) for key in ("open", "is_open", "running", "pending", "uptime"))
                    if not is_timed:
                        cache.put(key, version, body)
            latencies.add(f"/api/{name}", time.perf_counter() - start)
            return Response(body, media_type=JSON)

        own, parameters = inspect.signature(respond, eval_str=True), inspect.signature(view, eval_str=True).parameters
        asked = [parameter for parameter in parameters.values() if parameter.kind is parameter.KEYWORD_ONLY]
        run = own.parameters["run"].replace(kind=inspect.Parameter.KEYWORD_ONLY)
        respond.__signature__ = own.replace(parameters=[run, *asked])  # type: ignore[attr-defined]
        route(f"/api/{name}", name=name)(respond)

    for name, view in VIEWS.items():
        add_view(name, view)
    add_view("system", lambda watch, source: system.system(watch, source, latencies))

    @route("/")
    def page(request: Request) -> Response:
        return _file_response(request, "index.html")

    @route("/static/{name}")
    def static(request: Request, name: str) -> Response:
        return _file_response(request, name)

    @route("/api/store")
    def store() -> Response:
        return Response(as_json({**watch.describe(), "turnout": __version__}), media_type=JSON)

    @route("/api/explain")
    def explain(id: Text, run: Run = None, round: RoundNumber = None) -> Response:
        return Response(as_json(_explanation(watch, run, id, round)), media_type=JSON)

    @route("/api/live")
    async def live(request: Request) -> Response:
        if request.method == "HEAD":
            return Response(media_type=STREAM)
        return StreamingResponse(_change_events(watch, request), media_type=STREAM)

    @route("/metrics")
    def metrics() -> PlainTextResponse:
        return PlainTextResponse(metrics_text(system.metrics(watch)), media_type=MEDIA_TYPE)

    @route("/healthz")
    def healthz(request: Request) -> JSONResponse:
        state = watch.state
        healthy = state.last_error is None
        data: dict[str, Any] = {"status": "ok" if healthy else "unreadable"}
        if caller_of(request.scope) is not None:
            data |= {"last_error": state.last_error, "version": state.version}
        return JSONResponse(data, 200 if healthy else 503)

    ErrorAnswers(_status_of, invalid=400).add_to(app)
    return app


def as_json(data: Any) -> bytes:
    """Encodes data as compact JSON; NaN and infinity raise ValueError."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _file_response(request: Request, name: str) -> Response:
    file = page_files().get(name)
    if file is None:
        return error_response(f"there is no file {name!r}", 404)
    headers = {"etag": file.etag, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    return Response(file.data, media_type=file.media_type, headers=headers)


def _explanation(watch: Watch, run: int | None, client_id: str, number: int | None) -> dict[str, Any]:
    """Explains a selection; releases the lock first, because the replay may take seconds and reads the file itself."""
    with watch.locked_source(run) as source:
        row, newest = source.row_of(client_id), source.newest_round
    if not newest:
        raise ReportError("there is nothing to explain yet: no cohort has been selected")
    explanation = source.explain(row, newest if number is None else number)
    data = {**asdict(explanation), "next": client.next_turn(explanation)}
    return {name: json_number(value) if isinstance(value, float) else value for name, value in data.items()}


async def _change_events(watch: Watch, request: Request) -> AsyncIterator[str]:
    """Yields the state of the watch as server-sent events: the current one, then every change."""
    sent, sent_at = None, time.monotonic()
    while not watch.stopped and not await request.is_disconnected():
        state = watch.state
        if state != sent:
            sent, sent_at = state, time.monotonic()
            data = {
                "version": state.version,
                "reading": None if state.reading is None else {"done": state.reading[0], "of": state.reading[1]},
                "last_error": state.last_error,
                "live": state.live,
            }
            yield f"event: change\ndata: {json.dumps(data)}\n\n"
        elif time.monotonic() - sent_at > KEEPALIVE_SECONDS:
            sent_at = time.monotonic()
            yield ": keep-alive\n\n"
        await asyncio.sleep(STREAM_POLL_SECONDS)


def _status_of(_: Request, error: TurnoutError) -> int:
    return 404 if isinstance(error, ReportError) else 503 if isinstance(error, StoreError) else 400
