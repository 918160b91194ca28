"""HTTP servers, the sockets on which they listen, the limits of connections, and pages beside an application."""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
import sys
import time
from asyncio.sslproto import SSLProtocol
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from ssl import SSLContext
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from turnout.errors import SettingError
from turnout.log import get_log
from turnout.web.errors import error_response

log = get_log("turnout.web")
#: How often refused connections are logged, and how long a client may take to read why it is refused, in seconds.
LOG_SECONDS, LINGER_SECONDS = 60.0, 2.0
TOO_MANY = "too many"
#: The states of a client that has not sent its whole request.
_INCOMPLETE = (h11.IDLE, h11.SEND_BODY)
if sys.platform != "win32":
    import resource

#: The number of connections that may wait to be accepted.
BACKLOG = 128
#: The number of files that a server opens besides its connections.
OTHER_FILES = 200


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


def listen(host: str, ports: Sequence[int]) -> socket.socket:
    """Returns a socket that listens on the first of these ports that is free; 0 stands for any free port.

    Raises:
        SettingError: If none is free, or the host is not an address of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for index, port in enumerate(ports):
        listener = socket.socket(family, socket.SOCK_STREAM)
        if sys.platform != "win32":  # where it would let two servers listen on the same port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host.strip("[]"), port))
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            if index + 1 < len(ports):
                continue
            raise SettingError(
                f"cannot listen on {host} port {port} ({error.strerror or error}): pass another host or port",
                argument="port",
            ) from error
        else:
            return listener
    raise AssertionError("unreachable")


def allow_files(limits: Limits) -> Limits:
    """Lets the process open files for so many connections, if it may; returns limits that it can keep."""
    if sys.platform == "win32":  # has no such limit
        return limits
    needed, (soft, hard) = limits.most_connections + OTHER_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < needed:  # a negative number stands for no limit
        soft = needed if hard < 0 else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if not 0 <= soft < needed:
        return limits
    possible = max(10, (soft - OTHER_FILES) * 9 // 10)
    log.warning("only %d connections are possible: let the process open %d files, not %d", possible, needed, soft)
    return replace(limits, connections=possible)


def address_of(listener: socket.socket, scheme: str = "http") -> str:
    """Returns the URL of a server that listens on a socket, without a path."""
    host, port = listener.getsockname()[:2]
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


@dataclass(frozen=True, slots=True)
class Page:
    """A web page that is served beside an application.

    Attributes:
        app: The application of the page.
        end: Called when the server begins to end, so that streams of the page end as well.
        close: Called when the server has ended.
    """

    app: ASGIApp
    end: Callable[[], None]
    close: Callable[[], None]


class Server(uvicorn.Server):
    """An HTTP server without access log, which would contain tokens, and without a server header.

    Args:
        app: The application.
        limits: The limits of connections.
        endings: Called before the server shuts down, to end streams, so that it need not wait for them.
        shutdown_seconds: How long running requests may take then.
        certificate: The file of a TLS certificate; None for plain HTTP.
        key: The file of its private key; None if it is in the same file.
        refusals: Counts the connections that are refused.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        endings: Sequence[Callable[[], None]],
        *,
        shutdown_seconds: int,
        certificate: Path | None = None,
        key: Path | None = None,
        refusals: Refusals | None = None,
    ) -> None:
        limits = allow_files(limits)
        context = None
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, key)
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol_with(limits, refusals, context),  # type: ignore[arg-type]
                h11_max_incomplete_event_size=limits.header_bytes,
                ws="none",
                lifespan="off",
                log_level="error",  # its warnings are about requests that are refused, which are counted
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=shutdown_seconds,
            )
        )
        self._endings = endings

    def end(self) -> None:
        """Lets the server shut down, as SIGTERM does."""
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends the streams, closes the sockets, and waits for the running requests."""
        for end in self._endings:
            end()
        await super().shutdown(sockets)
