"""Sends requests to a service until they are answered."""

from __future__ import annotations

import http.client
import json
import random
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from turnout.errors import SettingError, TurnoutError

#: The statuses after which a call is tried again: the service, or a proxy before it, cannot execute it now.
RETRIED = (429, 502, 503, 504)
#: The pause before the second attempt is up to this many seconds, and doubles with each attempt up to the longest.
FIRST_PAUSE, MAX_PAUSE = 0.2, 10.0
#: The largest answer that is read, in bytes.
MAX_BYTES = 1 << 28


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


class Transport:
    """Sends requests about one fleet, with one connection for each thread; `FleetClient` describes its arguments."""

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
        self._local = threading.local()
        self._mutex = threading.Lock()
        self._connections: list[http.client.HTTPConnection] = []

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
            except (OSError, http.client.HTTPException) as error:
                problem, code, retry_after, status = f"{type(error).__name__}: {error}", None, 0.0, None
                continue
            data = _parse(content)
            if status == 200 and data is not None:
                return data
            problem, code = _problem(data, f"the answer has status {status}, and is not JSON")
            if status not in RETRIED:
                raise RefusedError(problem, status, code)
        called = f"{method} {address.partition('?')[0]}"
        message = f"{self._host} did not execute {called} in {self._attempts} attempts: {problem}"
        raise UnavailableError(message, status, code)

    def events(self, after: int | None = None, *, follow: bool = True) -> Iterator[ServiceEvent]:
        """Yields what happens; if the stream breaks off, it is opened again after the last event that was yielded.

        Args:
            after: The number of the last event that you have; 0 for all that are kept; by default from now on.
            follow: Whether to wait for further events; otherwise, the iteration ends after the newest.

        Raises:
            RefusedError: If the next events are no longer kept.
            UnavailableError: If the stream cannot be opened again.
        """
        failures, problem = 0, ""
        while failures < self._attempts:
            if failures:
                time.sleep(_pause(failures, 0.0))
            connection = self._make_connection()
            failures, problem = failures + 1, "the stream ended without an event"
            try:
                for event in self._stream(connection, after, follow=follow):
                    failures, after = 0, event.number
                    yield event
                if not follow:
                    return
            except (OSError, http.client.HTTPException, UnavailableError) as error:
                failures, problem = max(failures, 1), f"{type(error).__name__}: {error}"
            finally:
                connection.close()
        raise UnavailableError(f"{self._host} did not send its events in {self._attempts} attempts: {problem}")

    def close(self) -> None:
        """Closes all connections; later calls open new ones."""
        with self._mutex:
            connections, self._connections = self._connections, []
            self._local = threading.local()
        for connection in connections:
            connection.close()

    def _send(
        self, method: str, address: str, body: bytes | None, headers: Mapping[str, str], patience: float
    ) -> tuple[int, float, bytes]:
        """Returns the status of the answer, the seconds after which to try again, and its body."""
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._connect()
        connection.timeout = self._timeout + patience  # of a connection that is not open yet
        if connection.sock is not None:
            connection.sock.settimeout(connection.timeout)
        try:
            connection.request(method, address, body, {**self._headers, **headers})
            response = connection.getresponse()
            content = _read(response)
        except BaseException:
            connection.close()  # it is opened again by the next request
            raise
        pause = response.getheader("retry-after", "")
        return response.status, float(pause) if pause.isdecimal() else 0.0, content

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

    def _connect(self) -> http.client.HTTPConnection:
        """Returns a new connection of this thread; it is opened with the first request."""
        connection = self._make_connection()
        with self._mutex:
            self._connections.append(connection)
            self._local.connection = connection
        return connection

    def _make_connection(self) -> http.client.HTTPConnection:
        make: Callable[..., http.client.HTTPConnection] = http.client.HTTPConnection
        if self._tls is not None:
            make = partial(http.client.HTTPSConnection, context=self._tls)
        return make(self._host, self._port, timeout=self._timeout)


def _pause(attempt: int, retry_after: float) -> float:
    """Returns the seconds before an attempt: random, so that clients that failed together do not return together."""
    return min(retry_after, MAX_PAUSE) + random.uniform(0, min(FIRST_PAUSE * 2 ** (attempt - 1), MAX_PAUSE))


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
