"""Limits of requests, security headers, and bodies of other kinds."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from starlette.types import Message, Receive, Scope, Send

from service.served import ROUNDS, Service, served
from turnout.errors import StoreError
from turnout.service.access.tokens import FleetTokens, Token
from turnout.service.fleet import FleetAccess
from turnout.service.serving import Options
from turnout.web.access import SharedToken
from turnout.web.connections import Limits
from turnout.web.guard import HEADERS, BodyLimits, CallGuard, PageGuard
from waiting import MAX_WAIT, wait_until

BODIES = BodyLimits(device=200, other=2000)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with served(tmp_path_factory.mktemp("limits"), options=Options(port=0, bodies=BODIES)) as running:
        yield running


def padded(size: int) -> bytes:
    body = json.dumps({"client": "phone-1", "seconds": 1.0}).encode()
    return body + b" " * (size - len(body))


def test_bodies_are_limited_by_role(service: Service) -> None:
    for role, most in (("device", 200), ("server", 2000)):
        assert service.post("/reports", padded(most), role=role).status == 409  # not selected
        reply = service.post("/reports", padded(most + 1), role=role)
        assert (reply.status, reply.error) == (
            413,
            f"the body must have at most {most:,} bytes: send less at a time",
        )


def test_bodies_without_a_length_are_limited_too(service: Service) -> None:
    for size, status in ((200, 409), (201, 413)):
        assert service.post_chunked("/reports", [padded(size)], role="device")[0] == status


@pytest.mark.parametrize("length", ["-1", "x", "1" * 50, "²"])
def test_absurd_lengths_are_refused(service: Service, length: str) -> None:
    head = (
        f"POST /v1/fleets/fleet/reports HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {service.tokens['fleet']['server']}\r\nContent-Length: {length}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", service.port), timeout=MAX_WAIT) as connection:
        connection.sendall(head.encode())
        status = int(connection.recv(100).split()[1])
    assert status in (400, 413)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_a_page_of_another_site_cannot_send_a_change(service: Service, kind: str) -> None:
    reply = service.post("/clients", b'{"clients": ["a"]}', headers={"content-type": kind})
    assert reply.status == 415
    prerunning_turn = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    allowed = service.send("OPTIONS", "/v1/fleets/fleet/clients", headers=prerunning_turn)
    assert allowed.status == 405
    assert not [name for name in (*reply.headers, *allowed.headers) if name.startswith("access-control")]


def test_json_with_a_character_set_is_accepted(service: Service) -> None:
    headers = {"content-type": "application/json; charset=utf-8"}
    assert service.post("/clients", b'{"clients": ["phone-1"]}', headers=headers).status == 200


@pytest.mark.parametrize("path", ["/healthz", "/v1/fleets", "/v1/fleets/fleet", "/v1/nothing", "/nothing"])
@pytest.mark.parametrize("role", [None, "viewer"])
def test_every_response_has_the_security_headers(service: Service, path: str, role: str | None) -> None:
    reply = service.send("GET", path, role=role)
    assert {name: reply.headers[name] for name in HEADERS} == HEADERS
    assert reply.headers["cache-control"] == "no-store"
    assert "server" not in reply.headers


def test_headers_and_half_open_requests_are_limited(tmp_path: Path) -> None:
    limits = Limits(request_seconds=0.2, headers=20, header_bytes=4000)
    with served(tmp_path, options=Options(port=0, limits=limits)) as service:
        many = {f"x-{number}": "1" for number in range(30)}
        assert service.get("", headers=many).status == 431
        for path in ("?" + "x" * 4000, "/" + "x" * 4000):  # the address counts as the headers do
            assert service.get(path).status == 431
        with socket.create_connection(("127.0.0.1", service.port), timeout=MAX_WAIT) as connection:
            connection.sendall(b"POST /v1/fleets/fleet/reports HTTP/1.1\r\nHost: localhost\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 408")


def raw_post(service: Service, *headers: str, body: bytes = b"") -> bytes:
    """Sends the head of a report of a device and a body as they are; returns what is answered until the end."""
    token = f"Authorization: Bearer {service.tokens['fleet']['device']}"
    lines = ["POST /v1/fleets/fleet/reports HTTP/1.1", "Host: localhost", "Content-Type: application/json", token]
    with socket.create_connection(("127.0.0.1", service.port), timeout=MAX_WAIT) as connection:
        connection.sendall("\r\n".join([*lines, *headers, "", ""]).encode() + body)
        connection.shutdown(socket.SHUT_WR)
        return connection.makefile("rb").read()


def test_a_device_that_breaks_off_in_a_body_is_no_fault_of_the_service(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    counted = 'turnout_service_requests_total{fleet="fleet",operation="report",status="499"} 1'
    assert raw_post(service, "Content-Length: 100", body=b'{"client"') == b""
    wait_until(lambda: counted in service.send("GET", "/metrics").body.decode(), "it is counted")
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_request_with_two_lengths_is_refused_and_its_connection_closed(service: Service) -> None:
    body = b"2\r\n{}\r\n0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answer = raw_post(service, "Content-Length: 2", "Transfer-Encoding: chunked", body=body)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("path", ["/v1%2ffleets", "/v1/fleets/%66leet", "/%761/fleets", "/healthz%3f"])
def test_paths_that_others_may_read_differently_do_not_exist(service: Service, path: str) -> None:
    assert service.send("GET", path).status == 404


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/v1/fleets/fleet", "/v1/fleets/fleet/events"])
def test_head_is_answered_as_get_without_a_body(service: Service, path: str) -> None:
    reply = service.send("HEAD", path)
    assert (reply.status, reply.body) == (200, b"")
    assert reply.headers["content-type"]


def test_an_unexpected_failure_is_a_500_without_details(service: Service) -> None:
    with patch.object(FleetTokens, "find", side_effect=ZeroDivisionError("secret")):
        reply = service.get("")
    assert (reply.status, reply.error) == (500, "the server failed to answer this request: see its log")


def test_a_failure_after_the_answer_has_begun_is_passed_on_and_counted() -> None:
    """The server then breaks the connection off, so that the caller does not take a part for the whole."""
    sent: list[Message] = []
    ended: list[tuple[str, int]] = []

    async def failing(_: Scope, __: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ZeroDivisionError("after the start")

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost")]
    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": headers}
    for make in (CallGuard, PageGuard):
        guard = make(
            failing, access=SharedToken(None), on_end=lambda scope, *ending: ended.append((scope["path"], ending[0]))
        )
        with pytest.raises(ZeroDivisionError, match="after the start"):
            asyncio.run(guard(dict(scope), receive, send))
    assert [message["status"] for message in sent] == [200, 200]
    assert ended == [("/", 200), ("/", 200)]


def test_what_is_no_request_is_passed_on_as_it_is() -> None:
    seen: list[tuple[Scope, Message]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append((scope, await receive()))
        await send({"type": "lifespan.startup.complete"})

    async def receive() -> Message:
        return {"type": "lifespan.startup"}

    async def send(message: Message) -> None:
        seen.append(({}, message))

    asyncio.run(CallGuard(app, access=FleetAccess({}))({"type": "lifespan"}, receive, send))
    assert seen == [
        ({"type": "lifespan"}, {"type": "lifespan.startup"}),
        ({}, {"type": "lifespan.startup.complete"}),
    ]


def test_the_tokens_of_one_fleet_that_cannot_be_read_leave_the_others_alone(tmp_path: Path) -> None:
    find = FleetTokens.find

    def broken(tokens: FleetTokens, text: str) -> Token | None:
        if tokens.fleet.stem == "fleet":
            raise StoreError("damaged")
        return find(tokens, text)

    with served(tmp_path, {"fleet": ROUNDS, "other": ROUNDS}) as service, patch.object(FleetTokens, "find", broken):
        reply = service.get("")
        assert (reply.status, "damaged" in reply.error, reply.headers["retry-after"]) == (503, False, "1")
        assert service.get("", fleet="other").status == 200
