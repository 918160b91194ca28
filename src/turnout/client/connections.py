"""The addresses of a service, with the connections that are open without a call."""

from __future__ import annotations

import http.client
import os
import re
import selectors
import ssl
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from turnout.errors import SettingError

#: How many connections stay open without a call, and for how many seconds: shorter than the service keeps them (5 s).
MAX_IDLE, IDLE_SECONDS = 8, 4.0


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


class Server:
    """One address of a fleet, with its connections.

    Args:
        address: The address.
        authorities: A file of certificate authorities; None for those of the system.
    """

    def __init__(self, address: str, authorities: Path | None) -> None:
        parts = urlsplit(address)
        is_fleet = re.search(r"/v1/fleets/[^/]+/?$", parts.path) is not None  # a proxy may put something before it
        if parts.scheme not in ("http", "https") or not parts.hostname or not is_fleet or parts.query or parts.fragment:
            raise SettingError(
                f"address must be that of a fleet, such as http://127.0.0.1:8080/v1/fleets/fleet, got {address!r}"
            )
        self._host, self._port, self.path = parts.hostname, parts.port, parts.path.rstrip("/")
        self.host = parts.netloc.rpartition("@")[2]  # with the port: two servers of a machine are told apart
        self.address = f"{parts.scheme}://{self.host}{self.path}"
        self._tls = ssl.create_default_context(cafile=authorities) if parts.scheme == "https" else None
        self.idle = IdleConnections()

    def connect(self, timeout: float) -> http.client.HTTPConnection:
        """Returns a connection, which is opened by its first request."""
        make: Callable[..., http.client.HTTPConnection] = http.client.HTTPConnection
        if self._tls is not None:
            make = partial(http.client.HTTPSConnection, context=self._tls)
        return make(self._host, self._port, timeout=timeout)

    def after_fork(self) -> None:
        """Leaves the connections to the parent process."""
        if self.idle.process != os.getpid():
            self.idle.drop()
            self.idle = IdleConnections()


def _is_readable(connection: http.client.HTTPConnection) -> bool:
    """Returns whether an idle connection is useless: the other side has closed it, or sent what nobody asked for."""
    with selectors.DefaultSelector() as selector:
        selector.register(connection.sock, selectors.EVENT_READ)
        return bool(selector.select(0))
