"""The web application: one page, its files, and what the page asks for. Every route only reads."""

from __future__ import annotations

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from turnout.dashboard.files import page_files
from turnout.dashboard.guard import METHODS, Guard
from turnout.dashboard.sources.base import Source
from turnout.dashboard.views import client, comparing, fairness, overview, queues, rounds, speed, system
from turnout.dashboard.views.common import number as as_number
from turnout.dashboard.watch import Watch
from turnout.errors import ReportError, StoreError, TurnoutError
from turnout.version import __version__

LOOK_EVERY = 0.25  # seconds between two looks at the version, for each page that is open
SAY_SOMETHING = 15.0  # seconds, so that nobody on the way takes the line for dead
KEPT_ANSWERS = 64
JSON, STREAM = "application/json", "text/event-stream"

Run = Annotated[int | None, Query(ge=1)]
PageNumber = Annotated[int, Query(ge=1, le=10**9)]
Size = Annotated[int, Query(ge=1, le=500)]
Words = Annotated[str, Query(max_length=1000)]


class ResponseCache:
    """The newest answers as bytes, as long as nothing has changed since."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Any, ...], tuple[int, bytes]] = OrderedDict()

    def get(self, key: tuple[Any, ...], version: int) -> bytes | None:
        """The answer of this version."""
        found = self._kept.get(key)
        return found[1] if found is not None and found[0] == version else None

    def put(self, key: tuple[Any, ...], version: int, body: bytes) -> None:
        """Keep it; the oldest goes."""
        self._kept[key] = (version, body)
        while len(self._kept) > KEPT_ANSWERS:
            self._kept.popitem(last=False)


def make_app(watch: Watch, *, token: str | None = None) -> FastAPI:
    """The dashboard of what is watched."""
    app = FastAPI(title="turnout", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    latencies, answers = system.Latencies(), ResponseCache()
    look = partial(app.api_route, methods=list(METHODS))
    app.add_middleware(Guard, token=token)

    def answer(name: str, run: int | None, view: Callable[..., dict[str, Any]], **asked: Any) -> Response:
        """Look under the watch's lock; the same question of the same version is answered from memory."""
        begun = time.perf_counter()
        key = (name, run, *asked.items())
        with watch.looking(run) as source:
            version = watch.version
            body = answers.get(key, version)
            if body is None:
                told = view(watch, source, **asked)
                body = as_json(told)
                if not told.get("open") and not told.get("is_open") and name != "system":  # time goes on in these
                    answers.put(key, version, body)
        latencies.add(f"/api/{name}", time.perf_counter() - begun)
        return Response(body, media_type=JSON)

    def simple(name: str, view: Callable[..., dict[str, Any]]) -> None:
        def route(run: Run = None) -> Response:
            return answer(name, run, view)

        look(f"/api/{name}", name=name)(route)

    simple("overview", overview.overview)
    simple("fairness", fairness.fairness)
    simple("speed", speed.speed)
    simple("compare", comparing.compare)

    @look("/")
    def page(request: Request) -> Response:
        return _file(request, "index.html")

    @look("/static/{name}")
    def static(request: Request, name: str) -> Response:
        return _file(request, name)

    @look("/api/store")
    def store() -> Response:
        return Response(as_json({**watch.told(), "turnout": __version__}), media_type=JSON)

    @look("/api/clients")
    def clients(
        run: Run = None,
        sort: Words = "owed",
        order: Words = "desc",
        page: PageNumber = 1,
        size: Size = 50,
        search: Words = "",
    ) -> Response:
        return answer(
            "clients", run, fairness.clients, sort=sort, order=order, page=page, size=size, search=search.strip()
        )

    @look("/api/queues")
    def queues_(run: Run = None, order: Words = "owed", page: PageNumber = 1) -> Response:
        return answer("queues", run, queues.queues, order=order, page=page)

    @look("/api/turns")
    def turns(run: Run = None, order: Words = "owed", page: PageNumber = 1) -> Response:
        return answer("turns", run, queues.turns, order=order, page=page)

    @look("/api/rounds")
    def rounds_(run: Run = None, page: PageNumber = 1, size: Size = 50) -> Response:
        return answer("rounds", run, rounds.rounds, page=page, size=size)

    @look("/api/round")
    def round_(run: Run = None, number: Annotated[int | None, Query(ge=1)] = None) -> Response:
        return answer("round", run, rounds.one_round, wanted=number)

    @look("/api/client")
    def client_(id: Words, run: Run = None) -> Response:
        return answer("client", run, client.client, wanted=id)

    @look("/api/explain")
    def explain(id: Words, run: Run = None, round: Annotated[int | None, Query(ge=1)] = None) -> Response:
        return Response(as_json(_explained(watch, run, id, round)), media_type=JSON)

    @look("/api/training")
    def training(run: Run = None, metric: Words | None = None) -> Response:
        return answer("training", run, comparing.training, metric=metric)

    @look("/api/system")
    def system_(run: Run = None) -> Response:
        return answer("system", run, system.system, latencies=latencies)

    @look("/api/live")
    async def live(request: Request) -> Response:
        if request.method == "HEAD":
            return Response(media_type=STREAM)
        return StreamingResponse(_changes(watch, request), media_type=STREAM)

    @look("/metrics")
    def metrics() -> PlainTextResponse:
        try:
            with watch.looking() as source:
                words = system.metrics(watch, source)
        except StoreError:  # which is what turnout_up tells
            words = system.metrics(watch, None)
        return PlainTextResponse(words, media_type="text/plain; version=0.0.4")

    @look("/healthz")
    def healthz() -> JSONResponse:
        state = watch.state
        well = state.trouble is None
        told = {"status": "ok" if well else "trouble", "trouble": state.trouble, "version": state.version}
        return JSONResponse(told, 200 if well else 503)

    app.add_exception_handler(TurnoutError, _refused)
    app.add_exception_handler(RequestValidationError, _not_valid)
    app.add_exception_handler(HTTPException, _not_there)
    return app


def as_json(told: Any) -> bytes:
    """One line; what is not a number must have been left out before."""
    return json.dumps(told, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _file(request: Request, name: str) -> Response:
    file = page_files().get(name)
    if file is None:
        return JSONResponse({"error": f"there is no file {name!r}"}, 404)
    headers = {"etag": file.mark, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == file.mark:
        return Response(status_code=304, headers=headers)
    return Response(file.data, media_type=file.media_type, headers=headers)


def _explained(watch: Watch, run: int | None, client: str, number: int | None) -> dict[str, Any]:
    """Without the lock: it may take a while, and reads by itself."""
    with watch.looking(run) as source:
        if source is None:
            raise ReportError("there is nothing to explain yet: no run has begun")
        row, newest = source.row_of(client), _newest(source)
    if not newest:
        raise ReportError("there is nothing to explain yet: no round has been chosen")
    found = source.explain(row, newest if number is None else number)
    return {name: as_number(value) if isinstance(value, float) else value for name, value in found.items()}


def _newest(source: Source) -> int:
    opened = source.open_round()
    return source.ledger.last if opened is None else max(opened[0].round, source.ledger.last)


async def _changes(watch: Watch, request: Request) -> AsyncIterator[str]:
    """Where things stand, now and whenever they have changed."""
    told, said_at = None, time.monotonic()
    while not watch.stopped and not await request.is_disconnected():
        now = watch.state
        if now != told:
            told, said_at = now, time.monotonic()
            news = {
                "version": now.version,
                "reading": None if now.reading is None else {"done": now.reading[0], "of": now.reading[1]},
                "trouble": now.trouble,
                "live": now.live,
            }
            yield f"event: change\ndata: {json.dumps(news)}\n\n"
        elif time.monotonic() - said_at > SAY_SOMETHING:
            said_at = time.monotonic()
            yield ": still here\n\n"
        await asyncio.sleep(LOOK_EVERY)


def _refused(_: Request, error: Exception) -> JSONResponse:
    status = 404 if isinstance(error, ReportError) else 503 if isinstance(error, StoreError) else 400
    return JSONResponse({"error": str(error)}, status)


def _not_valid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    wrong = error.errors()[0]
    return JSONResponse({"error": f"{wrong['loc'][-1]}: {str(wrong['msg']).lower()}"}, 400)


def _not_there(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": str(error.detail).lower()}, error.status_code)
