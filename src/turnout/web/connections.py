"""Limits of HTTP connections: how long a request may take to arrive, how large it may be, how many there may be."""

from __future__ import annotations

import asyncio
import math
import time
from asyncio.sslproto import SSLProtocol
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from ssl import SSLContext
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from turnout.log import get_log
from turnout.web.errors import error_response

log = get_log("turnout.web")
#: How often refused connections are logged, and how long a client may take to read why it is refused, in seconds.
LOG_SECONDS, LINGER_SECONDS = 60.0, 2.0
TOO_MANY = "too many"
#: The states of a client that has not sent its whole request.
_INCOMPLETE = (h11.IDLE, h11.SEND_BODY)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the connections to a server.

    Attributes:
        request_seconds: How long a request may take to arrive, headers and body, from its first byte or from the
            opening of the connection. A response may take any time: streams of changes stay open for hours.
        body_bytes: The bytes of a body that must arrive in that time, so that the rest may take as long again.
        stalled_seconds: How long a client may read nothing of a response that is waiting for it.
        connections: The number of connections at the same time; most processes may open about 1,000 files.
        headers: The number of headers of a request.
        header_bytes: The size of the address and all headers of a request; browsers send about 2,000 bytes.
    """

    request_seconds: float = 15.0
    body_bytes: int = 1 << 20
    stalled_seconds: float = 60.0
    connections: int = 500
    headers: int = 100
    header_bytes: int = 1 << 14

    @property
    def most_connections(self) -> int:
        """The number of connections with those that are told that they are too many."""
        return self.connections + max(10, self.connections // 10)


LIMITS = Limits()


class Refusals:
    """Counts the connections that a server refuses, and logs them: the first at once, then a line per minute.

    Args:
        clock: Returns the present time in seconds.

    Attributes:
        counts: The number of them, by reason.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.counts: Counter[str] = Counter()
        self._clock = clock
        self._logged, self._next = 0, -math.inf

    def count(self, why: str) -> None:
        """Counts a connection."""
        self.counts[why] += 1
        now, total = self._clock(), self.counts.total()
        if now >= self._next:
            reasons = ", ".join(f"{reason}: {count:,}" for reason, count in sorted(self.counts.items()))
            log.warning("%s connections refused since the last line (%s in all)", f"{total - self._logged:,}", reasons)
            self._logged, self._next = total, now + LOG_SECONDS


class LimitedProtocol(H11Protocol):
    """uvicorn's HTTP protocol, which by itself waits for ever for the rest of a request."""

    limits = LIMITS
    refusals = Refusals()

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._request_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._is_refused = False
        self._received = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Refuses the connection if there are too many, otherwise waits for a request."""
        super().connection_made(transport)
        if len(self.connections) > self.limits.most_connections:  # too many to tell each of them
            self._count_refusal(TOO_MANY)
            self.transport.abort()
            return
        self._watch_progress(0)
        if len(self.connections) > self.limits.connections:
            self._refuse(503, "there are too many connections: try again later", TOO_MANY)
            return
        self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops all timers."""
        self._stop_request_timer()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Passes data on; the time limit of a request begins with its first byte and ends with its last."""
        if self._is_refused or self.transport.is_closing():
            return
        if self._request_timer is None:
            self._expect_request()
        self._received += len(data)
        super().data_received(data)
        if self.conn.their_state not in _INCOMPLETE and not self._is_refused:
            self._stop_request_timer()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  # it is uvicorn's
        """Refuses what is not HTTP."""
        self._refuse(400, "the request is not valid HTTP/1.1", "malformed")

    def _expect_request(self) -> None:
        self._received = 0
        self._request_timer = self.loop.call_later(self.limits.request_seconds, self._request_timed_out)

    def _stop_request_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
        self._request_timer = None

    def _request_timed_out(self) -> None:
        self._request_timer = None
        if self.conn.their_state is h11.SEND_BODY and self._received >= self.limits.body_bytes:
            self._expect_request()
        elif self.conn.their_state in _INCOMPLETE and not self.transport.is_closing():
            self._refuse(408, "the request did not arrive in time: send it again", "slow")

    def _watch_progress(self, waiting: int) -> None:
        """Closes the connection if its client has read nothing of what was waiting at the previous call."""
        now_waiting = self.transport.get_write_buffer_size()
        if 0 < waiting <= now_waiting:
            self.transport.abort()
            return
        self._stall_timer = self.loop.call_later(self.limits.stalled_seconds, self._watch_progress, now_waiting)

    def _refuse(self, status: int, text: str, why: str) -> None:
        """Answers without an application and closes the connection, in such a way that the client can read the answer.

        A connection that is closed before everything that it has received was read is reset, and its answer is lost.
        """
        self._count_refusal(why)
        self._stop_request_timer()
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True  # its application gets no more of the body, and nothing that it sends is sent
            cycle.message_event.set()
            if cycle.response_started:
                self.transport.abort()
                return
        response = error_response(text, status, {"connection": "close"})
        headers = b"".join(b"%b: %b\r\n" % header for header in response.raw_headers)
        phrase = HTTPStatus(status).phrase.encode()
        self.transport.write(b"HTTP/1.1 %d %b\r\n%b\r\n%b" % (status, phrase, headers, bytes(response.body)))
        if not self.transport.can_write_eof():  # TLS has an end of its own
            self.transport.close()
            return
        self.transport.write_eof()
        self.flow.resume_reading()  # what arrives is dropped until the client closes
        self._request_timer = self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def _count_refusal(self, why: str) -> None:
        self._is_refused = True
        self.refusals.count(why)


class CountedHandshake(SSLProtocol):
    """TLS in front of a protocol: a connection counts from its beginning, and its handshake must end in time.

    asyncio tells a protocol of a connection when its handshake has ended.

    Args:
        protocol: The protocol behind it.
        context: The certificate.
        opened: The connections of the server, to which this one is added.
    """

    def __init__(self, protocol: LimitedProtocol, context: SSLContext, opened: set[CountedHandshake]) -> None:
        seconds = protocol.limits.request_seconds
        super().__init__(protocol.loop, protocol, context, None, True, ssl_handshake_timeout=seconds)  # type: ignore[arg-type]
        self._limited, self._opened = protocol, opened

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begins the handshake, or breaks the connection off if there are too many."""
        if len(self._opened) >= self._limited.limits.most_connections:
            self._limited.refusals.count(TOO_MANY)
            transport.abort()  # type: ignore[attr-defined]  # it is a Transport, but not one of uvloop
            return
        self._opened.add(self)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forgets the connection."""
        if self in self._opened and self._limited.transport is None:
            self._limited.refusals.count("handshake")
        self._opened.discard(self)
        super().connection_lost(exc)


def protocol_with(
    limits: Limits, refusals: Refusals | None = None, context: SSLContext | None = None
) -> Callable[..., asyncio.BaseProtocol]:
    """Returns what makes the protocol of a connection, as uvicorn calls it, with these limits; with TLS if asked."""
    own = {"limits": limits, "refusals": refusals or Refusals()}
    protocol: type[LimitedProtocol] = type("LimitedProtocol", (LimitedProtocol,), own)
    if context is None:
        return protocol
    opened: set[CountedHandshake] = set()
    return lambda **options: CountedHandshake(protocol(**options), context, opened)
