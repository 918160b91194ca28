"""Sends HTTP requests over many connections as fast as they are answered, in a process of its own."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from turnout.errors import StoreError

#: Between the headers of a message and its body.
_BLANK = b"\r\n\r\n"
_LENGTH = b"content-length:"


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """What a load measured.

    Attributes:
        seconds: From the first request until the last response.
        latencies: The seconds from each request to its response, ascending.
        statuses: How many responses had each HTTP status.
        bodies: The bodies of the responses in the order of the requests; empty unless they are wanted.
    """

    seconds: float
    latencies: list[float]
    statuses: dict[int, int]
    bodies: list[bytes]

    @property
    def per_second(self) -> float:
        """The responses per second."""
        return len(self.latencies) / self.seconds

    def percentile(self, percent: float) -> float:
        """Returns the seconds within which so many percent of the requests were answered."""
        return self.latencies[min(int(len(self.latencies) * percent / 100), len(self.latencies) - 1)]


def http_request(method: str, path: str, headers: Sequence[tuple[str, str]] = (), body: bytes = b"") -> bytes:
    """Returns a request as it is sent over a connection that stays open."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *(f"{name}: {value}" for name, value in headers)]
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join(lines).encode("latin-1") + _BLANK + body


def send_load(port: int, requests: Sequence[bytes], connections: int, *, keep_bodies: bool = False) -> LoadFigures:
    """Sends requests to this machine over so many connections, each as soon as the one before it was answered.

    Args:
        port: The port of the server.
        requests: The requests.
        connections: The number of connections.
        keep_bodies: Whether the bodies of the responses are returned.
    """
    return asyncio.run(_send(port, requests, connections, keep_bodies))


async def _send(port: int, requests: Sequence[bytes], connections: int, keep_bodies: bool) -> LoadFigures:
    load = _Load(requests, keep_bodies)
    loop = asyncio.get_running_loop()
    opened = [
        (await loop.create_connection(lambda: _Connection(load), "127.0.0.1", port))[1]
        for _ in range(min(connections, len(requests)))
    ]
    start = time.perf_counter()
    for connection in opened:
        connection.send_next()
    try:
        await load.done
    finally:
        for connection in opened:
            connection.transport.close()
    seconds = time.perf_counter() - start
    return LoadFigures(seconds, sorted(load.latencies), dict(load.statuses), load.bodies)


class _Load:
    """The requests that wait, and what was measured."""

    def __init__(self, requests: Sequence[bytes], keep_bodies: bool) -> None:
        self.waiting = deque(enumerate(requests))
        self.left = len(requests)
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.latencies: list[float] = []
        self.statuses: Counter[int] = Counter()
        self.bodies = [b""] * len(requests) if keep_bodies else []


class _Connection(asyncio.Protocol):
    """A connection that is never closed between requests."""

    transport: asyncio.Transport

    def __init__(self, load: _Load) -> None:
        self._load, self._received, self._index, self._start = load, b"", 0, 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def send_next(self) -> None:
        if not self._load.waiting:
            return
        self._index, request = self._load.waiting.popleft()
        self._start = time.perf_counter()
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, blank, body = self._received.partition(_BLANK)
        if not blank:
            return
        at = head.lower().find(_LENGTH)
        length = int(head[at + len(_LENGTH) :].partition(b"\r\n")[0])
        if len(body) < length:
            return
        load = self._load
        load.latencies.append(time.perf_counter() - self._start)
        load.statuses[int(head[9:12])] += 1
        if load.bodies:
            load.bodies[self._index] = body
        self._received = b""
        load.left -= 1
        if not load.left:
            load.done.set_result(None)
        self.send_next()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._load.done.done():
            self._load.done.set_exception(StoreError(f"the service closed a connection: {exc or 'see its log'}"))
