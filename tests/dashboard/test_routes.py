"""Routes, methods, headers and static files; no request changes the store."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from starlette.routing import Route

from dashboard.served import Served, run_store, served, served_fleet, small_fleet
from live.fleets import packed_from_disk
from turnout.dashboard.app import make_app, page_files
from turnout.dashboard.views import overview
from turnout.dashboard.watch import Watch
from turnout.errors import SettingError
from turnout.lab import RunStore
from turnout.web.access import SharedToken
from turnout.web.guard import HEADERS, READ_ONLY

READ = {"GET": 200, "HEAD": 200}
REFUSED = dict.fromkeys(("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"), 405)
#: For each route a request path and the expected status by method. A new route needs an entry.
ROUTES: dict[str, tuple[str, dict[str, int]]] = {
    "/": ("/", READ),
    "/static/{name}": ("/static/index.html", READ),
    "/api/store": ("/api/store", READ),
    "/api/overview": ("/api/overview", READ),
    "/api/fairness": ("/api/fairness", READ),
    "/api/clients": ("/api/clients?sort=turns&order=asc&page=1&size=10&search=c", READ),
    "/api/queues": ("/api/queues", READ),
    "/api/turns": ("/api/turns?order=turns&page=1", READ),
    "/api/speed": ("/api/speed", READ),
    "/api/rounds": ("/api/rounds?page=1&size=10", READ),
    "/api/round": ("/api/round?number=3", READ),
    "/api/client": ("/api/client?id=c1", READ),
    "/api/explain": ("/api/explain?id=c1&round=3", READ),
    "/api/baseline": ("/api/baseline", READ),
    "/api/training": ("/api/training", READ),
    "/api/compare": ("/api/compare?runs=1,2", READ),
    "/api/runs": ("/api/runs", READ),
    "/api/system": ("/api/system", READ),
    "/api/live": ("/api/live", {"HEAD": 200}),  # GET does not end: see test_machines
    "/metrics": ("/metrics", READ),
    "/healthz": ("/healthz", READ),
}


@pytest.fixture(scope="module")
def fleet(directory: Path) -> Iterator[Served]:
    with served_fleet(directory, 12) as server:
        yield server


@pytest.fixture(scope="module")
def runs(directory: Path) -> Iterator[Served]:
    run_store(directory / "runs.turnout", rounds=12)
    with served(directory / "runs.turnout") as server:
        yield server


def test_the_application_has_exactly_the_listed_routes(directory: Path) -> None:
    small_fleet(directory / "listed.turnout", rounds=1, is_open=False)
    watch = Watch(directory / "listed.turnout")
    try:
        app = make_app(watch, SharedToken(None))
        results = {route.path: route.methods for route in app.routes if isinstance(route, Route)}
        others = [route for route in app.routes if not isinstance(route, Route)]
    finally:
        watch.stop()
    assert others == [], "no mounted applications and no sockets"
    assert set(results) == set(ROUTES)
    assert {frozenset(methods or ()) for methods in results.values()} == {frozenset({"GET"})}


@pytest.mark.parametrize("route", ROUTES)
def test_each_route_accepts_only_get_and_head(fleet: Served, runs: Served, route: str) -> None:
    request_path, expected = ROUTES[route]
    for server in (fleet, runs):
        for method, status in {**expected, **REFUSED}.items():
            answer = server.ask(method, request_path)
            assert answer.status == status, (method, request_path)
            assert_guarded(answer.headers)
            if method == "HEAD":
                assert answer.body == b""
                if route != "/api/live":
                    same = server.get(request_path)
                    assert answer.headers["content-type"] == same.headers["content-type"]
            if status == 405:
                assert answer.headers["allow"] == "GET, HEAD"
                assert json.loads(answer.body)["detail"] == READ_ONLY


def assert_guarded(headers: dict[str, str]) -> None:
    for name, value in HEADERS.items():
        assert headers[name] == value, name
    assert headers["cache-control"] in ("no-store", "no-cache")
    assert "server" not in headers
    assert "access-control-allow-origin" not in headers


def test_the_security_headers() -> None:
    """Repeats the headers literally, so that they cannot be relaxed by accident."""
    policy = dict(part.strip().split(" ", 1) for part in HEADERS["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == "'self'", "no inline scripts, no eval, no foreign scripts"
    assert policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["form-action"] == policy["base-uri"] == "'none'"
    assert (HEADERS["x-content-type-options"], HEADERS["x-frame-options"]) == ("nosniff", "DENY")
    assert HEADERS["referrer-policy"] == "no-referrer"
    assert HEADERS["cross-origin-resource-policy"] == "same-origin"


UNKNOWN = [
    "/nothing",
    "/api",
    "/api/",
    "/api/nothing",
    "/api/overview/",
    "/static",
    "/static/",
    "/docs",
    "/redoc",
    "/openapi.json",
    "/favicon.ico",
    "//",
    "//evil.example/",
    "/index.html",
    "/%00",
    "/api/overview%00",
    "/" + "x" * 5000,
]
OUTSIDE = [
    "/static/../app.py",
    "/static/..%2fapp.py",
    "/static/%2e%2e/app.py",
    "/static/%2e%2e%2fapp.py",
    "/static/..%5capp.py",
    "/static//etc/passwd",
    "/static/%2fetc%2fpasswd",
    "/static/....//....//etc/passwd",
    "/static/app.py",
    "/static/__init__.py",
    "/static/index.html%00.js",
    "/static/index.html/",
    "/static/INDEX.HTML",
    "/static/.",
    "/static/..",
    "/static/fleet.turnout",
]


@pytest.mark.parametrize("path", [*UNKNOWN, *OUTSIDE], ids=lambda path: path[:40])
def test_unknown_paths_return_404_as_json(fleet: Served, path: str) -> None:
    answer = fleet.get(path)
    assert answer.status == 404, answer
    assert set(json.loads(answer.body)) == {"type", "title", "status", "code", "detail"}
    assert_guarded(answer.headers)


def test_raw_paths_with_traversal_are_refused(fleet: Served) -> None:
    for line in (b"GET /static/../../app.py HTTP/1.1", b"GET ../etc/passwd HTTP/1.1", b"GET * HTTP/1.1"):
        answer = fleet.send_raw(line + b"\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert int(answer.split(b" ", 2)[1]) in (400, 404), line
        assert b"passwd" not in answer.split(b"\r\n\r\n", 1)[1] or b"there is no" in answer


def test_static_files_and_their_cache_headers(fleet: Served) -> None:
    files = page_files()
    assert "index.html" in files
    assert "plotly.min.js" in files
    for name, file in files.items():
        answer = fleet.get(f"/static/{quote(name)}")
        assert (answer.status, answer.body) == (200, file.data)
        assert answer.headers["content-type"] == file.media_type
        assert answer.headers["cache-control"] == "no-cache"
        again = fleet.get(f"/static/{quote(name)}", {"If-None-Match": answer.headers["etag"]})
        assert (again.status, again.body) == (304, b"")
        assert_guarded(again.headers)
        assert fleet.get(f"/static/{quote(name)}", {"If-None-Match": '"other"'}).status == 200
    assert len({file.etag for file in files.values()}) == len(files)
    assert fleet.get("/").body == files["index.html"].data


def test_a_missing_plotly_script_is_an_error_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    real = resources.files

    def without_plotly(name: str) -> Any:
        if name == "plotly":
            raise ModuleNotFoundError("No module named 'plotly'")
        return real(name)

    monkeypatch.setattr(resources, "files", without_plotly)
    page_files.cache_clear()
    try:
        with pytest.raises(SettingError, match=r"pip install 'turnout\[dashboard\]'"):
            page_files()
    finally:
        monkeypatch.undo()
        page_files.cache_clear()


# Requests change nothing


ODD_VALUES = [
    *("", "0", "-1", "1e400", "NaN", "Infinity", "null", "[]", "{}", "' OR 1=1 --", "'; DROP TABLE runs; --", "\x00"),
    *("9" * 900, "x" * 999, "é\u202e\n", "%", "../..", "<script>", "true", "1.0", "١٢"),
]
NAMES = ("run", "sort", "order", "page", "size", "search", "number", "id", "round", "metric", "nothing", "token")


def contents_of(path: Path) -> dict[str, bytes]:
    """Returns the non-empty files of a store, without the shared-memory index of the write-ahead log."""
    files = [file for file in sorted(path.parent.glob(f"{path.name}*")) if not file.name.endswith("-shm")]
    return {file.name: file.read_bytes() for file in files if file.stat().st_size}


def odd_requests(route: str, *, every_parameter: bool) -> Iterator[str]:
    """Yields requests with odd values of the parameters.

    Parameters that the route does not know have one odd value, unless `every_parameter` is true.
    """
    plain, _, query = ROUTES[route][0].partition("?")
    for index, name in enumerate(NAMES):
        values = ODD_VALUES[:: 2 if name in ("id", "search", "run") else 5]
        if not (every_parameter or name == "run" or f"{name}=" in query):
            values = [ODD_VALUES[(index + list(ROUTES).index(route)) % len(ODD_VALUES)]]
        for value in values:
            yield f"{plain}?{name}={quote(value, safe='')}"


@pytest.mark.parametrize("every_parameter", [False, pytest.param(True, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("kind", ["fleet", pytest.param("runs", marks=pytest.mark.thorough)])
def test_no_request_changes_the_file_or_causes_a_server_error(folder: Path, kind: str, every_parameter: bool) -> None:
    path = folder / "it.turnout"
    if kind == "fleet":
        small_fleet(path, rounds=12)
    else:
        run_store(path, rounds=12)
    before, state = contents_of(path), state_of(path, kind)
    statuses = set()
    with served(path) as server:
        server.wait_read()
        for route, (request_path, _) in ROUTES.items():
            if route == "/api/live":
                continue
            plain = request_path.partition("?")[0]
            server.get(request_path)
            for odd in odd_requests(route, every_parameter=every_parameter):
                answer = server.get(odd)
                statuses.add(answer.status)
                assert answer.status < 500, (odd, answer.body)
            server.get(f"{plain}?" + "&".join(f"{name}=1" for name in NAMES) * 20)
            server.get(f"{plain}?id=c1&id=c2&id=c3")
            server.get(f"{plain}?%=%&&&==&;")
        assert server.get("/healthz").status == 200
        assert contents_of(path) == before
    assert statuses == {200, 400, 404}
    assert contents_of(path) == before
    assert state_of(path, kind) == state


def state_of(path: Path, kind: str) -> Any:
    if kind == "fleet":
        return packed_from_disk(path)
    with RunStore(path, read_only=True) as store:
        return [(info, store.columns(info.id).to_bytes()) for info in store.runs()]


def test_a_read_only_copy_can_be_served(folder: Path) -> None:
    """Serves a read-only copy without a write-ahead log."""
    path, copy = folder / "fleet.turnout", folder / "copy.turnout"
    small_fleet(path, rounds=5, is_open=False)
    with closing(sqlite3.connect(path)) as db:
        db.execute("VACUUM INTO ?", (str(copy),))
    copy.chmod(0o400)
    with served(copy) as server:
        assert server.json("/api/overview")["round"] == 5
    assert [file.name for file in sorted(folder.glob("copy*"))] == ["copy.turnout"]


# Unexpected errors


def test_an_unexpected_error_is_a_500_and_is_logged(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The response contains no details of the error; the log does."""

    def break_down(*_: Any) -> None:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(overview, "_open_round", break_down)
    with served_fleet(folder, 2, is_open=False) as server, caplog.at_level(logging.ERROR):
        for _ in range(2):
            answer = server.get("/api/overview")
            assert answer.status == 500
            assert set(json.loads(answer.body)) == {"type", "title", "status", "code", "detail"}
            assert b"secret" not in answer.body
            assert_guarded(answer.headers)
        assert server.get("/api/fairness").status == 200
    failed = [record for record in caplog.records if record.name == "turnout.web"]
    assert [record.getMessage() for record in failed] == ["/api/overview failed"] * 2
    assert all(record.exc_info for record in failed)
    assert [record for record in caplog.records if record.name.startswith("uvicorn")] == []
