"""Metrics on their way from the processes that play runs."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Mapping
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client

import pytest

from turnout.tracking.base import GuardedTracker
from turnout.tracking.forwarding import MetricsReceiver
from waiting import wait_until

Received = list[tuple[int, dict[str, float], int]]


def test_a_connection_that_fails_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    received: Received = []
    with (
        caplog.at_level(logging.WARNING, logger="turnout.tracking"),
        MetricsReceiver(lambda run, metrics, step: received.append((run, dict(metrics), step))) as receiver,
    ):
        sender = receiver.sender(3)
        with socket.socket(socket.AF_UNIX) as died:
            died.connect(sender.address)
        with pytest.raises(AuthenticationError):
            Client(sender.address, authkey=b"another key")
        tracker = sender.open()
        tracker.log({"duration": 2.5}, 1)
        tracker.close()
        receiver.sender(4).open().close()  # a run without metrics does not connect
    assert received == [(3, {"duration": 2.5}, 1)]
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "the metrics of a worker are not tracked"
    ] * 2


def test_after_an_error_of_the_caller_what_was_not_received_is_not_waited_for() -> None:
    def fail() -> None:
        with MetricsReceiver(lambda *_: None) as receiver:
            tracker = receiver.sender(0).open()
            trackers.append(tracker)
            tracker.log({"duration": 2.5}, 1)  # its connection stays open
            raise KeyError

    trackers: list[GuardedTracker] = []
    with pytest.raises(KeyError):
        fail()
    trackers[0].close()


def test_a_worker_goes_on_after_an_error_of_who_receives_metrics() -> None:
    def refuse(run: int, metrics: Mapping[str, float], step: int) -> None:
        calls.append((run, dict(metrics), step))
        raise ValueError("no space")

    def play() -> None:
        with MetricsReceiver(refuse) as receiver:
            tracker = receiver.sender(0).open()
            # Far more than the operating system keeps for a connection that nobody reads.
            sending = threading.Thread(target=log_much, args=(tracker,), daemon=True)
            sending.start()
            wait_until(lambda: not sending.is_alive())
            tracker.close()

    calls: Received = []
    with pytest.raises(ValueError, match="no space"):
        play()
    assert calls == [(0, {"duration": 1.0}, 1)]


def log_much(tracker: GuardedTracker) -> None:
    tracker.log({"duration": 1.0}, 1)
    for step in range(2, 12):
        tracker.log({f"metric {number}": 1.0 for number in range(50_000)}, step)
