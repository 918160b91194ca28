"""Sends requests to a service until they are answered."""

from __future__ import annotations

import http.client
import json
import os
import random
import re
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit
from weakref import WeakSet

from turnout.errors import SettingError, TurnoutError

#: The statuses after which a call is tried again: the service, or a proxy before it, cannot execute it now.
RETRIED = (429, 502, 503, 504)
#: The pause before the second attempt is up to this many seconds, and doubles with each attempt up to the longest.
FIRST_PAUSE, MAX_PAUSE = 0.2, 10.0
#: The largest answer that is read, in bytes.
MAX_BYTES = 1 << 28
#: How many connections stay open without a call, and for how many seconds: shorter than the service keeps them (5 s).
MAX_IDLE, IDLE_SECONDS = 8, 4.0


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


class IdleConnections:
    """Connections without a call, which the threads of one process share; the newest is used first."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._mutex = threading.Lock()
        self._idle: list[tuple[float, http.client.HTTPConnection]] = []
        self._is_closed = False

    def take(self) -> http.client.HTTPConnection | None:
        """Returns a connection that the other side has not closed; None if there is none."""
        while True:
            with self._mutex:
                if not self._idle:
                    return None
                since, connection = self._idle.pop()
            if time.monotonic() - since < IDLE_SECONDS and not _is_readable(connection):
                return connection
            connection.close()

    def put(self, connection: http.client.HTTPConnection) -> None:
        """Keeps a connection whose answer was read to its end, and closes those that are too many or too old."""
        if connection.sock is None:
            return  # the answer asked to close it
        now = time.monotonic()
        with self._mutex:
            idle = [*self._idle, (now, connection)]
            kept = [] if self._is_closed else [each for each in idle[-MAX_IDLE:] if now - each[0] < IDLE_SECONDS]
            self._idle = kept
        for each in idle:
            if each not in kept:
                each[1].close()

    def close(self) -> None:
        """Closes all; those that are in use are closed when they are put back."""
        with self._mutex:
            self._is_closed = True
            self.drop()

    def drop(self) -> None:
        """Closes all; after a fork, without the mutex, which another thread may have had."""
        idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.close()


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
        address: str,
        *,
        token: str | None = None,
        timeout: float = 30.0,
        attempts: int = 8,
        authorities: Path | None = None,
    ) -> None:
        parts = urlsplit(address)
        is_fleet = re.search(r"/v1/fleets/[^/]+/?$", parts.path) is not None  # a proxy may put something before it
        if parts.scheme not in ("http", "https") or not parts.hostname or not is_fleet or parts.query or parts.fragment:
            raise SettingError(
                f"address must be that of a fleet, such as http://127.0.0.1:8080/v1/fleets/fleet, got {address!r}"
            )
        if token is not None and not re.fullmatch(r"[\x21-\x7e]+", token):
            raise SettingError("token must be one line of ASCII characters without spaces: strip what surrounds it")
        if attempts < 1:
            raise SettingError(f"attempts must be at least 1, got {attempts}")
        self._host, self._port, self._path = parts.hostname, parts.port, parts.path.rstrip("/")
        self._timeout, self._attempts = timeout, attempts
        self._headers = {"accept": "application/json"}
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"
        self._tls = ssl.create_default_context(cafile=authorities) if parts.scheme == "https" else None
        self._idle = IdleConnections()
        self._streams: WeakSet[StreamConnection] = WeakSet()

    def _call(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str], patience: float = 0.0
    ) -> dict[str, Any]:
        """Sends a request until it is answered, at most `attempts` times; `patience` is added to the timeout."""
        address = f"{self._path}/{path}" if path and not path.startswith("?") else f"{self._path}{path}"
        problem, code, retry_after, status = "", None, 0.0, None
        for attempt in range(self._attempts):
            if attempt:
                time.sleep(_pause(attempt, retry_after))
            try:
                status, retry_after, content = self._send(method, address, body, headers, patience)
            except ssl.SSLCertVerificationError as error:  # the next attempt would end alike
                raise UnavailableError(f"the certificate of {self._host} is refused: {_describe(error)}") from error
            except (OSError, http.client.HTTPException) as error:
                problem, code, retry_after, status = _describe(error), None, 0.0, None
                continue
            data = _parse(content)
            if status == 200 and data is not None:
                return data
            if data is None and status not in RETRIED:
                raise RefusedError(_describe_foreign(status, content, self._host), status)
            problem, code = _problem(data, f"the answer has status {status}, and is not JSON")
            if status not in RETRIED:
                raise RefusedError(problem, status, code)
        called = f"{method} {address.partition('?')[0]}"
        message = f"{self._host} did not execute {called} in {self._attempts} attempts: {problem}"
        raise UnavailableError(message, status, code)

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
        idle, self._idle = self._idle, IdleConnections()
        idle.close()
        for stream in list(self._streams):
            stream.close()

    def _send(
        self, method: str, address: str, body: bytes | None, headers: Mapping[str, str], patience: float
    ) -> tuple[int, float, bytes]:
        """Returns the status of the answer, the seconds after which to try again, and its body."""
        if self._idle.process != os.getpid():
            self._idle.drop()  # after a fork: the connections are those of the parent
            self._idle = IdleConnections()
        idle = self._idle
        connection = idle.take() or self._make_connection()
        connection.timeout = self._timeout + patience  # of a connection that is not open yet
        if connection.sock is not None:
            connection.sock.settimeout(connection.timeout)
        try:
            connection.request(method, address, body, {**self._headers, **headers})
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
        failures, problem = 0, ""
        while failures < self._attempts and not stream.is_closed:
            connection = self._make_connection()
            failures, problem = failures + 1, "the stream ended without an event"
            try:
                stream.open(connection)
                for event in self._stream(connection, after, follow=follow):
                    failures, after = 0, event.number
                    yield event
                if not follow:
                    return
            except (OSError, http.client.HTTPException, UnavailableError, ValueError, KeyError) as error:
                failures, problem = max(failures, 1), _describe(error)
            finally:
                connection.close()
            if failures < self._attempts and not stream.is_closed:
                time.sleep(_pause(max(failures, 1), 0.0))  # a proxy may cut off every stream after its first event
        if not stream.is_closed:
            raise UnavailableError(f"{self._host} did not send its events in {self._attempts} attempts: {problem}")

    def _stream(
        self, connection: http.client.HTTPConnection, after: int | None, *, follow: bool
    ) -> Iterator[ServiceEvent]:
        """Yields the events of one stream until it ends."""
        query = {"follow": "true" if follow else "false"} | ({} if after is None else {"after": str(after)})
        connection.request("GET", f"{self._path}/events?{urlencode(query)}", headers=self._headers)
        response = connection.getresponse()
        if response.status != 200:
            problem, code = _problem(_parse(_read(response)), f"the answer has status {response.status}")
            kind = UnavailableError if response.status in RETRIED else RefusedError
            raise kind(problem, response.status, code)
        if not (response.getheader("content-type") or "").startswith("text/event-stream"):
            raise RefusedError(_describe_foreign(200, _read(response), self._host), 200)
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

    def _make_connection(self) -> http.client.HTTPConnection:
        make: Callable[..., http.client.HTTPConnection] = http.client.HTTPConnection
        if self._tls is not None:
            make = partial(http.client.HTTPSConnection, context=self._tls)
        return make(self._host, self._port, timeout=self._timeout)


def _pause(attempt: int, retry_after: float) -> float:
    """Returns the seconds before an attempt: random, so that clients that failed together do not return together."""
    return min(retry_after, MAX_PAUSE) + random.uniform(0, min(FIRST_PAUSE * 2 ** (attempt - 1), MAX_PAUSE))


def _is_readable(connection: http.client.HTTPConnection) -> bool:
    """Returns whether an idle connection is useless: the other side has closed it, or sent what nobody asked for."""
    with selectors.DefaultSelector() as selector:
        selector.register(connection.sock, selectors.EVENT_READ)
        return bool(selector.select(0))


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
