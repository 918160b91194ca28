"""The web application: one page, its static files, and a read-only JSON API."""

from __future__ import annotations

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from turnout.dashboard.files import page_files
from turnout.dashboard.sources.base import Source
from turnout.dashboard.views import client, comparing, fairness, overview, queues, rounds, runs, speed, system
from turnout.dashboard.views.common import json_number
from turnout.dashboard.watch import Watch
from turnout.errors import ReportError, StoreError, TurnoutError
from turnout.version import __version__
from turnout.web.access import Access
from turnout.web.connections import LIMITS, Limits
from turnout.web.errors import ErrorAnswers
from turnout.web.guard import JSON, READING, PageGuard, caller_of
from turnout.web.prometheus import MEDIA_TYPE

STREAM_POLL_SECONDS = 0.25  # interval between two checks of the version, for each open stream
KEEPALIVE_SECONDS = 15.0  # prevents proxies from closing idle connections
CACHED_RESPONSES = 64
STREAM = "text/event-stream"
#: Paths that are answered without a token, for monitors and load balancers; their responses reveal nothing then.
PUBLIC = ("/healthz",)

Run = Annotated[int | None, Query(ge=1)]
PageNumber = Annotated[int, Query(ge=1, le=10**9)]
Size = Annotated[int, Query(ge=1, le=500)]
Text = Annotated[str, Query(max_length=1000)]


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

    def respond(name: str, run: int | None, view: Callable[..., dict[str, Any]], **arguments: Any) -> Response:
        """Computes a view under the lock of the watch, or returns the cached response of the same version."""
        start = time.perf_counter()
        key = (name, run, *arguments.items())
        with watch.locked_source(run) as source:
            version = watch.version
            body = cache.get(key, version)
            if body is None:
                data = view(watch, source, **arguments)
                body = as_json(data)
                # Elapsed times of open rounds, of running turns and of the system page, and figures of runs that
                # are still being computed, change without a new version.
                is_timed = any(data.get(key) for key in ("open", "is_open", "running", "pending"))
                if not is_timed and name != "system":
                    cache.put(key, version, body)
        latencies.add(f"/api/{name}", time.perf_counter() - start)
        return Response(body, media_type=JSON)

    def add_view(name: str, view: Callable[..., dict[str, Any]]) -> None:
        def endpoint(run: Run = None) -> Response:
            return respond(name, run, view)

        route(f"/api/{name}", name=name)(endpoint)

    add_view("overview", overview.overview)
    add_view("fairness", fairness.fairness)
    add_view("speed", speed.speed)
    add_view("runs", runs.runs)

    @route("/")
    def page(request: Request) -> Response:
        return _file_response(request, "index.html")

    @route("/static/{name}")
    def static(request: Request, name: str) -> Response:
        return _file_response(request, name)

    @route("/api/store")
    def store() -> Response:
        return Response(as_json({**watch.describe(), "turnout": __version__}), media_type=JSON)

    @route("/api/clients")
    def clients(
        run: Run = None,
        sort: Text = "behind",
        order: Text = "desc",
        page: PageNumber = 1,
        size: Size = 50,
        search: Text = "",
    ) -> Response:
        return respond(
            "clients", run, fairness.clients, sort=sort, order=order, page=page, size=size, search=search.strip()
        )

    @route("/api/queues")
    def queues_(run: Run = None, order: Text = "owed", page: PageNumber = 1) -> Response:
        return respond("queues", run, queues.queues, order=order, page=page)

    @route("/api/turns")
    def turns(run: Run = None, order: Text = "owed", page: PageNumber = 1) -> Response:
        return respond("turns", run, queues.turns, order=order, page=page)

    @route("/api/rounds")
    def rounds_(run: Run = None, page: PageNumber = 1, size: Size = 50) -> Response:
        return respond("rounds", run, rounds.rounds, page=page, size=size)

    @route("/api/round")
    def round_(run: Run = None, number: Annotated[int | None, Query(ge=1)] = None) -> Response:
        return respond("round", run, rounds.round_detail, requested=number)

    @route("/api/client")
    def client_(id: Text, run: Run = None) -> Response:
        return respond("client", run, client.client, client_id=id)

    @route("/api/explain")
    def explain(id: Text, run: Run = None, round: Annotated[int | None, Query(ge=1)] = None) -> Response:
        return Response(as_json(_explanation(watch, run, id, round)), media_type=JSON)

    @route("/api/compare")
    def compare(run: Run = None, runs: Text = "") -> Response:
        return respond("compare", run, comparing.compare, picked=runs)

    @route("/api/training")
    def training(run: Run = None, metric: Text | None = None, runs: Text = "") -> Response:
        return respond("training", run, comparing.training, metric=metric, picked=runs)

    @route("/api/system")
    def system_(run: Run = None) -> Response:
        return respond("system", run, system.system, latencies=latencies)

    @route("/api/live")
    async def live(request: Request) -> Response:
        if request.method == "HEAD":
            return Response(media_type=STREAM)
        return StreamingResponse(_change_events(watch, request), media_type=STREAM)

    @route("/metrics")
    def metrics() -> PlainTextResponse:
        try:
            with watch.locked_source() as source:
                text = system.metrics(watch, source)
        except StoreError:  # turnout_up reports it
            text = system.metrics(watch, None)
        return PlainTextResponse(text, media_type=MEDIA_TYPE)

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
        return JSONResponse({"error": f"there is no file {name!r}"}, 404)
    headers = {"etag": file.etag, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    return Response(file.data, media_type=file.media_type, headers=headers)


def _explanation(watch: Watch, run: int | None, client_id: str, number: int | None) -> dict[str, Any]:
    """Explains a selection; releases the lock first, because the replay may take seconds and reads the file itself."""
    with watch.locked_source(run) as source:
        row, newest = source.row_of(client_id), _newest_round(source)
    if not newest:
        raise ReportError("there is nothing to explain yet: no cohort has been selected")
    explanation = source.explain(row, newest if number is None else number)
    data = {**asdict(explanation), "next": client.next_turn(explanation)}
    return {name: json_number(value) if isinstance(value, float) else value for name, value in data.items()}


def _newest_round(source: Source) -> int:
    opened = source.open_round()
    return source.ledger.last_round if opened is None else max(opened[0].round, source.ledger.last_round)


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
