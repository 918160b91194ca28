"""Serves fleets over HTTP in tests."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from requesting import Reply, running, send_request
from turnout.live import Scheduler
from turnout.service.access import FleetTokens, Rates
from turnout.service.app import make_app
from turnout.service.calls import FleetCalls
from turnout.service.fleet import FleetAccess
from turnout.service.serving import Options, make_server, open_fleets
from turnout.storage.opening import store_exists
from turnout.storage.store import Location
from turnout.web.access import Role
from waiting import MAX_WAIT

ROUNDS: Mapping[str, Any] = {"settings": {"cohort_size": 2}, "deadline": 10.0, "allow_infeasible": True}
UNLIMITED = Rates(device=None)
SLOTS: Mapping[str, Any] = {"concurrency": 2, "settings": {"guaranteed_rate": "1/20", "tolerance": 1.0}}


@dataclass
class Service:
    """A running service, and tokens of all its fleets by role."""

    port: int
    fleets: dict[str, FleetCalls]
    access: FleetAccess
    server: uvicorn.Server
    tokens: dict[str, dict[str, str]]

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        role: str | None = "operator",
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        fleet: str = "fleet",
    ) -> Reply:
        """Sends a request with the token of a role; `body`: bytes, or values for JSON."""
        sent = {"content-type": "application/json"} if body is not None else {}
        token = self.tokens[fleet][role] if token is None and role is not None and self.tokens else token
        if token is not None:
            sent["authorization"] = f"Bearer {token}"
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        return send_request(self.port, method, path, content, {**sent, **(headers or {})})

    def get(self, path: str, **options: Any) -> Reply:
        """Sends a GET request about the fleet; `path` begins after its name."""
        return self.send("GET", f"/v1/fleets/{options.get('fleet', 'fleet')}{path}", **options)

    def post(self, path: str, body: Any, **options: Any) -> Reply:
        """Sends a POST request about the fleet; `path` begins after its name."""
        return self.send("POST", f"/v1/fleets/{options.get('fleet', 'fleet')}{path}", body, **options)

    def post_chunked(
        self,
        path: str,
        chunks: Sequence[bytes],
        ending: bytes = b"0\r\n\r\n",
        *,
        role: str = "operator",
        fleet: str = "fleet",
    ) -> tuple[int, bytes]:
        """Sends a body of unknown length; returns the status and the body of the response."""
        head = (
            f"POST /v1/fleets/{fleet}{path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {self.tokens[fleet][role]}\r\nTransfer-Encoding: chunked\r\n"
            "Connection: close\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", self.port), timeout=MAX_WAIT) as connection:
            connection.sendall(head.encode())
            for chunk in chunks:
                connection.sendall(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            connection.sendall(ending)
            with HTTPResponse(connection) as response:
                response.begin()
                return response.status, response.read()

    def ok(self, path: str, body: Any = None, **options: Any) -> Any:
        """Returns the JSON of a request that must succeed: a POST with a body, a GET without."""
        reply = self.get(path, **options) if body is None else self.post(path, body, **options)
        assert reply.status == 200, reply
        return reply.data


def make_fleet(path: Location, options: Mapping[str, Any]) -> dict[str, str]:
    """Creates a fleet; returns a token for each role, that of the device for phone-1."""
    Scheduler.open(path, **options).close()
    roles: tuple[Role, ...] = ("server", "operator", "viewer")
    with FleetTokens(path) as file:
        texts: dict[str, str] = {role: file.create(role)[0].text for role in roles}
        (device,) = file.create("device", clients=["phone-1"])
    return {**texts, "device": device.text}


@contextmanager
def served(
    folder: Path,
    fleets: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    options: Options | None = None,
    page: Any = None,
    places: Mapping[str, Location] | None = None,
    bound: socket.socket | None = None,
) -> Iterator[Service]:
    """Runs the real server in a thread, and stops it at the end; by default one fleet with rounds, on a free port.

    Fleets that do not exist are created, in the folder or at `places`. `bound` is a socket to listen on.
    """
    options = options or Options(port=0, rates=UNLIMITED)
    fleets = {"fleet": ROUNDS} if fleets is None else fleets
    paths: dict[str, Location] = {name: folder / f"{name}.turnout" for name in fleets}
    paths.update(places or {})
    tokens = {name: make_fleet(path, fleets[name]) for name, path in paths.items() if not store_exists(path)}
    with (
        open_fleets(list(paths.values()), options) as (opened, access),
        bound or socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        app = make_app(opened, access, page=page, limits=options.limits, bodies=options.bodies, rates=options.rates)
        server = make_server(app, options)
        listener.listen()
        with running(server, listener):
            yield Service(listener.getsockname()[1], opened, access, server, tokens if options.tokens else {})


def count_calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Returns a list that grows with every call that the thread of a fleet executes."""
    executed: list[Any] = []
    execute = FleetCalls._execute

    def counted(self: FleetCalls, call: Any) -> Any:
        executed.append(call)
        return execute(self, call)

    monkeypatch.setattr(FleetCalls, "_execute", counted)
    return executed
