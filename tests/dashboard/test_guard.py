"""Who may look: this machine's own browser, or whoever has the token."""

from __future__ import annotations

import hmac
import json
import re
import socket
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from dashboard.served import Served, served, small_fleet
from dashboard.test_routes import ROUTES, assert_guarded
from turnout.dashboard import serving
from turnout.dashboard.guard import COOKIE, SHORTEST_TOKEN, check_token, is_loopback
from turnout.errors import SettingError, StoreError
from waiting import LONGEST_WAIT

TOKEN = "a-token-for-the-tests"


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        small_fleet(Path(name) / "fleet.turnout", rounds=4)
        yield Path(name)


@pytest.fixture(scope="module")
def locked(place: Path) -> Iterator[Served]:
    with served(place / "fleet.turnout", token=TOKEN) as there:
        there.wait_read()
        yield there


@pytest.fixture(scope="module")
def free(place: Path) -> Iterator[Served]:
    with served(place / "fleet.turnout") as there:
        there.wait_read()
        yield there


# The token

ASKED = [asked for asked, _ in ROUTES.values()]
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


def for_port(headers: dict[str, str], there: Served) -> dict[str, str]:
    """The cookie's name holds the port."""
    return {name: value.replace(COOKIE, f"{COOKIE}_{there.port}") for name, value in headers.items()}


@pytest.mark.parametrize("asked", [*ASKED, "/nothing", "/static/nothing", "/api/live", "/?token=", "/?token=wrong"])
def test_without_the_token_nothing_is_shown(locked: Served, asked: str) -> None:
    for headers in WRONG if asked in ("/", "/api/overview") else WRONG[:1]:
        for method in ("GET", "HEAD"):
            answer = locked.ask(method, asked, for_port(headers, locked))
            assert answer.status == 401, (method, asked, headers)
            assert_guarded(answer.headers)
            assert "set-cookie" not in answer.headers
            if method == "GET":
                assert b"needs its token" in answer.body
                assert TOKEN.encode() not in answer.body
                assert len(answer.body) < 400


@pytest.mark.parametrize("asked", [one for one in ASKED if one != "/api/live"])
def test_with_the_token_all_is_shown(locked: Served, asked: str) -> None:
    for headers in (
        {"Authorization": f"Bearer {TOKEN}"},
        {"Authorization": f"bearer  {TOKEN} "},
        {"Cookie": f"{COOKIE}={TOKEN}"},
        {"Cookie": f'first=1; {COOKIE}={TOKEN}; last="2"'},
    ):
        assert locked.get(asked, for_port(headers, locked)).status == 200, headers


def test_odd_cookies_of_other_programs_do_not_lock_it(locked: Served) -> None:
    """A browser sends all cookies of 127.0.0.1, whatever port set them."""
    for other in ('{"a": [1, 2]}', "a b c", "x=1,2;y=/", "[odd]=1", "caf\xe9=1", "a:b=1", '"unclosed'):
        answer = locked.get("/api/store", for_port({"Cookie": f"{other}; {COOKIE}={TOKEN}"}, locked))
        assert answer.status == 200, other


def test_dashboards_beside_each_other_do_not_take_each_others_cookies(locked: Served, place: Path) -> None:
    with served(place / "fleet.turnout", token=f"another-{TOKEN}") as beside:
        names = [
            one.get(f"/?token={word}").headers["set-cookie"].partition("=")[0]
            for one, word in ((locked, TOKEN), (beside, f"another-{TOKEN}"))
        ]
        both = {"Cookie": f"{names[0]}={TOKEN}; {names[1]}=another-{TOKEN}"}
        assert [one.get("/api/store", both).status for one in (locked, beside)] == [200, 200]


def test_the_address_with_the_token_is_changed_for_a_cookie(locked: Served) -> None:
    answer = locked.get(f"/?token={TOKEN}")
    assert answer.status == 303
    assert answer.headers["location"] == "/", "so that the token does not stay in the address"
    cookie = answer.headers["set-cookie"]
    pair, *terms = [part.strip() for part in cookie.split(";")]
    assert {term.lower() for term in terms} == {"httponly", "path=/", "samesite=strict"}
    assert_guarded(answer.headers)
    encrypted = locked.get(f"/?token={TOKEN}", {"X-Forwarded-Proto": "https"}).headers["set-cookie"]
    assert {part.strip().lower() for part in encrypted.split(";")[1:]} == {*map(str.lower, terms), "secure"}
    assert locked.get("/", {"Cookie": pair}).status == 200
    assert locked.get("/api/overview", {"Cookie": pair}).status == 200


def test_a_token_in_the_address_opens_the_page_alone(locked: Served) -> None:
    """It would stand in logs and in the history."""
    for asked in ("/api/overview", "/metrics", "/healthz", "/static/index.html", "/api/live"):
        answer = locked.get(f"{asked}?token={TOKEN}")
        assert answer.status == 401
        assert "set-cookie" not in answer.headers


def test_with_a_token_any_name_will_do(locked: Served) -> None:
    """Behind a server with TLS it has another."""
    headers = {"Authorization": f"Bearer {TOKEN}", "Host": "fleet.example.org"}
    assert locked.get("/api/store", headers).status == 200
    assert locked.get("/api/store", {"Host": "fleet.example.org"}).status == 401


def test_methods_are_refused_before_the_token_is_asked_for(locked: Served) -> None:
    assert locked.ask("POST", "/").status == 405
    assert locked.ask("DELETE", "/api/store", {"Authorization": f"Bearer {TOKEN}"}).status == 405


def test_tokens_are_compared_in_constant_time(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever way it comes, it is hmac.compare_digest that decides, on the whole token."""
    seen, real = list[tuple[bytes, bytes]](), hmac.compare_digest

    def compare(one: Any, other: Any) -> bool:
        seen.append((one, other))
        return real(one, other)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    with served(place / "fleet.turnout", token=TOKEN) as there:
        for guess, headers, asked in (
            (b"guess-1", {"Authorization": "Bearer guess-1"}, "/api/store"),
            (b"guess-2", {"Cookie": f"{COOKIE}=guess-2"}, "/api/store"),
            (b"guess-3", {}, "/?token=guess-3"),
        ):
            seen.clear()
            assert there.get(asked, for_port(headers, there)).status == 401
            assert (guess, TOKEN.encode()) in seen
        monkeypatch.setattr(hmac, "compare_digest", lambda *_: True)
        assert there.get("/api/store", {"Authorization": "Bearer guess"}).status == 200, "it alone decides"


@pytest.mark.parametrize(
    "token", ["semi;colon and space", 'quo"te\\back-slash', "per%25cent&amp+plus#", "=equals=equals="]
)
def test_any_plain_token_works_every_way(place: Path, token: str) -> None:
    check_token("127.0.0.1", token)
    with served(place / "fleet.turnout", token=token) as there:
        assert there.get("/api/store", {"Authorization": f"Bearer {token}"}).status == 200
        answer = there.get(f"/?token={quote(token)}")
        assert answer.status == 303
        (pair,) = re.findall(r'^(?:[^";]|"(?:[^"\\]|\\.)*")+', answer.headers["set-cookie"])
        assert there.get("/api/store", {"Cookie": pair}).status == 200


@pytest.mark.parametrize(
    "token", ["", "short", "x" * (SHORTEST_TOKEN - 1), "ümläüte-ümläüte", "new\nline-new-line", "\x00" * 20]
)
def test_a_token_that_is_no_protection_is_refused(token: str) -> None:
    for host in ("127.0.0.1", "0.0.0.0"):
        with pytest.raises(SettingError, match="at least 12 printable ASCII characters"):
            check_token(host, token)


def test_off_loopback_a_token_is_needed() -> None:
    with pytest.raises(SettingError, match=r"other machines can reach 0\.0\.0\.0: pass a token"):
        check_token("0.0.0.0", None)
    check_token("0.0.0.0", "x" * SHORTEST_TOKEN)
    check_token("localhost", None)


# The name

OWN = ["127.0.0.1", "localhost", "LOCALHOST", "[::1]", "127.0.0.2", "127.255.255.254"]
STRANGERS = [
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


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("port", ["", ":8484", ":1"])
def test_it_answers_to_the_names_of_this_machine(free: Served, name: str, port: str) -> None:
    for asked in ("/", "/api/store", "/healthz"):
        assert free.get(asked, {"Host": f"{name}{port}"}).status == 200


@pytest.mark.parametrize("name", STRANGERS)
def test_a_page_elsewhere_cannot_point_its_name_here(free: Served, name: str) -> None:
    for asked in ("/", "/api/store", "/metrics", "/healthz", "/static/index.html", "/nothing"):
        answer = free.get(asked, {"Host": name})
        assert answer.status == 421, asked
        assert_guarded(answer.headers)
        assert json.loads(answer.body)["error"]


def test_no_name_at_all_is_a_strangers(free: Served) -> None:
    with socket.create_connection(("127.0.0.1", free.port), timeout=LONGEST_WAIT) as raw:
        raw.sendall(b"GET /api/store HTTP/1.0\r\n\r\n")
        answer = b""
        while part := raw.recv(65536):
            answer += part
    assert answer.split(b" ", 2)[1] == b"421"


@pytest.mark.parametrize(
    ("host", "own"),
    [
        *((name.strip("[]"), True) for name in OWN),
        *((name, False) for name in ("0.0.0.0", "::", "example", "", "10.0.0.1")),
    ],
)
def test_what_is_loopback(host: str, own: bool) -> None:
    assert is_loopback(host) is own


# serve()


class Serving:
    """serve() in a thread, until it is told to end."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.addresses: list[str] = []
        self._servers: list[Any] = []
        self._announced = threading.Event()
        real = serving.make_server

        def kept(*arguments: Any) -> Any:
            self._servers.append(real(*arguments))
            return self._servers[-1]

        monkeypatch.setattr(serving, "make_server", kept)
        self._thread = threading.Thread(
            target=serving.serve, args=(path,), kwargs={"announce": self._announce, **settings}
        )
        self._thread.start()
        assert self._announced.wait(LONGEST_WAIT)

    def _announce(self, address: str) -> None:
        self.addresses.append(address)
        self._announced.set()

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, *_: object) -> None:
        self._servers[0].should_exit = True
        self._thread.join(LONGEST_WAIT)
        assert not self._thread.is_alive()

    def status(self, asked: str, headers: dict[str, str] | None = None) -> int:
        where = urlsplit(self.addresses[0])
        connection = HTTPConnection(where.hostname or "", where.port, timeout=LONGEST_WAIT)
        try:
            connection.request("GET", asked, headers=headers or {})
            return connection.getresponse().status
        finally:
            connection.close()


def test_off_loopback_a_token_is_made_if_none_is_given(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for _ in range(2):
        with Serving(place / "fleet.turnout", monkeypatch, host="0.0.0.0", port=0) as it:
            (address,) = it.addresses
            token = urlsplit(address).query.removeprefix("token=")
            made.append(token)
            assert len(token) >= 32
            assert it.status("/api/store") == 401
            assert it.status("/api/store", {"Authorization": f"Bearer {token}"}) == 200
            assert it.status(f"/?{urlsplit(address).query}") == 303
    assert made[0] != made[1]


def test_on_loopback_none_is_needed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Serving(place / "fleet.turnout", monkeypatch, port=0) as it:
        (address,) = it.addresses
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", address)
        assert it.status("/api/store") == 200
        assert it.status("/api/store", {"Host": "evil.example"}) == 421


def test_the_address_that_is_printed_opens_it_whatever_the_token(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Serving(place / "fleet.turnout", monkeypatch, port=0, token="a&b#c+d%20e;f=g") as it:
        assert it.status(f"/?{urlsplit(it.addresses[0]).query}") == 303


@pytest.mark.skipif(not socket.has_ipv6, reason="there is no IPv6 here")
def test_ipv6(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no loopback of IPv6 here")
    for host in ("::1", "[::1]"):
        with Serving(place / "fleet.turnout", monkeypatch, host=host, port=0) as it:
            assert it.addresses[0].startswith("http://[::1]:")
            assert it.status("/api/store") == 200


def test_a_taken_port_is_said_and_without_a_wish_another_is_found(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingError, match=f"cannot listen on 127.0.0.1 port {port} .*pass another host or port"):
            serving.serve(place / "fleet.turnout", port=port)
        monkeypatch.setattr(serving, "PORT", port)
        with Serving(place / "fleet.turnout", monkeypatch) as it:
            assert urlsplit(it.addresses[0]).port != port
            assert it.status("/api/store") == 200


def test_serve_refuses_before_it_listens(place: Path) -> None:
    with pytest.raises(SettingError, match="at least 12"):
        serving.serve(place / "fleet.turnout", token="short")
    with pytest.raises(StoreError, match="there is no file"):
        serving.serve(place / "nothing.turnout")
    with pytest.raises(SettingError, match="cannot listen"):
        serving.serve(place / "fleet.turnout", host="203.0.113.7", token="x" * 20)
