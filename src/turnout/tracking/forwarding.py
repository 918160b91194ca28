"""Metrics of runs that other processes of this machine play, on their way to the trackers of this process."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Mapping
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from types import TracebackType
from typing import Any, NamedTuple

from turnout.log import get_log
from turnout.tracking.base import GuardedTracker

log = get_log("turnout.tracking")
#: Receives the index of a run, the metrics of a round, and its number.
Receiver = Callable[[int, Mapping[str, float], int], None]
#: The first message of a connection: of a worker, or of the receiver itself after those of all workers.
START, END = b"start", b"end"


class MetricsReceiver:
    """Listens while it is open (`with`) and calls `receive` with all metrics, in a thread.

    When it closes after a success, everything that was sent has been received. An error of `receive` is raised then.

    Args:
        receive: The function to call; it is never called twice at the same time.
    """

    def __init__(self, receive: Receiver) -> None:
        self._receive, self._mutex = receive, threading.Lock()
        self._key = secrets.token_bytes(32)
        self._error: Exception | None = None
        self._connections: list[tuple[Connection[Any, Any], threading.Thread]] = []

    def sender(self, run: int) -> MetricsSender:
        """Returns what a worker needs to send the metrics of a run."""
        return MetricsSender(str(self._listener.address), self._key, run)

    def __enter__(self) -> MetricsReceiver:
        self._listener = Listener(authkey=self._key)
        self._accepting = threading.Thread(target=self._accept, name="turnout-metrics", daemon=True)
        self._accepting.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with Client(self._listener.address, authkey=self._key) as last:
            last.send_bytes(END)
        self._accepting.join()
        self._listener.close()
        for connection, thread in self._connections:
            if kind is None:
                thread.join()  # until the worker has closed its end
            connection.close()
        if kind is None and self._error is not None:
            raise self._error

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
                is_last = connection.recv_bytes() == END
            # A worker that died while it connected, or a process that does not know the key.
            except (OSError, EOFError, AuthenticationError) as error:
                log.warning("the metrics of a worker are not tracked: %r", error)
                continue
            if is_last:
                connection.close()
                return
            thread = threading.Thread(target=self._follow, args=(connection,), daemon=True)
            self._connections.append((connection, thread))
            thread.start()

    def _follow(self, connection: Connection[Any, Any]) -> None:
        try:
            while True:
                run, step, metrics = json.loads(connection.recv_bytes())
                with self._mutex:
                    self._receive_unless_failed(run, metrics, step)
        except (EOFError, OSError):  # the worker has sent everything, or died; its run is then played again
            return

    def _receive_unless_failed(self, run: int, metrics: Mapping[str, float], step: int) -> None:
        """Ignores what comes after an error, but reads it: a worker must not wait until its messages are read."""
        if self._error is None:
            try:
                self._receive(run, metrics, step)
            except Exception as error:  # raised in the thread of the caller, at the end
                self._error = error


class MetricsSender(NamedTuple):
    """What a worker needs to send the metrics of one run; it can be pickled."""

    address: str
    key: bytes
    run: int

    def open(self) -> GuardedTracker:
        """Returns a tracker that sends everything to the receiver, and whose errors stop nothing."""
        return GuardedTracker(_ForwardingTracker(self))


class _ForwardingTracker:
    """Sends everything to a receiver, with which it connects for the first metrics."""

    def __init__(self, sender: MetricsSender) -> None:
        self._sender = sender
        self._connection: Connection[Any, Any] | None = None

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Sends the metrics of a round."""
        if self._connection is None:
            self._connection = Client(self._sender.address, authkey=self._sender.key)
            self._connection.send_bytes(START)
        self._connection.send_bytes(json.dumps([self._sender.run, step, dict(metrics)]).encode())

    def close(self) -> None:
        """Ends the connection."""
        if self._connection is not None:
            self._connection.close()
