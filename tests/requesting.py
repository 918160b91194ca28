"""HTTP requests in tests, the events of streams, and servers that run in a thread."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from typing import Any, NamedTuple

import uvicorn

from waiting import MAX_WAIT, wait_until


class Reply(NamedTuple):
    """An HTTP response; header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def data(self) -> Any:
        """The body, which is JSON."""
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The text of the error."""
        return str(self.data["detail"])


def send_request(
    port: int, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> Reply:
    """Sends a request without cookies and without following redirects."""
    connection = HTTPConnection("127.0.0.1", port, timeout=MAX_WAIT)
    try:
        connection.request(method, path, body, dict(headers or {}))
        response = connection.getresponse()
        return Reply(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())
    finally:
        connection.close()


@contextmanager
def streaming(port: int, path: str, headers: Mapping[str, str] | None = None) -> Iterator[HTTPResponse]:
    """Opens a stream of server-sent events."""
    connection = HTTPConnection("127.0.0.1", port, timeout=MAX_WAIT)
    try:
        connection.request("GET", path, headers=dict(headers or {}))
        with connection.getresponse() as response:
            assert response.status == 200
            assert (response.getheader("content-type") or "").startswith("text/event-stream")
            assert response.getheader("cache-control") == "no-store"
            yield response
    finally:
        connection.close()


def read_fields(response: HTTPResponse) -> dict[str, str] | None:
    """Waits for the next event of a stream, and returns its fields; None at the end of the stream."""
    lines: list[str] = []
    while line := response.readline().decode():
        if line == "\n" and lines:
            return dict(field.rstrip("\n").split(": ", 1) for field in lines)
        if line != "\n" and not line.startswith(":"):
            lines.append(line)
    return None


@contextmanager
def running(server: uvicorn.Server, listener: socket.socket) -> Iterator[None]:
    """Runs a server in a thread until the block ends."""
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="served")
    thread.start()
    try:
        wait_until(lambda: server.started, "the server has started")
        yield
    finally:
        server.should_exit = True
        thread.join(MAX_WAIT)
        assert not thread.is_alive()
