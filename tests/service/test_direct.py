"""Valid changes are called without FastAPI, and are answered exactly as with it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from fastapi import FastAPI, Request
from fastapi.routing import APIRoute
from starlette.types import Message

from service.served import Service, served
from turnout.service.direct import DirectCalls, _again
from turnout.service.models import Registration
from turnout.service.routes import RoleRoute

CALLS: list[tuple[str, Any, str]] = [
    ("/clients", {"clients": ["a", "b"]}, "server"),
    ("/clients", {"clients": ["c"]}, "viewer"),
    ("/clients", {"clients": "c"}, "server"),
    ("/clients", b"[", "server"),
    ("/clients", b"", "server"),
    ("/rounds", {"clients": ["a", "b", "c"]}, "server"),
    ("/reports", {"seconds": 2.0}, "device"),
    ("/reports", {"client": "a", "seconds": "2.5"}, "server"),
    ("/reports", {"client": "a", "seconds": 3.5}, "server"),
    ("/reports", {"client": "a", "seconds": -1}, "server"),
    ("/reports/batch", {"reports": [{"client": "b", "seconds": 1.0}, {"client": "x", "seconds": 1.0}]}, "operator"),
    ("/check-ins", {"client": "a"}, "server"),
    ("/rounds/close", {"after": 3.0}, "server"),
    ("/nothing", {}, "server"),
    ("/removals", {"client": "a"}, "operator"),
]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with served(tmp_path) as running:
        yield running


def answers(folder: Path) -> list[tuple[int, bytes]]:
    found = []
    folder.mkdir()
    with served(folder) as service:
        for number, (path, body, role) in enumerate(CALLS):
            for _ in range(2):
                reply = service.post(path, body, role=role, headers={"idempotency-key": f"call-{number}"})
                found.append((reply.status, reply.body.replace(str(folder).encode(), b"")))
                assert reply.headers["content-type"] == "application/json"
    return found


def test_the_answers_are_those_of_fastapi(tmp_path: Path) -> None:
    direct = answers(tmp_path / "direct")
    with patch.object(DirectCalls, "_find", lambda *_: (None, "")):
        other = answers(tmp_path / "other")
    recorded = [(status, body.partition(b'"at"')[0]) for status, body in direct]  # without the time
    assert recorded == [(status, body.partition(b'"at"')[0]) for status, body in other]
    assert {status for status, _ in direct} == {200, 400, 403, 404, 409, 422}


def test_only_what_is_valid_is_called_directly(service: Service) -> None:
    handled: list[str] = []
    handle = APIRoute.handle

    async def observe(route: APIRoute, scope: Any, receive: Any, send: Any) -> None:
        handled.append(scope["path"])
        await handle(route, scope, receive, send)

    with patch.object(RoleRoute, "handle", observe):
        assert service.post("/clients", {"clients": ["a"]}).status == 200
        assert service.post("/clients", {"clients": ["a"]}, role="viewer").status == 403
        assert handled == []
        assert service.post("/clients", {"clients": []}).status == 422
        assert service.post("/clients", {"clients": ["a"]}, headers={"idempotency-key": "a b"}).status == 422
        assert service.get("").status == 200
    assert handled == ["/v1/fleets/fleet/clients"] * 2 + ["/v1/fleets/fleet"]


def test_what_follows_a_body_that_was_read_already_is_received_after_it() -> None:
    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def run() -> list[Message]:
        again = _again(b"{}", receive)
        return [await again() for _ in range(3)]

    body = {"type": "http.request", "body": b"{}", "more_body": False}
    assert asyncio.run(run()) == [body, {"type": "http.disconnect"}, {"type": "http.disconnect"}]


def test_a_route_with_other_parameters_is_left_to_fastapi() -> None:
    async def plain(request: Request, fleet: str, body: Registration, key: str | None = None) -> None: ...

    async def with_a_query(request: Request, fleet: str, body: Registration, limit: int = 3) -> None: ...

    routes = [
        APIRoute(f"/v1/fleets/{{fleet}}/{name}", endpoint, methods=["POST"], openapi_extra={"x-roles": ["server"]})
        for name, endpoint in (("plain", plain), ("query", with_a_query))
    ]
    direct = DirectCalls(FastAPI(), routes=routes, check=lambda *_: None, roles_field="x-roles")
    assert list(direct._endpoints) == ["plain"]
