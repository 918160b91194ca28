"""The benchmark of the service: what it measures happens."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from turnout.bench.load import LoadFigures, http_request, send_load
from turnout.bench.service import LOADS, CallFigures, ServiceFigures, measure_service, service_of
from turnout.cli import bench
from turnout.cli.app import app
from turnout.errors import StoreError

FIGURES = ServiceFigures(
    clients=1000,
    connections=2,
    calls=20,
    loads={load: CallFigures(400.0, 1.0, {50: 2.0, 95: 4.0, 99: 5.0}) for load in LOADS},
)


def test_a_measured_service_has_all_its_figures(tmp_path: Path) -> None:
    steps: list[str] = []
    figures = measure_service(clients=1000, calls=20, repeats=2, connections=2, folder=tmp_path, watch=steps.append)
    assert list(tmp_path.iterdir()) == []
    assert (figures.clients, figures.calls, figures.connections) == (1000, 20, 2)
    assert tuple(figures.loads) == LOADS
    assert figures.loads["empty"].ratio == 1
    for load in figures.loads.values():
        assert load.per_second > 0
        assert 0 < load.milliseconds[50] <= load.milliseconds[95] <= load.milliseconds[99]
    assert steps == ["creating the fleets", "warming up", "repetition 1 of 2", "repetition 2 of 2"]


def test_a_target_is_met_from_half_the_rate_of_the_empty_endpoint_on() -> None:
    assert CallFigures(100.0, 0.5, {}).met
    assert not CallFigures(100.0, 0.49, {}).met


def test_percentiles_and_rates() -> None:
    figures = LoadFigures(4.0, [float(number) for number in range(1, 101)], {200: 100}, [])
    assert figures.per_second == 25
    assert [figures.percentile(percent) for percent in (0, 50, 99, 100)] == [1, 51, 100, 100]


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
        figures = send_load(listener.getsockname()[1], requests, 1, keep_bodies=True)
        thread.join()
    assert received == requests
    assert figures.statuses == {200: 1, 201: 1, 202: 1}
    assert figures.bodies == [b"abcde"] * 3
    assert len(figures.latencies) == 3


def test_a_connection_that_is_closed_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=lambda: listener.accept()[0].close())
        thread.start()
        with pytest.raises(StoreError, match="the service closed a connection"):
            send_load(listener.getsockname()[1], [http_request("GET", "/")], 1)
        thread.join()


def test_a_service_that_does_not_start_says_why(tmp_path: Path) -> None:
    not_started = pytest.raises(StoreError, match=r"the service did not start: error: .*nothing")
    with not_started, service_of([tmp_path / "nothing.turnout"]):
        pass


@pytest.mark.parametrize("measures", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_the_command_prints_targets_and_latencies(monkeypatch: pytest.MonkeyPatch, measures: bool) -> None:
    calls: list[dict[str, object]] = []

    def measure(**options: Any) -> ServiceFigures:
        calls.append({name: option for name, option in options.items() if name != "watch"})
        return measure_service(**options) if measures else FIGURES

    monkeypatch.setattr(bench, "measure_service", measure)
    arguments = ["bench", "service", "--clients", "1000", "--calls", "20", "--connections", "2", "--repeats", "1"]
    found = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert [target["target"] for target in found["targets"]] == ["check-ins", "reports"]
    assert [target["least"] for target in found["targets"]] == [0.5, 0.5]
    assert found["loads"]["check-ins"]["milliseconds"].keys() == {"50", "95", "99"}
    shown = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"}).stdout
    assert "1,000 registered clients, 2 connections" in shown
    assert "check-ins" in shown
    assert "95 %" in shown
    assert calls == [{"clients": 1000, "calls": 20, "repeats": 1, "connections": 2}] * 2
