"""The metrics of the service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from prometheus_text import parse_metrics
from service.served import ROUNDS, SLOTS, Service, served
from turnout.service import calls
from turnout.service.metrics import TIMES, Traffic
from turnout.service.serving import Options
from turnout.web.prometheus import labels, metrics_text
from waiting import wait_until


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with served(tmp_path, {"fleet": ROUNDS, "other": SLOTS}) as running:
        yield running


def shown(text: str) -> dict[str, float]:
    """Returns the samples of a page of metrics, by their names and labels."""
    return {f"{name}{labels(**dict(own))}": value for (name, own), value in parse_metrics(text)[1].items()}


def metrics(service: Service, **options: str) -> dict[str, float]:
    reply = service.send("GET", "/metrics", **options)  # type: ignore[arg-type]
    assert (reply.status, reply.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    return shown(reply.body.decode())


def test_requests_are_counted_by_operation_and_status(service: Service) -> None:
    service.ok("/clients", {"clients": ["phone-1", "phone-2"]})
    service.ok("/clients", {"clients": ["phone-3"]})
    assert service.post("/reports", {"client": "phone-1"}).status == 409
    assert service.get("", role=None).status == 401
    assert service.get("/nothing").status == 404
    values = metrics(service)
    total = "turnout_service_requests_total"
    assert values[f'{total}{{fleet="fleet",operation="register",status="200"}}'] == 2
    assert values[f'{total}{{fleet="fleet",operation="report",status="409"}}'] == 1
    assert values[f'{total}{{fleet="",operation="",status="401"}}'] == 1
    assert values[f'{total}{{fleet="",operation="",status="404"}}'] == 1
    assert values['turnout_service_request_seconds_count{fleet="fleet"}'] == 3
    assert values['turnout_service_calls_total{fleet="fleet"}'] == 3
    assert 1 <= values['turnout_service_groups_total{fleet="fleet"}'] <= 3


def test_the_state_of_a_fleet_with_rounds(service: Service) -> None:
    service.ok("/rounds", {"clients": ["phone-1", "phone-2"]})
    service.ok("/reports", {"client": "phone-1", "seconds": 1.0})
    service.ok("/rounds/1/close", {})
    values = metrics(service)
    assert values['turnout_up{fleet="fleet"}'] == 1
    assert values['turnout_clients{fleet="fleet"}'] == 2
    assert values['turnout_round{fleet="fleet"}'] == 1
    assert values['turnout_promise_status{fleet="fleet"}'] == 0
    assert values['turnout_service_waiting_calls{fleet="fleet"}'] == 0
    assert values['turnout_service_held_check_ins{fleet="fleet"}'] == 0
    assert 'turnout_running_turns{fleet="fleet"}' not in values


def test_the_state_of_a_fleet_without_rounds(service: Service) -> None:
    service.ok("/turns", {"clients": ["phone-1", "phone-2", "phone-3"]}, fleet="other")
    values = metrics(service, fleet="other")
    assert values['turnout_running_turns{fleet="other"}'] == 2
    assert values['turnout_clients{fleet="other"}'] == 3
    service.ok("/reports", {"turn": 1, "seconds": 1.0}, fleet="other")
    assert metrics(service, fleet="other")['turnout_running_turns{fleet="other"}'] == 1
    assert not [name for name in values if 'fleet="fleet"' in name]  # the token is of another fleet


def test_a_fleet_whose_file_is_gone_is_down_and_the_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "PROBE_SECONDS", 0.0)
    options = Options(port=0, tokens=False)
    with served(tmp_path, {"fleet": ROUNDS, "other": SLOTS}, options=options) as service:
        path = tmp_path / "fleet.turnout"
        path.rename(tmp_path / "elsewhere")
        values = metrics(service)
        assert (values['turnout_up{fleet="fleet"}'], values['turnout_up{fleet="other"}']) == (0, 1)
        (tmp_path / "elsewhere").rename(path)
        wait_until(lambda: metrics(service)['turnout_up{fleet="fleet"}'] == 1, "it is tried again")


def test_who_may_read_metrics(service: Service) -> None:
    statuses = {role: service.send("GET", "/metrics", role=role).status for role in ("viewer", "server", "operator")}
    assert set(statuses.values()) == {200}
    assert service.send("GET", "/metrics", role="device").status == 403
    assert service.send("GET", "/metrics", role=None).status == 401


def test_streams_have_a_histogram_of_their_own(service: Service) -> None:
    assert service.get("/events?follow=false").status == 200
    assert service.get("/events?follow=x").status == 422
    values = metrics(service)
    assert values['turnout_service_stream_seconds_count{fleet="fleet"}'] == 1
    assert values['turnout_service_request_seconds_count{fleet="fleet"}'] == 1
    assert values['turnout_service_requests_total{fleet="fleet",operation="events",status="200"}'] == 1


def test_times_are_counted_in_classes() -> None:
    traffic = Traffic()
    for seconds in (0.0, TIMES[0], 0.3, 50.0):
        traffic.count("fleet", "report", 200, seconds)
    values = shown(metrics_text(traffic.metrics(frozenset({"fleet"}))))
    times = (*TIMES, "+Inf")
    buckets = [values[f'turnout_service_request_seconds_bucket{{fleet="fleet",le="{end}"}}'] for end in times]
    assert buckets == [2, 2, 2, 3, 3, 3, 4]
    assert values['turnout_service_request_seconds_sum{fleet="fleet"}'] == pytest.approx(50.305)
