"""The load that the benchmark of the service sends."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from benchmarks.load import Load, http_request, send_load


def test_percentiles_and_rates() -> None:
    load = Load(4.0, [float(number) for number in range(1, 101)], {200: 100})
    assert load.per_second == 25
    assert [load.percentile(percent) for percent in (0, 50, 99, 100)] == [1, 51, 100, 100]


def test_every_request_is_sent_once_and_answered_in_parts() -> None:
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                for number in range(3):
                    received.append(connection.recv(1000))
                    for part in (b"HTTP/1.1 20%d OK\r\nContent-" % number, b"Length: 5\r\n\r\n", b"ab", b"cde"):
                        connection.sendall(part)

        thread = threading.Thread(target=answer)
        thread.start()
        requests = [http_request("POST", f"/{number}", [("X", "y")], b"{}") for number in range(3)]
        load = send_load(listener.getsockname()[1], requests, 1)
        thread.join()
    assert received == requests
    assert load.statuses == {200: 1, 201: 1, 202: 1}
    assert len(load.latencies) == 3


def test_a_connection_that_is_closed_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=lambda: listener.accept()[0].close())
        thread.start()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            send_load(listener.getsockname()[1], [http_request("GET", "/")], 1)
        thread.join()
