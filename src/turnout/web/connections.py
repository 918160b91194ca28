"""Limits of HTTP connections: how long a request may take to arrive, how large it may be, how many there may be."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

#: The states of a client that has not sent its whole request.
_INCOMPLETE = (h11.IDLE, h11.SEND_BODY)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the connections to a server.

    Attributes:
        request_seconds: How long a request may take to arrive, headers and body, from its first byte or from the
            opening of the connection. A response may take any time: streams of changes stay open for hours.
        stalled_seconds: How long a client may read nothing of a response that is waiting for it.
        connections: The number of connections at the same time; most processes may open about 1,000 files.
        headers: The number of headers of a request.
        header_bytes: The size of the address and all headers of a request; browsers send about 2,000 bytes.
    """

    request_seconds: float = 15.0
    stalled_seconds: float = 60.0
    connections: int = 500
    headers: int = 100
    header_bytes: int = 1 << 14


LIMITS = Limits()


class LimitedProtocol(H11Protocol):
    """uvicorn's HTTP protocol, which by itself waits for ever for the rest of a request."""

    limits = LIMITS

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._request_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Refuses the connection if there are too many, otherwise waits for a request."""
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            self._refuse(b"503 Service Unavailable", b"there are too many connections: try again later\n")
            return
        self._expect_request()
        self._watch_progress(0)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops all timers."""
        for timer in (self._request_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        self._request_timer = self._stall_timer = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Passes data on; the time limit of a request begins with its first byte and ends with its last."""
        if self.transport.is_closing():
            return
        if self._request_timer is None:
            self._expect_request()
        super().data_received(data)
        if self.conn.their_state not in _INCOMPLETE and self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def _expect_request(self) -> None:
        self._request_timer = self.loop.call_later(self.limits.request_seconds, self._request_timed_out)

    def _request_timed_out(self) -> None:
        self._request_timer = None
        if self.conn.their_state not in _INCOMPLETE or self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            self._refuse(b"408 Request Timeout", b"the request did not arrive in time\n")
        else:  # the body of a request that is being answered
            self.transport.abort()

    def _watch_progress(self, waiting: int) -> None:
        """Closes the connection if its client has read nothing of what was waiting at the previous call."""
        now_waiting = self.transport.get_write_buffer_size()
        if 0 < waiting <= now_waiting:
            self.transport.abort()
            return
        self._stall_timer = self.loop.call_later(self.limits.stalled_seconds, self._watch_progress, now_waiting)

    def _refuse(self, status: bytes, message: bytes) -> None:
        """Answers without an application and closes the connection."""
        headers = b"content-type: text/plain\r\nconnection: close\r\ncontent-length: %d" % len(message)
        self.transport.write(b"HTTP/1.1 %b\r\n%b\r\n\r\n%b" % (status, headers, message))
        self.transport.close()


def protocol_with(limits: Limits) -> type[LimitedProtocol]:
    """Returns a protocol with these limits."""
    return type("LimitedProtocol", (LimitedProtocol,), {"limits": limits})
