"""Access control: loopback host names, tokens and serve(); the list of several fleets, and their dashboards."""

from __future__ import annotations

import hmac
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from dashboard.served import Served, served, served_fleet, small_fleet
from dashboard.test_routes import ROUTES, assert_guarded
from requesting import Reply, running, send_request
from turnout.dashboard import serving
from turnout.dashboard.serving import FleetPages
from turnout.errors import SettingError, StoreError
from turnout.web.access import MIN_TOKEN, Access, Caller, SharedToken
from turnout.web.guard import COOKIE, PageGuard
from turnout.web.serving import LIMITS, Server
from waiting import MAX_WAIT

TOKEN = "a-token-for-the-tests"


@pytest.fixture(scope="module")
def directory(directory: Path) -> Path:
    small_fleet(directory / "fleet.turnout", rounds=4)
    return directory


@pytest.fixture(scope="module")
def locked(directory: Path) -> Iterator[Served]:
    with served(directory / "fleet.turnout", token=TOKEN) as server:
        server.wait_read()
        yield server


@pytest.fixture(scope="module")
def free(directory: Path) -> Iterator[Served]:
    with served(directory / "fleet.turnout") as server:
        server.wait_read()
        yield server


# The token

PATHS = [path for path, _ in ROUTES.values() if path != "/healthz"]
WRONG: list[dict[str, str]] = [
    {},
    {"Authorization": ""},
    {"Authorization": "Bearer"},
    {"Authorization": "Bearer "},
    {"Authorization": f"Basic {TOKEN}"},
    {"Authorization": TOKEN},
    {"Authorization": f"Bearer {TOKEN}x"},
    {"Authorization": f"Bearer {TOKEN[:-1]}"},
    {"Authorization": f"Bearer {TOKEN.upper()}"},
    {"Authorization": "Bearer é\xff"},
    {"Cookie": f"{COOKIE}="},
    {"Cookie": COOKIE},
    {"Cookie": f"{COOKIE}=wrong"},
    {"Cookie": f"other={TOKEN}"},
    {"Cookie": f"{COOKIE}x={TOKEN}"},
    {"Cookie": f"{COOKIE}={TOKEN}x"},
    {"Cookie": ";;;=;\xff"},
    {"X-Token": TOKEN},
    {"Referer": f"http://127.0.0.1/?token={TOKEN}"},
]


def for_port(headers: dict[str, str], server: Served) -> dict[str, str]:
    """Adds the port to the name of the cookie."""
    return {name: value.replace(COOKIE, f"{COOKIE}_{server.port}") for name, value in headers.items()}


@pytest.mark.parametrize("path", [*PATHS, "/nothing", "/static/nothing", "/api/live", "/?token=", "/?token=wrong"])
def test_every_route_is_refused_without_the_token(locked: Served, path: str) -> None:
    for headers in WRONG if path in ("/", "/api/overview") else WRONG[:1]:
        for method in ("GET", "HEAD"):
            answer = locked.ask(method, path, for_port(headers, locked))
            assert answer.status == 401, (method, path, headers)
            assert_guarded(answer.headers)
            assert "set-cookie" not in answer.headers
            if method == "GET":
                assert b"needs its token" in answer.body
                assert TOKEN.encode() not in answer.body
                assert len(answer.body) < 400


@pytest.mark.parametrize("path", [path for path in PATHS if path != "/api/live"])
def test_every_route_is_served_with_the_token(locked: Served, path: str) -> None:
    for headers in (
        {"Authorization": f"Bearer {TOKEN}"},
        {"Authorization": f"bearer  {TOKEN} "},
        {"Cookie": f"{COOKIE}={TOKEN}"},
        {"Cookie": f'first=1; {COOKIE}={TOKEN}; last="2"'},
    ):
        assert locked.get(path, for_port(headers, locked)).status == 200, headers


def test_malformed_cookies_of_other_programs_are_ignored(locked: Served) -> None:
    """A browser sends the cookies of all ports of 127.0.0.1."""
    for other in ('{"a": [1, 2]}', "a b c", "x=1,2;y=/", "[odd]=1", "caf\xe9=1", "a:b=1", '"unclosed'):
        answer = locked.get("/api/store", for_port({"Cookie": f"{other}; {COOKIE}={TOKEN}"}, locked))
        assert answer.status == 200, other


def test_dashboards_on_different_ports_use_different_cookies(locked: Served, directory: Path) -> None:
    with served(directory / "fleet.turnout", token=f"another-{TOKEN}") as beside:
        names = [
            server.get(f"/?token={token}").headers["set-cookie"].partition("=")[0]
            for server, token in ((locked, TOKEN), (beside, f"another-{TOKEN}"))
        ]
        both = {"Cookie": f"{names[0]}={TOKEN}; {names[1]}=another-{TOKEN}"}
        assert [server.get("/api/store", both).status for server in (locked, beside)] == [200, 200]


def test_the_address_with_the_token_redirects_and_sets_a_cookie(locked: Served) -> None:
    answer = locked.get(f"/?token={TOKEN}")
    assert answer.status == 303
    assert answer.headers["location"] == "/", "the token must not stay in the address"
    pair, *terms = [part.strip() for part in answer.headers["set-cookie"].split(";")]
    assert {term.lower() for term in terms} == {"httponly", "path=/", "samesite=strict"}
    assert_guarded(answer.headers)
    encrypted = locked.get(f"/?token={TOKEN}", {"X-Forwarded-Proto": "https"}).headers["set-cookie"]
    assert {part.strip().lower() for part in encrypted.split(";")[1:]} == {*map(str.lower, terms), "secure"}
    assert locked.get("/", {"Cookie": pair}).status == 200
    assert locked.get("/api/overview", {"Cookie": pair}).status == 200


def test_a_token_in_the_address_is_accepted_only_for_the_page(locked: Served) -> None:
    """Addresses appear in logs and in the browser history."""
    for path in ("/api/overview", "/metrics", "/static/index.html", "/api/live"):
        answer = locked.get(f"{path}?token={TOKEN}")
        assert answer.status == 401
        assert "set-cookie" not in answer.headers


def test_with_a_token_any_host_name_is_accepted_but_no_method_that_could_change_anything(locked: Served) -> None:
    """Behind a reverse proxy the dashboard has another host name."""
    headers = {"Authorization": f"Bearer {TOKEN}", "Host": "fleet.example.org"}
    assert locked.get("/api/store", headers).status == 200
    assert locked.get("/api/store", {"Host": "fleet.example.org"}).status == 401
    assert locked.ask("POST", "/").status == 405  # before the token is checked
    assert locked.ask("DELETE", "/api/store", {"Authorization": f"Bearer {TOKEN}"}).status == 405


def test_tokens_are_compared_in_constant_time(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """hmac.compare_digest decides about the whole token, from whichever part of the request it comes."""
    seen, real = list[tuple[bytes, bytes]](), hmac.compare_digest

    def compare(first: Any, other: Any) -> bool:
        seen.append((first, other))
        return real(first, other)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    with served(directory / "fleet.turnout", token=TOKEN) as server:
        for guess, headers, path in (
            (b"guess-1", {"Authorization": "Bearer guess-1"}, "/api/store"),
            (b"guess-2", {"Cookie": f"{COOKIE}=guess-2"}, "/api/store"),
            (b"guess-3", {}, "/?token=guess-3"),
        ):
            seen.clear()
            assert server.get(path, for_port(headers, server)).status == 401
            assert (guess, TOKEN.encode()) in seen
        monkeypatch.setattr(hmac, "compare_digest", lambda *_: True)
        assert server.get("/api/store", {"Authorization": "Bearer guess"}).status == 200, (
            "the comparison must decide alone"
        )


@pytest.mark.parametrize(
    "token", ["semi;colon and space", 'quo"te\\back-slash', "per%25cent&amp+plus#", "=equals=equals="]
)
def test_tokens_with_special_characters_work_as_header_address_and_cookie(directory: Path, token: str) -> None:
    with served(directory / "fleet.turnout", token=token) as server:
        assert server.get("/api/store", {"Authorization": f"Bearer {token}"}).status == 200
        answer = server.get(f"/?token={quote(token)}")
        assert answer.status == 303
        (pair,) = re.findall(r'^(?:[^";]|"(?:[^"\\]|\\.)*")+', answer.headers["set-cookie"])
        assert server.get("/api/store", {"Cookie": pair}).status == 200


@pytest.mark.parametrize(
    "token", ["", "short", "x" * (MIN_TOKEN - 1), "ümläüte-ümläüte", "new\nline-new-line", "\x00" * 20]
)
def test_a_weak_token_is_refused_and_a_public_host_requires_one(token: str) -> None:
    for host in ("127.0.0.1", "0.0.0.0"):
        with pytest.raises(SettingError, match="at least 12 printable ASCII characters"):
            SharedToken(token, host)
    with pytest.raises(SettingError, match=r"other machines can reach 0\.0\.0\.0: pass a token"):
        SharedToken(None, "0.0.0.0")
    assert SharedToken("x" * MIN_TOKEN, "0.0.0.0").needs_token
    assert not SharedToken(None, "localhost").needs_token


# Host names

LOOPBACK = ["127.0.0.1", "localhost", "LOCALHOST", "[::1]", "127.0.0.2", "127.255.255.254"]
FOREIGN = [
    "evil.example",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "evil.example:127",
    "10.0.0.1",
    "0.0.0.0",
    "192.168.1.10",
    "[::]",
    "[fe80::1]",
    "[::1].evil.example",
    "::1",
    "localhost:8484:8484",
    "user@localhost.evil",
    "127.0.0.1:x@evil",
    " ",
    "",
]


@pytest.mark.parametrize("name", LOOPBACK)
@pytest.mark.parametrize("port", ["", ":8484", ":1"])
def test_loopback_host_names_are_accepted(free: Served, name: str, port: str) -> None:
    for path in ("/", "/api/store", "/healthz"):
        assert free.get(path, {"Host": f"{name}{port}"}).status == 200


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_host_names_are_refused(free: Served, name: str) -> None:
    for path in ("/", "/api/store", "/metrics", "/healthz", "/static/index.html", "/nothing"):
        answer = free.get(path, {"Host": name})
        assert answer.status == 421, path
        assert_guarded(answer.headers)
        assert json.loads(answer.body)["detail"]


def test_a_request_without_a_host_header_is_refused(free: Served) -> None:
    assert free.send_raw(b"GET /api/store HTTP/1.0\r\n\r\n").split(b" ", 2)[1] == b"421"


# serve()


class Serving:
    """Runs serve() in a thread until the block ends."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.addresses: list[str] = []
        self._servers: list[Any] = []
        self._announced = threading.Event()
        real = serving.make_server

        def make_server(*arguments: Any) -> Any:
            self._servers.append(real(*arguments))
            return self._servers[-1]

        monkeypatch.setattr(serving, "make_server", make_server)
        self._thread = threading.Thread(
            target=serving.serve, args=(path,), kwargs={"announce": self._announce, **settings}
        )
        self._thread.start()
        assert self._announced.wait(MAX_WAIT)

    def _announce(self, address: str) -> None:
        self.addresses.append(address)
        self._announced.set()

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, *_: object) -> None:
        self._servers[0].should_exit = True
        self._thread.join(MAX_WAIT)
        assert not self._thread.is_alive()

    def status(self, path: str) -> int:
        address = urlsplit(self.addresses[0])
        with closing(HTTPConnection(address.hostname or "", address.port, timeout=MAX_WAIT)) as connection:
            connection.request("GET", path)
            return connection.getresponse().status


def test_healthz_needs_no_token_and_reveals_nothing(tmp_path: Path) -> None:
    with served_fleet(tmp_path, 2, token=TOKEN) as server:
        answer = server.get("/healthz")
        assert (answer.status, json.loads(answer.body)) == (200, {"status": "ok"})
        assert_guarded(answer.headers)
        known = json.loads(server.get("/healthz", {"Authorization": f"Bearer {TOKEN}"}).body)
        assert known == {"status": "ok", "last_error": None, "version": server.watch.state.version}
        for other in ("/healthz/", "//healthz", "/healthz/../metrics", "/healthz?x=/metrics/"):
            assert server.get(other).status == (200 if "?" in other else 401)
        server.path.rename(tmp_path / "elsewhere")
        answer = server.until(lambda: result if (result := server.get("/healthz")).status == 503 else None)
        assert json.loads(answer.body) == {"status": "unreadable"}


@pytest.mark.skipif(not socket.has_ipv6, reason="IPv6 is not available")
def test_ipv6(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("the IPv6 loopback address is not available")
    for host in ("::1", "[::1]"):
        with Serving(directory / "fleet.turnout", monkeypatch, host=host, port=0) as running:
            assert running.addresses[0].startswith("http://[::1]:")
            assert running.status("/api/store") == 200


def test_a_port_in_use_is_an_error_unless_it_is_the_default(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        port = occupied.getsockname()[1]
        with pytest.raises(SettingError, match=f"cannot listen on 127.0.0.1 port {port} .*pass another host or port"):
            serving.serve(directory / "fleet.turnout", port=port)
        monkeypatch.setattr(serving, "PORT", port)
        with Serving(directory / "fleet.turnout", monkeypatch) as running:
            assert urlsplit(running.addresses[0]).port != port
            assert running.status("/api/store") == 200


def test_serve_checks_its_arguments_before_it_listens(directory: Path) -> None:
    for token in ("short", ""):  # an empty token is not the same as none
        with pytest.raises(SettingError, match="at least 12"):
            serving.serve(directory / "fleet.turnout", token=token, port=0)
    with pytest.raises(StoreError, match="there is no file"):
        serving.serve(directory / "nothing.turnout")
    with pytest.raises(SettingError, match="cannot listen"):
        serving.serve(directory / "fleet.turnout", host="203.0.113.7", token="x" * 20)


# Several fleets


class Tokens:
    """Access to each fleet, and to both, with a token."""

    needs_token = True

    def caller(self, text: str) -> Caller | None:
        fleets = {"token-of-phones": "phones", "token-of-cars": "cars", "token-of-all": None}
        return Caller("viewer", fleets[text]) if text in fleets else None


def access(*, locked: bool) -> Access:
    return Tokens() if locked else SharedToken(None)


def page(name: str, *, locked: bool) -> ASGIApp:
    """Returns a dashboard that answers with its name and the path that it sees."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await JSONResponse({"fleet": name, "path": scope["path"]})(scope, receive, send)

    return PageGuard(answer, access=access(locked=locked), fleet=name)


@contextmanager
def serving_fleets(*, locked: bool) -> Iterator[Callable[..., Reply]]:
    """Serves the dashboards of two fleets; yields what requests a path."""
    fleets = {name: page(name, locked=locked) for name in ("phones", "cars")}
    server = Server(FleetPages(fleets, access(locked=locked)), LIMITS, [], shutdown_seconds=1)
    with socket.create_server(("127.0.0.1", 0)) as listener, running(server, listener):
        port = listener.getsockname()[1]
        yield lambda path, **headers: send_request(port, "GET", path, headers=headers)


def test_the_list_links_the_dashboard_of_every_fleet() -> None:
    with serving_fleets(locked=False) as get:
        listed = get("/")
        assert (listed.status, listed.headers["content-type"]) == (200, "text/html; charset=utf-8")
        for name in ("phones", "cars"):
            assert (
                f'<tr data-fleet="{name}"><th class="text" scope="row"><a href="/fleets/{name}/">{name}</a>'.encode()
                in listed.body
            )
        assert b'src="/fleets/phones/static/fleets.js"' in listed.body
        assert get("/fleets/cars/").data == {"fleet": "cars", "path": "/"}
        assert get("/fleets/phones/api/store").data == {"fleet": "phones", "path": "/api/store"}
        moved = get("/fleets/cars")
        assert (moved.status, moved.headers["location"]) == (307, "/fleets/cars/")
        for path in ("/fleets/trains/", "/api/store"):
            reply = get(path)
            assert (reply.status, "there is no such page" in reply.error) == (404, True)
        assert get("/", host="elsewhere.example").status == 421


def test_a_token_shows_its_fleets_only() -> None:
    with serving_fleets(locked=True) as get:
        assert get("/").status == 401
        assert get("/", authorization="Bearer nonsense").status == 401
        body = get("/", authorization="Bearer token-of-all").body
        assert (b"phones" in body, b"cars" in body) == (True, True)
        own = get("/", authorization="Bearer token-of-cars")
        assert (own.status, own.headers["location"], own.body) == (303, "/fleets/cars/", b"")
        assert get("/fleets/cars/", authorization="Bearer token-of-cars").status == 200
        assert get("/fleets/phones/", authorization="Bearer token-of-cars").status == 401


@pytest.mark.parametrize("prefix", ["", "/fleets/cars"])
def test_a_token_becomes_a_cookie_of_the_page_that_it_opened(prefix: str) -> None:
    with serving_fleets(locked=True) as get:
        reply = get(f"{prefix}/?token=token-of-cars")
        assert (reply.status, reply.headers["location"]) == (303, f"{prefix}/")
        cookie, *attributes = reply.headers["set-cookie"].split("; ")
        assert f"Path={prefix}/" in attributes
        assert get("/fleets/cars/api/store", cookie=cookie).status == 200
        assert get("/fleets/phones/api/store", cookie=cookie).status == 401
