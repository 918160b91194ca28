"""Every route × method × role."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from starlette.types import Message, Receive, Scope, Send

from service.served import ROUNDS, SLOTS, Service, served
from turnout.errors import StoreError
from turnout.service.access import FleetTokens, Token
from turnout.service.fleet import FleetAccess
from turnout.service.serving import Options
from turnout.web.access import ROLES, SharedToken
from turnout.web.guard import HEADERS, BodyLimits, CallGuard, PageGuard
from turnout.web.serving import Limits
from waiting import MAX_WAIT, wait_until

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW")
DEVICE, SERVER, OPERATOR, VIEWER = "device", "server", "operator", "viewer"
READERS = {SERVER, OPERATOR, VIEWER}
#: Who may use which method of which path, and with which body; everything else is refused.
ALLOWED: dict[str, dict[str, tuple[set[str], Any]]] = {
    "/v1/fleets": {"GET": ({DEVICE, SERVER, OPERATOR, VIEWER}, None)},
    "/v1/fleets/fleet": {"GET": (READERS, None)},
    "/v1/fleets/fleet/clients": {"GET": (READERS, None), "POST": ({SERVER, OPERATOR}, {"clients": ["phone-1"]})},
    "/v1/fleets/fleet/settings": {"GET": (READERS, None)},
    "/v1/fleets/fleet/amendments": {"POST": ({OPERATOR}, {"settings": {"deadline": 20}})},
    "/v1/fleets/fleet/retirements": {"POST": ({OPERATOR}, {"client": "nobody"})},
    "/v1/fleets/fleet/removals": {"POST": ({OPERATOR}, {"client": "nobody"})},
    "/v1/fleets/fleet/rounds": {"POST": ({SERVER, OPERATOR}, {"clients": ["phone-1"]})},
    "/v1/fleets/fleet/rounds/1": {"GET": (READERS, None)},
    "/v1/fleets/fleet/rounds/1/close": {"POST": ({SERVER, OPERATOR}, {})},
    "/v1/fleets/fleet/rounds/1/abandon": {"POST": ({SERVER, OPERATOR}, {})},
    "/v1/fleets/fleet/round": {"GET": (READERS, None)},
    "/v1/fleets/fleet/check-ins": {"POST": ({DEVICE, SERVER, OPERATOR}, {"client": "phone-1"})},
    "/v1/fleets/fleet/turns": {"GET": (READERS, None), "POST": ({SERVER, OPERATOR}, {"clients": ["phone-1"]})},
    "/v1/fleets/fleet/reports": {"POST": ({DEVICE, SERVER, OPERATOR}, {"client": "phone-1", "seconds": 1.0})},
    "/v1/fleets/fleet/reports/batch": {"POST": ({SERVER, OPERATOR}, {"reports": [{"client": "phone-1"}]})},
    "/v1/fleets/fleet/failures": {"POST": ({DEVICE, SERVER, OPERATOR}, {"client": "phone-1", "why": "broken"})},
    "/v1/fleets/fleet/certificate": {"GET": (READERS, None)},
    "/v1/fleets/fleet/explanation?client=phone-1": {"GET": (READERS, None)},
    "/v1/fleets/fleet/history?client=phone-1": {"GET": (READERS, None)},
    "/v1/fleets/fleet/events?follow=false": {"GET": (READERS, None)},
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with served(tmp_path_factory.mktemp("roles"), {"fleet": ROUNDS, "other": SLOTS}) as running:
        running.ok("/clients", {"clients": ["phone-1"]})
        yield running


def test_the_table_names_every_route(service: Service) -> None:
    paths = service.send("GET", "/openapi.json", role=None).data["paths"]
    documented = {
        (path.replace("{fleet}", "fleet").replace("{round}", "1"), method.upper(), frozenset(operation["x-roles"]))
        for path, methods in paths.items()
        for method, operation in methods.items()
        if path.startswith("/v1")
    }
    expected = {
        (path.partition("?")[0], method, frozenset(roles))
        for path, methods in ALLOWED.items()
        for method, (roles, _) in methods.items()
    }
    assert documented == expected


@pytest.mark.parametrize("path", ALLOWED)
def test_each_role_may_do_exactly_what_the_table_says(service: Service, path: str) -> None:
    for number, method in enumerate(METHODS):
        allowed = {**ALLOWED[path], **({"HEAD": ALLOWED[path]["GET"]} if "GET" in ALLOWED[path] else {})}
        roles, body = allowed.get(method, (set(), {}))
        sent = None if method in ("GET", "HEAD", "OPTIONS", "TRACE", "BREW") else body
        # What a path does not have is missing for every role, so each such method is tried with one of them.
        for role in ROLES if method in allowed else [ROLES[number % len(ROLES)]]:
            reply = service.send(method, path, sent, role=role)
            status = reply.status
            if method not in allowed:
                assert status == 405, (method, role, status)
                assert set(reply.headers["allow"].split(", ")) == allowed.keys()
            elif role in roles:
                assert status in (200, 404, 409), (role, status)  # 404, 409: refused by the library, not by the role
            else:
                assert status == 403, (role, status)


@pytest.mark.parametrize("path", [*ALLOWED, "/v1/", "/v1", "/v1/nothing", "/v1/fleets/nothing"])
def test_nothing_is_answered_without_a_valid_token(service: Service, path: str) -> None:
    wrong = ("", "turnout", service.tokens["fleet"]["operator"][:-1] + "-")
    for number, method in enumerate(METHODS):
        sent: Any = None if method in ("GET", "HEAD", "OPTIONS") else {}
        for token in (None, wrong[number % len(wrong)]):
            reply = service.send(method, path, sent, role=None, token=token)
            assert reply.status == 401, (method, token)
            assert reply.headers["www-authenticate"] == ('Bearer error="invalid_token"' if token else "Bearer")


@pytest.mark.parametrize("path", [path for path in ALLOWED if path != "/v1/fleets"])
def test_a_token_of_another_fleet_finds_nothing(service: Service, path: str) -> None:
    for method, (_, body) in ALLOWED[path].items():
        reply = service.send(method, path, body, fleet="other")
        assert (reply.status, reply.error) == (404, "there is no fleet 'fleet' for this token: check the address")
    missing = service.send("GET", "/v1/fleets/missing", fleet="other")
    assert (missing.status, missing.error) == (404, "there is no fleet 'missing' for this token: check the address")


def test_public_paths_reveal_no_fleet_and_each_token_lists_only_its_own(service: Service) -> None:
    assert service.send("GET", "/v1/fleets", role="viewer").data == {"fleets": ["fleet"]}
    assert service.send("GET", "/v1/fleets", role="viewer", fleet="other").data == {"fleets": ["other"]}
    for path in ("/healthz", "/readyz", "/openapi.json"):
        reply = service.send("GET", path, role=None)
        assert reply.status == 200
        assert b"phone" not in reply.body or path == "/openapi.json"
        assert b"turnout_" not in reply.body
    assert service.send("GET", "/docs", role=None).status == 401


def test_a_token_that_is_revoked_or_created_while_the_service_runs_is_noticed(service: Service) -> None:
    with FleetTokens(service.fleets["fleet"].scheduler.path) as file:
        (new,) = file.create("viewer")
        assert service.send("GET", "/v1/fleets/fleet", token=new.text).status == 200
        file.revoke(new.token.id)
    assert service.send("GET", "/v1/fleets/fleet", token=new.text).status == 401
    for scheme in ("Basic", "bearer", "BEARER"):
        headers = {"authorization": f"{scheme} {service.tokens['fleet']['viewer']}"}
        expected = 401 if scheme == "Basic" else 200
        assert service.send("GET", "/v1/fleets/fleet", role=None, headers=headers).status == expected


# Devices


def test_a_device_reports_and_fails_only_for_its_own_client(service: Service) -> None:
    for path, body in (("/check-ins", {}), ("/reports", {"seconds": 1.0}), ("/failures", {"why": "broken"})):
        reply = service.post(path, {"client": "phone-2", **body}, role="device")
        assert (reply.status, reply.error) == (
            403,
            "this token is of the device 'phone-1': it cannot call for 'phone-2'",
        )
        assert service.post(path, body, role="server").error == "client is missing: name the client"


def test_a_device_cannot_report_the_turn_of_another(tmp_path: Path) -> None:
    with served(tmp_path, {"fleet": SLOTS}) as service:
        other = service.ok("/check-ins", {"client": "phone-2"})["turn"]
        own = service.ok("/check-ins", {}, role="device")["turn"]
        for path, body in (("/reports", {"seconds": 1.0}), ("/failures", {"why": "broken"})):
            reply = service.post(path, {"turn": other["id"], **body}, role="device")
            assert (reply.status, reply.error) == (403, "turn 1 was not given to 'phone-1': check the id of the turn")
            named = service.post(path, {"turn": other["id"], "client": "phone-2", **body}, role="device")
            assert named.status == 403
            wrong = service.post(path, {"turn": other["id"], "client": "phone-1", **body}, role="server")
            assert wrong.status == 403
        assert service.ok("/reports", {"turn": own["id"], "seconds": 2.0}, role="device") == {"new": True}
        assert [turn["client"] for turn in service.ok("/turns")["turns"]] == ["phone-2"]
        assert service.ok("/reports", {"turn": other["id"], "client": "phone-2"}, role="server") == {"new": True}


BODIES = BodyLimits(device=200, other=2000)


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with served(tmp_path_factory.mktemp("limits"), options=Options(port=0, bodies=BODIES)) as running:
        yield running


def padded(size: int) -> bytes:
    body = json.dumps({"client": "phone-1", "seconds": 1.0}).encode()
    return body + b" " * (size - len(body))


def test_bodies_are_limited_by_role(limited: Service) -> None:
    for role, most in (("device", 200), ("server", 2000)):
        assert limited.post("/reports", padded(most), role=role).status == 409  # not selected
        reply = limited.post("/reports", padded(most + 1), role=role)
        assert (reply.status, reply.error) == (413, f"the body must have at most {most:,} bytes: send less at a time")


def test_bodies_without_a_length_are_limited_too(limited: Service) -> None:
    for size, status in ((200, 409), (201, 413)):
        assert limited.post_chunked("/reports", [padded(size)], role="device")[0] == status


@pytest.mark.parametrize("length", ["-1", "x", "1" * 50, "²"])
def test_absurd_lengths_are_refused(limited: Service, length: str) -> None:
    head = (
        f"POST /v1/fleets/fleet/reports HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {limited.tokens['fleet']['server']}\r\nContent-Length: {length}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", limited.port), timeout=MAX_WAIT) as connection:
        connection.sendall(head.encode())
        status = int(connection.recv(100).split()[1])
    assert status in (400, 413)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_a_page_of_another_site_cannot_send_a_change(limited: Service, kind: str) -> None:
    reply = limited.post("/clients", b'{"clients": ["a"]}', headers={"content-type": kind})
    assert reply.status == 415
    prerunning_turn = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    allowed = limited.send("OPTIONS", "/v1/fleets/fleet/clients", headers=prerunning_turn)
    assert allowed.status == 405
    assert not [name for name in (*reply.headers, *allowed.headers) if name.startswith("access-control")]


def test_json_with_a_character_set_is_accepted(limited: Service) -> None:
    headers = {"content-type": "application/json; charset=utf-8"}
    assert limited.post("/clients", b'{"clients": ["phone-1"]}', headers=headers).status == 200


@pytest.mark.parametrize("path", ["/healthz", "/v1/fleets", "/v1/fleets/fleet", "/v1/nothing", "/nothing"])
@pytest.mark.parametrize("role", [None, "viewer"])
def test_every_response_has_the_security_headers(limited: Service, path: str, role: str | None) -> None:
    reply = limited.send("GET", path, role=role)
    assert {name: reply.headers[name] for name in HEADERS} == HEADERS
    assert reply.headers["cache-control"] == "no-store"
    assert "server" not in reply.headers


def test_headers_and_half_open_requests_are_limited(tmp_path: Path) -> None:
    limits = Limits(request_seconds=0.2, headers=20, header_bytes=4000)
    with served(tmp_path, options=Options(port=0, limits=limits)) as limited:
        many = {f"x-{number}": "1" for number in range(30)}
        assert limited.get("", headers=many).status == 431
        for path in ("?" + "x" * 4000, "/" + "x" * 4000):  # the address counts as the headers do
            assert limited.get(path).status == 431
        with socket.create_connection(("127.0.0.1", limited.port), timeout=MAX_WAIT) as connection:
            connection.sendall(b"POST /v1/fleets/fleet/reports HTTP/1.1\r\nHost: localhost\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 408")


def raw_post(limited: Service, *headers: str, body: bytes = b"") -> bytes:
    """Sends the head of a report of a device and a body as they are; returns what is answered until the end."""
    token = f"Authorization: Bearer {limited.tokens['fleet']['device']}"
    lines = ["POST /v1/fleets/fleet/reports HTTP/1.1", "Host: localhost", "Content-Type: application/json", token]
    with socket.create_connection(("127.0.0.1", limited.port), timeout=MAX_WAIT) as connection:
        connection.sendall("\r\n".join([*lines, *headers, "", ""]).encode() + body)
        connection.shutdown(socket.SHUT_WR)
        return connection.makefile("rb").read()


def test_a_device_that_breaks_off_in_a_body_is_no_fault_of_the_service(
    limited: Service, caplog: pytest.LogCaptureFixture
) -> None:
    counted = 'turnout_service_requests_total{fleet="fleet",operation="report",status="499"} 1'
    assert raw_post(limited, "Content-Length: 100", body=b'{"client"') == b""
    wait_until(lambda: counted in limited.send("GET", "/metrics").body.decode(), "it is counted")
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_request_with_two_lengths_is_refused_and_its_connection_closed(limited: Service) -> None:
    body = b"2\r\n{}\r\n0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answer = raw_post(limited, "Content-Length: 2", "Transfer-Encoding: chunked", body=body)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("path", ["/v1%2ffleets", "/v1/fleets/%66leet", "/%761/fleets", "/healthz%3f"])
def test_paths_that_others_may_read_differently_do_not_exist(limited: Service, path: str) -> None:
    assert limited.send("GET", path).status == 404


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/v1/fleets/fleet", "/v1/fleets/fleet/events"])
def test_head_is_answered_as_get_without_a_body(limited: Service, path: str) -> None:
    reply = limited.send("HEAD", path)
    assert (reply.status, reply.body) == (200, b"")
    assert reply.headers["content-type"]


def test_an_unexpected_failure_is_a_500_without_details(limited: Service) -> None:
    with patch.object(FleetTokens, "find", side_effect=ZeroDivisionError("secret")):
        reply = limited.get("")
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
    assert seen == [({"type": "lifespan"}, {"type": "lifespan.startup"}), ({}, {"type": "lifespan.startup.complete"})]


def test_the_tokens_of_one_fleet_that_cannot_be_read_leave_the_others_alone(tmp_path: Path) -> None:
    find = FleetTokens.find

    def broken(tokens: FleetTokens, text: str) -> Token | None:
        if tokens.fleet.stem == "fleet":
            raise StoreError("damaged")
        return find(tokens, text)

    with served(tmp_path, {"fleet": ROUNDS, "other": ROUNDS}) as limited, patch.object(FleetTokens, "find", broken):
        reply = limited.get("")
        assert (reply.status, "damaged" in reply.error, reply.headers["retry-after"]) == (503, False, "1")
        assert limited.get("", fleet="other").status == 200
