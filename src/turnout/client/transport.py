"""Sends requests to a service until they are answered."""

from __future__ import annotations

import http.client
import json
import random
import re
import socket
import ssl
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from weakref import WeakSet

from turnout.client.connections import IdleConnections, Server
from turnout.errors import SettingError, TurnoutError
from turnout.log import get_log

log = get_log("turnout.client")
#: The statuses after which a call is tried again: the service, or a proxy before it, cannot execute it now.
RETRIED = (429, 502, 503, 504)
#: The pause before the second attempt is up to this many seconds, and doubles with each attempt up to the longest.
FIRST_PAUSE, MAX_PAUSE = 0.2, 10.0
#: The largest answer that is read, in bytes.
MAX_BYTES = 1 << 28
#: How long connecting to one of several services may take, in seconds.
CONNECT_SECONDS = 4.0
#: After so many attempts without an answer, the log says that the service is waited for.
LOGGED_ATTEMPT = 3


class ServiceError(TurnoutError):
    """A call over HTTP has failed.

    Attributes:
        status: The HTTP status; None if there was no answer.
        code: The code of the error, which docs/service.md lists; None if the answer has none.
    """

    def __init__(self, message: str, status: int | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class RefusedError(ServiceError):
    """The service has refused the call, with the message of the library."""


class UnavailableError(ServiceError):
    """There was no answer, or the service was too busy, as often as it was tried."""


@dataclass(frozen=True, slots=True)
class ServiceEvent:
    """Something that happened in a fleet.

    Attributes:
        kind: "joined", "retired", "forgotten", "amended", "closed" or "filled"; or "state", which is sent whenever the
            reports of the open round, or the running turns, have changed.
        data: What happened, as the service describes it.
        number: The number of the event; that of the event before it for "state".
    """

    kind: str
    data: dict[str, Any]
    number: int


class StreamConnection:
    """The present connection of a stream, which another thread may break."""

    def __init__(self) -> None:
        self.is_closed = False
        self._mutex = threading.Lock()
        self._socket: socket.socket | None = None

    def open(self, connection: http.client.HTTPConnection) -> None:
        """Opens the connection that `close` breaks."""
        connection.connect()
        with self._mutex:
            if self.is_closed:
                raise ConnectionAbortedError("the stream was closed")
            self._socket = connection.sock

    def close(self) -> None:
        """Ends the stream."""
        with self._mutex:
            self.is_closed = True
            if self._socket is not None:
                with suppress(OSError):  # it was closed meanwhile
                    self._socket.shutdown(socket.SHUT_RDWR)  # unlike close, this wakes a thread that reads from it


class EventStream(Iterator[ServiceEvent]):
    """The events of a fleet; another thread may close it while the next event is awaited."""

    def __init__(self, events: Generator[ServiceEvent], connection: StreamConnection) -> None:
        self._events, self._connection = events, connection

    def __next__(self) -> ServiceEvent:
        return next(self._events)

    def close(self) -> None:
        """Ends the iteration."""
        self._connection.close()
        with suppress(ValueError):  # another thread waits for the next event; that ends now
            self._events.close()


class Transport:
    """Sends requests about one fleet, over connections that threads share; `FleetClient` describes its arguments."""

    def __init__(
        self,
        address: str | Sequence[str],
        *,
        token: str | None = None,
        timeout: float = 30.0,
        attempts: int = 8,
        authorities: Path | None = None,
    ) -> None:
        addresses = re.split(r",(?=https?:)", address) if isinstance(address, str) else address
        if not addresses:
            raise SettingError("address must name at least one service, got none")
        self._servers = [Server(each, authorities) for each in addresses]
        self.address = ",".join(server.address for server in self._servers)
        self._present = 0  # the server that answered last, or that is to be tried next
        if token is not None and not re.fullmatch(r"[\x21-\x7e]+", token):
            raise SettingError("token must be one line of ASCII characters without spaces: strip what surrounds it")
        if attempts < 1:
            raise SettingError(f"attempts must be at least 1, got {attempts}")
        self._timeout, self._attempts = timeout, attempts
        self._headers = {"accept": "application/json"}
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"
        self._streams: WeakSet[StreamConnection] = WeakSet()

    def _call(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str], patience: float = 0.0
    ) -> dict[str, Any]:
        """Sends a request until it is answered, at most `attempts` times; `patience` is added to the timeout.

        Each attempt asks one server after the other; the pauses are between the attempts.
        """
        path = f"/{path}" if path and not path.startswith("?") else path
        called = f"{method} {self._servers[0].path}{path.partition('?')[0]}"
        problem, code, retry_after, status = "", None, 0.0, None
        for attempt in range(self._attempts * len(self._servers)):
            if attempt == LOGGED_ATTEMPT * len(self._servers):
                waiting = "%s did not execute %s in %d attempts, and is asked again, up to %d times in all: %s"
                log.warning(waiting, self._hosts, called, LOGGED_ATTEMPT, self._attempts, problem)
            if attempt and attempt % len(self._servers) == 0:
                time.sleep(_pause(attempt // len(self._servers), retry_after))
            server = self._servers[self._present]
            try:
                status, retry_after, content = self._send(server, method, path, body, headers, patience)
            except ssl.SSLCertVerificationError as error:  # the next attempt would end alike
                raise UnavailableError(f"the certificate of {server.host} is refused: {_describe(error)}") from error
            except (OSError, http.client.HTTPException) as error:
                problem, code, retry_after, status = _describe(error), None, 0.0, None
                self._turn_from(server)
                continue
            data = _parse(content)
            if status == 200 and data is not None:
                if attempt >= LOGGED_ATTEMPT * len(self._servers):
                    log.warning("%s has executed %s", server.host, called)
                return data
            if data is None and status not in RETRIED:
                raise RefusedError(_describe_foreign(status, content, server.host), status)
            problem, code = _problem(data, f"the answer has status {status}, and is not JSON")
            if status not in RETRIED:
                raise RefusedError(problem, status, code)
            self._turn_from(server)
        message = f"{self._hosts} did not execute {called} in {self._attempts} attempts: {problem}"
        raise UnavailableError(message, status, code)

    @property
    def _hosts(self) -> str:
        return " and ".join(server.host for server in self._servers)

    def _turn_from(self, server: Server) -> None:
        """Lets the next request go to the next server, unless another thread has changed that already."""
        if self._servers[self._present] is server:
            self._present = (self._present + 1) % len(self._servers)

    def events(self, after: int | None = None, *, follow: bool = True) -> EventStream:
        """Iterates over what happens; a stream that breaks off is opened again after the last event that was yielded.

        Args:
            after: The number of the last event that you have; 0 for all that are kept; by default from now on.
            follow: Whether to wait for further events; otherwise, the iteration ends after the newest.

        Raises:
            RefusedError: If the next events are no longer kept.
            UnavailableError: If the stream cannot be opened again.
        """
        connection = StreamConnection()
        self._streams.add(connection)
        return EventStream(self._follow(connection, after, follow=follow), connection)

    def close(self) -> None:
        """Ends the streams and closes the connections; later calls open new ones."""
        for server in self._servers:
            idle, server.idle = server.idle, IdleConnections()
            idle.close()
        for stream in list(self._streams):
            stream.close()

    def _send(
        self, server: Server, method: str, path: str, body: bytes | None, headers: Mapping[str, str], patience: float
    ) -> tuple[int, float, bytes]:
        """Returns the status of the answer, the seconds after which to try again, and its body."""
        server.after_fork()
        idle = server.idle
        connection = idle.take() or server.connect(self._timeout + patience)
        try:
            if connection.sock is None and len(self._servers) > 1:  # a machine that is lost does not even refuse
                connection.timeout = min(self._timeout, CONNECT_SECONDS)
                connection.connect()
            if connection.sock is not None:
                connection.sock.settimeout(self._timeout + patience)
            connection.request(method, f"{server.path}{path}", body, {**self._headers, **headers})
            response = connection.getresponse()
            content = _read(response)
        except BaseException:
            connection.close()
            raise
        idle.put(connection)
        pause = response.getheader("retry-after", "")
        return response.status, float(pause) if pause.isdecimal() else 0.0, content

    def _follow(self, stream: StreamConnection, after: int | None, *, follow: bool) -> Generator[ServiceEvent]:
        """Yields the events of one stream after the other, with pauses between them."""
        failures, problem, most = 0, "", self._attempts * len(self._servers)
        while failures < most and not stream.is_closed:
            server = self._servers[self._present]
            connection = server.connect(self._timeout)
            failures, problem = failures + 1, "the stream ended without an event"
            try:
                stream.open(connection)
                for event in self._stream(server, connection, after, follow=follow):
                    failures, after = 0, event.number
                    yield event
                if not follow:
                    return
            except (OSError, http.client.HTTPException, UnavailableError, ValueError, KeyError) as error:
                failures, problem = max(failures, 1), _describe(error)
                self._turn_from(server)
            finally:
                connection.close()
            if failures < most and failures % len(self._servers) == 0 and not stream.is_closed:
                pause = _pause(max(failures // len(self._servers), 1), 0.0)
                time.sleep(pause)  # a proxy may cut off every stream after its first event
        if not stream.is_closed:
            raise UnavailableError(f"{self._hosts} did not send its events in {self._attempts} attempts: {problem}")

    def _stream(
        self, server: Server, connection: http.client.HTTPConnection, after: int | None, *, follow: bool
    ) -> Iterator[ServiceEvent]:
        """Yields the events of one stream until it ends."""
        query = {"follow": "true" if follow else "false"} | ({} if after is None else {"after": str(after)})
        connection.request("GET", f"{server.path}/events?{urlencode(query)}", headers=self._headers)
        response = connection.getresponse()
        if response.status != 200:
            problem, code = _problem(_parse(_read(response)), f"the answer has status {response.status}")
            kind = UnavailableError if response.status in RETRIED else RefusedError
            raise kind(problem, response.status, code)
        if not (response.getheader("content-type") or "").startswith("text/event-stream"):
            raise RefusedError(_describe_foreign(200, _read(response), server.host), 200)
        fields: dict[str, str] = {}
        while line := response.readline(MAX_BYTES):
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name:
                fields[name] = value
            elif "event" in fields:
                data = json.loads(fields["data"])
                if fields["event"] == "stale":
                    raise RefusedError(str(data["detail"]), 410, data["code"])
                if fields["event"] == "unreadable":
                    raise UnavailableError(str(data["detail"]), 503, data["code"])
                yield ServiceEvent(fields["event"], data, int(fields["id"]))
                fields = {}


def _pause(attempt: int, retry_after: float) -> float:
    """Returns the seconds before an attempt: random, so that clients that failed together do not return together."""
    return min(retry_after, MAX_PAUSE) + random.uniform(0, min(FIRST_PAUSE * 2 ** (attempt - 1), MAX_PAUSE))


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _describe_foreign(status: int, content: bytes, host: str) -> str:
    """Describes an answer that is not one of the service, for example a page of a proxy."""
    text = " ".join(re.sub(r"<[^>]*>", " ", content[:2000].decode(errors="replace")).split())
    advice = "check the address, and the proxy if there is one"
    return f"the answer of {host} has status {status}, and is not JSON of turnout: {advice}; it says {text[:200]!r}"


def _read(response: http.client.HTTPResponse) -> bytes:
    """Returns the body of an answer; raises HTTPException if a part of it is missing, or if it is too large."""
    size, parts = response.length or 0, []
    if response.length is not None and size <= MAX_BYTES:
        return response.read()  # with a number of bytes, it would not notice that some are missing
    while size <= MAX_BYTES and (part := response.read(1 << 16)):
        parts.append(part)
        size += len(part)
    if size > MAX_BYTES:
        raise http.client.HTTPException(f"the answer has more than {MAX_BYTES:,} bytes")
    return b"".join(parts)


def _problem(data: Mapping[str, Any] | None, otherwise: str) -> tuple[str, str | None]:
    """Returns the text and the code of an error; another text if the answer has none."""
    return str((data or {}).get("detail", otherwise)), (data or {}).get("code")


def _parse(content: bytes) -> dict[str, Any] | None:
    """Returns the object of an answer; None if it is none, for example a page of a proxy."""
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None
