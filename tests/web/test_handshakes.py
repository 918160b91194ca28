"""TLS: handshakes that do not end, and connections that are refused."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPSConnection
from pathlib import Path

import pytest
from starlette.responses import PlainTextResponse

from cli.test_serve import make_certificate
from requesting import running
from turnout.web import connections
from turnout.web.access import SharedToken
from turnout.web.connections import Limits, Refusals
from turnout.web.guard import ONLY_TLS, CallGuard
from turnout.web.listening import OTHER_FILES, allow_files
from turnout.web.serving import Server
from waiting import MAX_WAIT, wait_until
from web.test_connections import read_to_end

resource = pytest.importorskip("resource", reason="Windows limits no files")
LIMITS = Limits(request_seconds=MAX_WAIT, connections=5)


@pytest.fixture
def limits() -> Limits:
    return LIMITS


@pytest.fixture
def refusals() -> Refusals:
    return Refusals()


@pytest.fixture
def port(tmp_path: Path, limits: Limits, refusals: Refusals) -> Iterator[int]:
    """The port of a server with TLS."""
    certificate, key = make_certificate(tmp_path, "server")
    app = CallGuard(PlainTextResponse("hello"), access=SharedToken(None))
    server = Server(app, limits, [], shutdown_seconds=1, certificate=certificate, key=key, refusals=refusals)
    with socket.create_server(("127.0.0.1", 0)) as listener, running(server, listener):
        yield listener.getsockname()[1]


@contextmanager
def silent(port: int, count: int) -> Iterator[list[socket.socket]]:
    """Opens connections that send nothing."""
    with ExitStack() as opened:
        address = ("127.0.0.1", port)
        yield [opened.enter_context(socket.create_connection(address, timeout=MAX_WAIT)) for _ in range(count)]


def answer(port: int) -> tuple[int, str | None]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = HTTPSConnection("127.0.0.1", port, timeout=MAX_WAIT, context=context)
    try:
        connection.request("GET", "/")
        response = connection.getresponse()
        response.read()
        return response.status, response.getheader("strict-transport-security")
    finally:
        connection.close()


def test_a_server_with_tls_says_that_browsers_must_use_it(port: int) -> None:
    assert answer(port) == (200, ONLY_TLS)


def test_connections_count_before_their_handshakes(port: int, refusals: Refusals) -> None:
    with silent(port, LIMITS.most_connections + 1):
        wait_until(lambda: refusals.counts["too many"], "one is too many")
    wait_until(lambda: refusals.counts["handshake"] == LIMITS.most_connections, "the others have left")
    assert refusals.counts["too many"] == 1
    assert answer(port) == (200, ONLY_TLS)


@pytest.mark.parametrize("limits", [Limits(request_seconds=0.1)])
def test_a_handshake_must_end_in_time(port: int, refusals: Refusals) -> None:
    with silent(port, 3) as opened:
        assert [read_to_end(connection) for connection in opened] == [b""] * 3
    wait_until(lambda: refusals.counts == {"handshake": 3}, "they are counted")


def test_refused_connections_are_counted_and_logged_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    seconds = [0.0]
    refusals = Refusals(lambda: seconds[0])
    for why in ("too many", "slow", "slow"):
        refusals.count(why)
    seconds[0] = connections.LOG_SECONDS
    refusals.count("slow")
    assert refusals.counts == {"too many": 1, "slow": 3}
    assert caplog.messages == [
        "1 connections refused since the last line (too many: 1 in all)",
        "3 connections refused since the last line (slow: 3, too many: 1 in all)",
    ]


@pytest.mark.parametrize(
    ("soft", "hard", "raised", "connections"),
    [
        (1024, 4096, 2000 + 200 + OTHER_FILES, 2000),
        (1024, -1, 2000 + 200 + OTHER_FILES, 2000),
        (1024, 1200, 1200, 900),
        (9000, 9000, None, 2000),
        (-1, -1, None, 2000),
    ],
)
def test_the_process_may_open_files_for_its_connections(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, raised: int | None, connections: int
) -> None:
    changes: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: changes.append(limits))
    assert allow_files(Limits(connections=2000)).connections == connections
    assert changes == ([] if raised is None else [(raised, hard)])
