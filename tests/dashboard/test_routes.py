"""Every route, by every method; and that none of them changes anything."""

from __future__ import annotations

import json
import logging
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

import pytest
from starlette.routing import Route

from dashboard.served import Served, run_store, served, small_fleet
from scheduler.fleets import packed_from_disk
from turnout.dashboard.app import make_app
from turnout.dashboard.files import page_files
from turnout.dashboard.guard import HEADERS
from turnout.dashboard.views import overview
from turnout.dashboard.watch import Watch
from turnout.errors import SettingError
from turnout.store import RunStore
from waiting import LONGEST_WAIT

READ = {"GET": 200, "HEAD": 200}
NEVER = dict.fromkeys(("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"), 405)
#: Each route: how it is asked for here, and what it answers to each method. A new route needs a line.
ROUTES: dict[str, tuple[str, dict[str, int]]] = {
    "/": ("/", READ),
    "/static/{name}": ("/static/index.html", READ),
    "/api/store": ("/api/store", READ),
    "/api/overview": ("/api/overview", READ),
    "/api/fairness": ("/api/fairness", READ),
    "/api/clients": ("/api/clients?sort=turns&order=asc&page=1&size=10&search=c", READ),
    "/api/queues": ("/api/queues?order=id&page=1", READ),
    "/api/turns": ("/api/turns?order=turns&page=1", READ),
    "/api/speed": ("/api/speed", READ),
    "/api/rounds": ("/api/rounds?page=1&size=10", READ),
    "/api/round": ("/api/round?number=3", READ),
    "/api/client": ("/api/client?id=c1", READ),
    "/api/explain": ("/api/explain?id=c1&round=3", READ),
    "/api/training": ("/api/training", READ),
    "/api/compare": ("/api/compare", READ),
    "/api/system": ("/api/system", READ),
    "/api/live": ("/api/live", {"HEAD": 200}),  # GET does not end: see test_machines
    "/metrics": ("/metrics", READ),
    "/healthz": ("/healthz", READ),
}


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        yield Path(name)


@pytest.fixture(scope="module")
def fleet(place: Path) -> Iterator[Served]:
    small_fleet(place / "fleet.turnout", rounds=12)
    with served(place / "fleet.turnout") as there:
        there.wait_read()
        yield there


@pytest.fixture(scope="module")
def runs(place: Path) -> Iterator[Served]:
    run_store(place / "runs.turnout", rounds=12)
    with served(place / "runs.turnout") as there:
        yield there


def test_the_table_above_is_all_there_is(place: Path) -> None:
    small_fleet(place / "listed.turnout", rounds=1, is_open=False)
    watch = Watch(place / "listed.turnout")
    try:
        app = make_app(watch)
        found = {route.path: route.methods for route in app.routes if isinstance(route, Route)}
        others = [route for route in app.routes if not isinstance(route, Route)]
    finally:
        watch.stop()
    assert others == [], "nothing is mounted, no sockets"
    assert set(found) == set(ROUTES)
    assert {frozenset(methods or ()) for methods in found.values()} == {frozenset({"GET", "HEAD"})}


@pytest.mark.parametrize("route", ROUTES)
def test_each_route_answers_to_looking_and_to_nothing_else(fleet: Served, runs: Served, route: str) -> None:
    asked, expected = ROUTES[route]
    for there in (fleet, runs):
        for method, status in {**expected, **NEVER}.items():
            answer = there.ask(method, asked)
            assert answer.status == status, (method, asked)
            assert_guarded(answer.headers)
            if method == "HEAD":
                assert answer.body == b""
                if route != "/api/live":
                    same = there.get(asked)
                    assert answer.headers["content-type"] == same.headers["content-type"]
            if status == 405:
                assert answer.headers["allow"] == "GET, HEAD"
                assert json.loads(answer.body) == {"error": "this dashboard is read-only: use GET or HEAD"}


def assert_guarded(headers: dict[str, str]) -> None:
    for name, value in HEADERS.items():
        assert headers[name] == value, name
    assert headers["cache-control"] in ("no-store", "no-cache")
    assert "server" not in headers
    assert "access-control-allow-origin" not in headers


def test_what_the_headers_forbid() -> None:
    """In words of their own, so that nobody loosens them unawares."""
    policy = dict(part.strip().split(" ", 1) for part in HEADERS["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == "'self'", "no inline scripts, no eval, nobody else's"
    assert policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["form-action"] == policy["base-uri"] == "'none'"
    assert HEADERS["x-content-type-options"] == "nosniff"
    assert HEADERS["x-frame-options"] == "DENY"
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
def test_what_is_not_there_is_a_404_in_json(fleet: Served, path: str) -> None:
    answer = fleet.get(path)
    assert answer.status == 404, answer
    assert list(json.loads(answer.body)) == ["error"]
    assert_guarded(answer.headers)


def test_raw_paths_that_no_client_library_would_send(fleet: Served) -> None:
    for line in (b"GET /static/../../app.py HTTP/1.1", b"GET ../etc/passwd HTTP/1.1", b"GET * HTTP/1.1"):
        with socket.create_connection(("127.0.0.1", fleet.port), timeout=LONGEST_WAIT) as raw:
            raw.sendall(line + b"\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            answer = b""
            while part := raw.recv(65536):
                answer += part
        status = int(answer.split(b" ", 2)[1])
        assert status in (400, 404), line
        assert b"passwd" not in answer.split(b"\r\n\r\n", 1)[1] or b"there is no" in answer


def test_the_files_of_the_page(fleet: Served) -> None:
    every = page_files()
    assert "index.html" in every
    assert "plotly.min.js" in every
    for name, file in every.items():
        answer = fleet.get(f"/static/{quote(name)}")
        assert (answer.status, answer.body) == (200, file.data)
        assert answer.headers["content-type"] == file.media_type
        assert answer.headers["cache-control"] == "no-cache"
        again = fleet.get(f"/static/{quote(name)}", {"If-None-Match": answer.headers["etag"]})
        assert (again.status, again.body) == (304, b"")
        assert_guarded(again.headers)
        assert fleet.get(f"/static/{quote(name)}", {"If-None-Match": '"other"'}).status == 200
    assert len({file.etag for file in every.values()}) == len(every)
    assert fleet.get("/").body == every["index.html"].data


def test_the_page_asks_nobody_else(fleet: Served) -> None:
    """No address of another machine stands in what a browser would load."""
    page = fleet.get("/").body.decode()
    assert "http://" not in page.replace("http://www.w3.org/", "")
    assert "https://" not in page


def test_a_missing_script_of_the_charts_is_said_before_anything_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
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


# Nothing is changed


ODD = [
    *("", "0", "-1", "1e400", "NaN", "Infinity", "null", "[]", "{}", "' OR 1=1 --", "'; DROP TABLE runs; --", "\x00"),
    *("9" * 900, "x" * 999, "é\u202e\n", "%", "../..", "<script>", "true", "1.0", "١٢"),
]
NAMES = ("run", "sort", "order", "page", "size", "search", "number", "id", "round", "metric", "nothing", "token")


def contents_of(path: Path) -> dict[str, bytes]:
    """The file and its log, byte by byte; the index of the log is SQLite's own affair, and no log is an empty log."""
    beside = [file for file in sorted(path.parent.glob(f"{path.name}*")) if not file.name.endswith("-shm")]
    return {file.name: file.read_bytes() for file in beside if file.stat().st_size}


@pytest.mark.parametrize("kind", ["fleet", "runs"])
def test_whatever_is_asked_nothing_is_changed_and_nothing_breaks(folder: Path, kind: str) -> None:
    path = folder / "it.turnout"
    if kind == "fleet":
        small_fleet(path, rounds=12)
    else:
        run_store(path, rounds=12)
    before, state = contents_of(path), whole_state(path, kind)
    statuses = set()
    with served(path) as there:
        there.wait_read()
        for route, (asked, _) in ROUTES.items():
            if route == "/api/live":
                continue
            plain = asked.partition("?")[0]
            there.get(asked)
            for name in NAMES:
                for value in ODD[:: 2 if name in ("id", "search", "run") else 5]:
                    answer = there.get(f"{plain}?{name}={quote(value, safe='')}")
                    statuses.add(answer.status)
                    assert answer.status < 500, (plain, name, value, answer.body)
            there.get(f"{plain}?" + "&".join(f"{name}=1" for name in NAMES) * 20)
            there.get(f"{plain}?id=c1&id=c2&id=c3")
            there.get(f"{plain}?%=%&&&==&;")
        assert there.get("/healthz").status == 200
        assert contents_of(path) == before
    assert statuses == {200, 400, 404}
    assert contents_of(path) == before
    assert whole_state(path, kind) == state


def whole_state(path: Path, kind: str) -> Any:
    if kind == "fleet":
        return packed_from_disk(path)
    with RunStore(path, read_only=True) as store:
        return [(one, store.columns(one.id).to_bytes()) for one in store.runs()]


def test_a_file_that_may_not_be_written_to_can_be_looked_at(folder: Path) -> None:
    """As a copy is: without a log beside it, and read-only."""
    path, copy = folder / "fleet.turnout", folder / "copy.turnout"
    small_fleet(path, rounds=5, is_open=False)
    with closing(sqlite3.connect(path)) as db:
        db.execute("VACUUM INTO ?", (str(copy),))
    copy.chmod(0o400)
    with served(copy) as there:
        there.wait_read()
        assert there.json("/api/overview")["round"] == 5
    assert [file.name for file in sorted(folder.glob("copy*"))] == ["copy.turnout"]


# When something breaks


def test_an_error_nobody_thought_of_is_a_500_in_json_and_a_word_in_the_log(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The reader is told that it failed, not how: what failed stands in the terminal."""
    small_fleet(folder / "fleet.turnout", rounds=2, is_open=False)

    def break_down(*_: Any) -> None:
        raise ZeroDivisionError("a secret of the house")

    monkeypatch.setattr(overview, "_open_round", break_down)
    with served(folder / "fleet.turnout") as there, caplog.at_level(logging.ERROR):
        there.wait_read()
        for _ in range(2):
            answer = there.get("/api/overview")
            assert answer.status == 500
            assert list(json.loads(answer.body)) == ["error"]
            assert b"secret" not in answer.body
            assert_guarded(answer.headers)
        assert there.get("/api/fairness").status == 200
    failed = [record for record in caplog.records if record.name == "turnout.dashboard"]
    assert [record.getMessage() for record in failed] == ["/api/overview failed"] * 2
    assert all(record.exc_info for record in failed)
    assert [record for record in caplog.records if record.name.startswith("uvicorn")] == []
