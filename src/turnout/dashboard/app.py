"""The web application: one page, its static files, and a read-only JSON API."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from turnout.dashboard.sources.base import Source
from turnout.dashboard.views import clients, comparing, overview, rounds, system
from turnout.dashboard.views.common import RoundNumber, Run, Text, about, plain
from turnout.dashboard.views.comparing import Baselines
from turnout.dashboard.watch import Watch, log
from turnout.errors import ReportError, SettingError, StoreError, TurnoutError
from turnout.version import __version__
from turnout.web.access import Access
from turnout.web.errors import UNREADABLE, ErrorAnswers, error_response
from turnout.web.guard import JSON, PageGuard, caller_of, is_still_allowed
from turnout.web.prometheus import MEDIA_TYPE, metrics_text
from turnout.web.serving import LIMITS, Limits

_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
PLOTLY = "plotly.min.js"


@dataclass(frozen=True, slots=True)
class PageFile:
    """The content of a file, its media type, and an entity tag that changes with the content."""

    data: bytes
    media_type: str
    etag: str


@cache
def page_files() -> dict[str, PageFile]:
    """Returns the files by name: those of this package, and Plotly's script from its Python package."""
    files = {
        file.name: _page_file(file.name, file.read_bytes())
        for file in resources.files("turnout.dashboard").joinpath("static").iterdir()
        if Path(file.name).suffix in _TYPES
    }
    try:
        script = resources.files("plotly").joinpath("package_data", PLOTLY).read_bytes()
    except (ModuleNotFoundError, OSError) as error:
        raise SettingError(
            f"the charts need Plotly's script, which was not found ({error}): pip install 'turnout[dashboard]'"
        ) from error
    return {**files, PLOTLY: _page_file(PLOTLY, script)}


def _page_file(name: str, data: bytes) -> PageFile:
    media_type = _TYPES[Path(name).suffix]
    return PageFile(data, f"{media_type}; charset=utf-8", f'"{hashlib.sha256(data).hexdigest()[:20]}"')


STREAM_POLL_SECONDS = 0.25  # interval between two checks of the version, for each open stream
KEEPALIVE_SECONDS = 15.0  # prevents proxies from closing idle connections
CACHED_RESPONSES = 64
#: The requests of a page that wait for its data in threads, which all pages of a server share.
MAX_THREADS = 8
STREAM = "text/event-stream"
#: Returns the data of a page: a function of the watch, the source or both, and of the parameters of the request.
View = Callable[..., dict[str, Any]]
#: Paths that are answered without a token, for monitors and load balancers; their responses reveal nothing then.
PUBLIC = ("/healthz",)

#: The views of a fleet or run, each at /api/NAME; the parameters of a request are those of the function.
VIEWS: dict[str, View] = {
    "overview": overview.overview,
    "fairness": clients.fairness,
    "clients": clients.clients,
    "queues": clients.queues,
    "turns": clients.turns,
    "speed": rounds.speed,
    "rounds": rounds.rounds,
    "round": rounds.round_detail,
    "client": clients.client,
    "compare": comparing.compare,
    "training": comparing.training,
    "runs": comparing.runs,
    "system": system.system,
}


def make_app(watch: Watch, access: Access, *, fleet: str | None = None, limits: Limits = LIMITS) -> FastAPI:
    """Returns the application that serves the watched store.

    Args:
        watch: Follows the store.
        access: Finds the caller of a request.
        fleet: The fleet that the tokens name, if the access is to several.
        limits: The limits of headers.
    """
    app = FastAPI(title="turnout", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    bodies: dict[tuple[Any, ...], bytes] = {}  # the latest that were computed, by version, view and parameters
    app.add_middleware(PageGuard, access=access, fleet=fleet, public=PUBLIC, limits=limits)

    few = asyncio.Semaphore(MAX_THREADS)

    async def waiting_for_thread() -> AsyncIterator[None]:
        async with few:
            yield

    def add_view(name: str, view: View) -> None:
        def respond(run: Run = None, **arguments: Any) -> Response:
            """Computes the view under the lock of the watch, or returns the cached response of the same version."""
            with watch.locked_source(run) as source:
                key = (watch.state.version, name, run, *arguments.items())
                body = bodies.get(key)
                if body is None:
                    data = view_data(view, watch, source, **arguments)
                    body = as_json(data)
                    # Elapsed times of open rounds, of running turns and of the system page, the last hours, and figures
                    # of runs that are still being computed, change without a new version.
                    if not arguments.get("since") and not any(
                        data.get(timed) for timed in ("open", "is_open", "running", "pending", "uptime")
                    ):
                        bodies[key] = body
                        if len(bodies) > CACHED_RESPONSES:
                            del bodies[next(iter(bodies))]
            return Response(body, media_type=JSON)

        own, parameters = inspect.signature(respond, eval_str=True), inspect.signature(view, eval_str=True).parameters
        asked = [parameter for parameter in parameters.values() if parameter.kind is parameter.KEYWORD_ONLY]
        run = own.parameters["run"].replace(kind=inspect.Parameter.KEYWORD_ONLY)
        respond.__signature__ = own.replace(parameters=[run, *asked])  # type: ignore[attr-defined]
        app.get(f"/api/{name}", name=name, dependencies=[Depends(waiting_for_thread)])(respond)

    for name, view in VIEWS.items():
        add_view(name, view)

    @app.get("/")
    def page(request: Request) -> Response:
        return _file_response(request, "index.html")

    @app.get("/static/{name}")
    def static(request: Request, name: str) -> Response:
        return _file_response(request, name)

    @app.get("/api/store")
    def store() -> Response:
        return Response(as_json({**watch.describe(), "turnout": __version__}), media_type=JSON)

    @app.get("/api/explain")
    def explain(id: Text, run: Run = None, round: RoundNumber = None) -> Response:
        return Response(as_json(_explanation(watch, run, id, round)), media_type=JSON)

    baselines = Baselines(watch)

    @app.get("/api/baseline", dependencies=[Depends(waiting_for_thread)])
    def baseline(run: Run = None) -> Response:
        return Response(as_json(plain(baselines.get(run))), media_type=JSON)

    @app.get("/api/live")
    async def live(request: Request) -> Response:
        return StreamingResponse(_change_events(watch, request), media_type=STREAM)

    @app.get("/metrics")
    def metrics() -> PlainTextResponse:
        return PlainTextResponse(metrics_text(system.metrics(watch)), media_type=MEDIA_TYPE)

    @app.get("/healthz")
    def healthz(request: Request) -> JSONResponse:
        state = watch.state
        healthy = state.last_error is None
        data: dict[str, Any] = {"status": "ok" if healthy else "unreadable"}
        if caller_of(request.scope) is not None:
            data |= {"last_error": state.last_error, "version": state.version}
        return JSONResponse(data, 200 if healthy else 503)

    ErrorAnswers(_status_of, invalid=400).add_to(app)
    if fleet is not None:
        app.add_exception_handler(StoreError, _answer_neutrally)
    return app


def view_data(view: View, watch: Watch, source: Source, **arguments: Any) -> dict[str, Any]:
    """Returns the data of a view for JSON, with the description of the source that every page shows."""
    known = {"watch": watch, "source": source}
    own = [known[name] for name in inspect.signature(view).parameters if name in known]
    data: dict[str, Any] = plain({"about": about(watch, source, arguments.get("since")), **view(*own, **arguments)})
    return data


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
    data: dict[str, Any] = plain({**asdict(explanation), "next": clients.next_turn(explanation)})
    return data


async def _change_events(watch: Watch, request: Request) -> AsyncIterator[str]:
    """Yields the state of the watch as server-sent events: the current one, then every change."""
    sent, sent_at = None, time.monotonic()
    while not watch.stopped and is_still_allowed(request.scope) and not await request.is_disconnected():
        state = watch.state
        if state != sent:
            sent, sent_at = state, time.monotonic()
            yield f"event: change\ndata: {json.dumps(asdict(state))}\n\n"
        elif time.monotonic() - sent_at > KEEPALIVE_SECONDS:
            sent_at = time.monotonic()
            yield ": keep-alive\n\n"
        await asyncio.sleep(STREAM_POLL_SECONDS)


def _answer_neutrally(_: Request, error: Exception) -> Response:
    """Answers others than those who see the files of the server: the details are in its log."""
    log.error("%s", error)
    return error_response(UNREADABLE, 503)


def _status_of(_: Request, error: TurnoutError) -> int:
    return 404 if isinstance(error, ReportError) else 503 if isinstance(error, StoreError) else 400
