"""Sends HTTP requests over many connections as fast as they are answered, in a process of its own."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

#: Between the headers of a message and its body.
BLANK = b"\r\n\r\n"
LENGTH = b"content-length:"


@dataclass(frozen=True, slots=True)
class Load:
    """What a load measured.

    Attributes:
        seconds: From the first request until the last response.
        latencies: The seconds from each request to its response, ascending.
        statuses: How many responses had each HTTP status.
        cpu: The CPU seconds of the server; None if they are not known.
    """

    seconds: float
    latencies: list[float]
    statuses: dict[int, int]
    cpu: float | None = None

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
    return "\r\n".join(lines).encode("latin-1") + BLANK + body


def send_load(port: int, requests: Sequence[bytes], connections: int) -> Load:
    """Sends requests to this machine over so many connections, each as soon as the one before it was answered."""
    return asyncio.run(_send(port, requests, connections))


async def _send(port: int, requests: Sequence[bytes], connections: int) -> Load:
    waiting, latencies, statuses = deque(requests), list[float](), Counter[int]()
    opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(min(connections, len(requests)))]

    async def work(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while waiting:
            start = time.perf_counter()
            writer.write(waiting.popleft())
            head = await reader.readuntil(BLANK)
            length = head[head.lower().index(LENGTH) + len(LENGTH) :].partition(b"\r\n")[0]
            await reader.readexactly(int(length))
            latencies.append(time.perf_counter() - start)
            statuses[int(head[9:12])] += 1

    start = time.perf_counter()
    try:
        await asyncio.gather(*(work(*connection) for connection in opened))
    finally:
        for _, writer in opened:
            writer.close()
    return Load(time.perf_counter() - start, sorted(latencies), dict(statuses))
