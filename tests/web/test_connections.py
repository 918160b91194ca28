"""Requests that never end, huge headers, too many connections and clients that do not read."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import PlainTextResponse

from cli.test_serve import make_certificate
from dashboard.served import Served, served, small_fleet
from requesting import running
from turnout.dashboard import app as app_module
from turnout.web import serving
from turnout.web.access import SharedToken
from turnout.web.guard import ONLY_TLS, CallGuard
from turnout.web.serving import OTHER_FILES, LimitedProtocol, Limits, Refusals, Server, allow_files
from waiting import MAX_WAIT, wait_until

#: Far shorter than in production: the tests wait until a connection is closed, however long that takes.
IMPATIENT = Limits(request_seconds=0.2, stalled_seconds=0.1)


@pytest.fixture
def store(folder: Path) -> Path:
    small_fleet(folder / "fleet.turnout", rounds=2)
    return folder / "fleet.turnout"


@contextmanager
def connected(server: Served, sent: bytes = b"") -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=MAX_WAIT) as raw:
        raw.sendall(sent)
        yield raw


def read_to_end(raw: socket.socket) -> bytes:
    """Returns everything until the server closes the connection."""
    received = b""
    try:
        while part := raw.recv(1 << 16):
            received += part
    except ConnectionResetError:
        pass
    return received


def is_closed_after(raw: socket.socket, part: bytes) -> bool:
    """Sends something more, and returns whether the server has closed the connection."""
    try:
        raw.sendall(part)
        raw.settimeout(0.01)
        return not raw.recv(1 << 16)
    except TimeoutError:
        return False
    except (BrokenPipeError, ConnectionResetError):
        return True


def cannot_send(raw: socket.socket) -> bool:
    try:
        raw.sendall(b"x")
    except (BrokenPipeError, ConnectionResetError):
        return True
    return False


def request(path: str, *headers: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: 127.0.0.1", *headers, "", ""]).encode()


def protocols(server: Served) -> list[LimitedProtocol]:
    return [result for result in server.server.server_state.connections if isinstance(result, LimitedProtocol)]


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: 127", b"GET"])
def test_a_request_whose_headers_do_not_end_is_closed(store: Path, sent: bytes) -> None:
    with served(store, limits=IMPATIENT) as server, connected(server, sent) as raw:
        assert read_to_end(raw).startswith(b"HTTP/1.1 408 Request Timeout\r\n")
        wait_until(lambda: not protocols(server), "the connection is forgotten")


def test_a_slow_request_is_closed_although_it_goes_on(store: Path) -> None:
    with served(store, limits=IMPATIENT) as server, connected(server, b"GET / HTTP/1.1\r\n") as raw:
        wait_until(lambda: is_closed_after(raw, b"X: y\r\n"), "the connection is closed")


def test_a_slow_second_request_is_closed(store: Path) -> None:
    with served(store) as server, connected(server, request("/healthz")) as raw:
        assert raw.recv(1 << 16).startswith(b"HTTP/1.1 200")
        (protocol,) = protocols(server)
        protocol.limits = IMPATIENT
        raw.sendall(b"GET / HTTP/1.1\r\n")
        wait_until(lambda: is_closed_after(raw, b"X: y\r\n"), "the connection is closed")


@pytest.mark.parametrize("path", ["/api/live", "/healthz"])
def test_a_request_whose_body_does_not_end_is_closed(store: Path, path: str) -> None:
    with (
        served(store, limits=IMPATIENT) as server,
        connected(server, request(path, "Content-Length: 1000000000") + b"abc") as raw,
    ):
        wait_until(lambda: is_closed_after(raw, b"x"), "the connection is closed")


def test_a_large_body_may_arrive_as_long_as_enough_of_it_does(store: Path) -> None:
    patient = Limits(request_seconds=60.0, body_bytes=10)
    with (
        served(store, limits=patient) as server,
        connected(server, request("/healthz", "Content-Length: 1000000") + b"x" * 20) as raw,
    ):
        wait_until(lambda: protocols(server) and protocols(server)[0]._received >= 20, "the first part has arrived")
        (protocol,) = protocols(server)
        done = call_in_loop(protocol, protocol._request_timed_out)
        wait_until(lambda: done, "the first time is over")
        assert not cannot_send(raw)
        wait_until(lambda: protocol._received > 0, "one byte more has arrived")
        call_in_loop(protocol, protocol._request_timed_out)
        wait_until(lambda: is_closed_after(raw, b""), "the connection is closed")


def test_a_stream_is_not_limited_in_time(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No timer of the request runs any more while the stream is open, and if one fired, it would close nothing."""
    monkeypatch.setattr(app_module, "KEEPALIVE_SECONDS", 0.01)
    with served(store) as server, connected(server, request("/api/live", "Upgrade: h2c", "Connection: Upgrade")) as raw:
        answer = raw.makefile("rb")
        while answer.readline() != b"event: change\n":
            pass
        (protocol,) = protocols(server)
        assert protocol._request_timer is None
        for check in (protocol._request_timed_out, lambda: protocol._watch_progress(0)):
            done = call_in_loop(protocol, check)
            wait_until(lambda done=done: done, "the timer has fired")  # type: ignore[misc]
            for _ in range(3):
                while b"keep-alive" not in (line := answer.readline()):
                    assert line, "the stream has ended"


def call_in_loop(protocol: LimitedProtocol, function: Callable[[], Any]) -> list[bool]:
    """Calls a function in the thread of the server; the list has an entry when it is done."""
    done: list[bool] = []

    def call() -> None:
        function()
        done.append(True)

    protocol.loop.call_soon_threadsafe(call)
    return done


def test_too_many_or_too_large_headers_are_refused(store: Path) -> None:
    with served(store) as server:
        for headers in ([f"X-{index}: y" for index in range(150)], [f"X: {'y' * 20_000}"]):
            with connected(server, request("/api/store", *headers)) as raw:
                answer = read_to_end(raw)
            # 400: the server has not waited for the end of the headers
            assert answer.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 400 ")), answer[:200]
        with connected(server, request("/api/store", *(f"X-{index}: y" for index in range(101)))) as raw:
            head, _, body = read_to_end(raw).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 431 ")
        assert json.loads(body)["detail"].startswith("a request must have at most 100 headers and 16,384 bytes")
        assert server.get("/api/store", {f"X-{index}": "y" for index in range(50)}).status == 200
        assert server.get("/api/store", {"Cookie": "a=" + "y" * 10_000}).status == 200


@pytest.mark.parametrize("part", [b"X: y\r\n" * 1000, b"y" * 8000])
def test_headers_without_end_are_refused_with_bounded_memory(store: Path, part: bytes) -> None:
    sent = 0
    with served(store) as server, connected(server, b"GET / HTTP/1.1\r\nX: ") as raw:

        def is_refused() -> bool:
            nonlocal sent
            sent += len(part)
            return is_closed_after(raw, part)

        wait_until(is_refused, "the headers are refused")
    assert sent < 10 << 20


def test_the_number_of_connections_is_limited(store: Path) -> None:
    with served(store, limits=Limits(connections=2)) as server:
        with connected(server, request("/api/live")) as first, connected(server, request("/api/live")) as second:
            for raw in (first, second):
                assert raw.recv(100).startswith(b"HTTP/1.1 200")
            with connected(server) as third:
                answer = read_to_end(third)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"too many connections" in answer
        wait_until(lambda: not protocols(server), "the streams have ended")
        assert server.get("/healthz").status == 200


def test_a_refusal_is_json_and_can_be_read_although_the_client_sends_more(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "LINGER_SECONDS", MAX_WAIT)
    with served(store, limits=Limits(connections=1)) as server, connected(server, request("/api/live")) as first:
        assert first.recv(100).startswith(b"HTTP/1.1 200")
        with connected(server, request("/healthz") + b"x" * 100_000) as second:
            head, _, body = read_to_end(second).partition(b"\r\n\r\n")
            second.sendall(b"x" * (10 << 20))  # more than buffers hold: it was closed in one direction only
        assert head.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert b"retry-after: 1" in head
        assert b"json" in head
        assert "too many connections" in str(json.loads(body))


@pytest.mark.parametrize(
    "sent",
    [b"NONSENSE\r\n\r\n", request("/api/store", "Transfer-Encoding: chunked") + b"nonsense\r\n", b"\x16\x03\x01" * 9],
)
def test_what_is_not_http_is_refused_as_json(store: Path, sent: bytes) -> None:
    with served(store) as server, connected(server, sent) as raw:
        head, _, body = read_to_end(raw).rpartition(b"\r\n\r\n")
        assert b"json" in head
        if b"nonsense" not in sent:  # the answer to the head may have been sent before
            assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
            assert "not valid HTTP" in str(json.loads(body))
            assert server.server.config.http.refusals.counts["malformed"] == 1  # type: ignore[union-attr]


def test_a_client_that_does_not_read_its_response_is_closed(store: Path) -> None:
    with served(store, limits=Limits(stalled_seconds=0.1)) as server, socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.settimeout(MAX_WAIT)
        raw.connect(("127.0.0.1", server.port))
        raw.sendall(request("/static/plotly.min.js") * 10)  # more than the buffers of the operating system hold
        wait_until(lambda: cannot_send(raw), "the connection is closed")


def test_what_arrives_after_the_connection_was_closed_is_not_read(store: Path) -> None:
    """Data that was received before the closing can be delivered after it: nobody reads an answer any more."""
    with served(store) as server, connected(server) as raw:
        wait_until(lambda: protocols(server), "the connection is open")
        (protocol,) = protocols(server)

        def close_and_receive() -> None:
            protocol.transport.close()
            protocol.data_received(request("/healthz"))

        done = call_in_loop(protocol, close_and_receive)
        assert read_to_end(raw) == b""
        assert done
        assert protocol.cycle is None  # no request was begun


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
    seconds[0] = serving.LOG_SECONDS
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
