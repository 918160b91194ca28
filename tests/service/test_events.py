"""The stream of server-sent events."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from http.client import HTTPResponse
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from live.fleets import play_round
from narrowing import known
from prometheus_text import parse_metrics
from requesting import read_fields, streaming
from service.served import ROUNDS, SLOTS, Service, served
from turnout.errors import StoreError
from turnout.live.journal.events import EVENT_KINDS as STORED_KINDS
from turnout.service import events
from turnout.service.access import FleetTokens
from turnout.service.metrics import TIMES, Traffic
from turnout.web.errors import UNREADABLE
from turnout.web.prometheus import labels, metrics_text
from waiting import MAX_WAIT, wait_until


class Event(NamedTuple):
    """One event of a stream."""

    kind: str
    data: Any
    id: int | None


def event_of(fields: dict[str, str]) -> Event:
    return Event(fields["event"], json.loads(fields["data"]), int(fields["id"]) if "id" in fields else None)


def read_event(response: HTTPResponse) -> Event | None:
    """Waits for the next event; None at the end of the stream."""
    fields = read_fields(response)
    return None if fields is None else event_of(fields)


def following(
    service: Service, query: str = "", headers: dict[str, str] | None = None
) -> AbstractContextManager[HTTPResponse]:
    token = {"authorization": f"Bearer {service.tokens['fleet']['viewer']}"}
    return streaming(service.port, f"/v1/fleets/fleet/events{query}", {**token, **(headers or {})})


def listed(service: Service, query: str) -> list[Event]:
    """Returns all events of a stream that ends by itself."""
    reply = service.get(f"/events?follow=false{query}")
    assert reply.status == 200
    texts = reply.body.decode().split("\n\n")
    return [event_of(dict(line.split(": ", 1) for line in text.split("\n"))) for text in texts if text]


def one_round(service: Service) -> None:
    opened = service.ok("/rounds", {"clients": ["phone-1", "phone-2"]})
    assert sorted(opened["cohort"]) == ["phone-1", "phone-2"]
    service.ok("/reports", {"client": "phone-1", "seconds": 1.5})
    service.ok("/failures", {"client": "phone-2", "why": "broken"})
    service.ok(f"/rounds/{opened['round']}/close", {})


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with served(tmp_path) as running:
        yield running


def test_a_stream_delivers_what_happens_from_now_on(service: Service) -> None:
    service.ok("/clients", {"clients": ["phone-1", "phone-2"]})
    with following(service) as stream:
        first = read_event(stream)
        assert first == Event(
            "state", {"round": 0, "is_open": False, "ready": False, "arrived": 0, "target_size": 0}, 1
        )
        one_round(service)
        seen: list[Event] = []
        while not seen or seen[-1].kind != "closed":
            event = known(read_event(stream))
            seen.append(event)
    assert {event.kind for event in seen[:-1]} <= {"state"}
    assert (seen[-1].kind, seen[-1].id) == ("closed", 2)
    with service.fleets["fleet"].file.open_reader() as reader:
        assert seen[-1].data == list(reader.export())[1], "one JSON for an event, wherever it is shown"


def test_the_state_says_when_a_round_can_be_closed(service: Service) -> None:
    with following(service) as stream:
        read_event(stream)
        service.ok("/rounds", {"clients": ["phone-1", "phone-2"]})
        opened = known(read_event(stream))
        assert opened.data == {"round": 1, "is_open": True, "ready": False, "arrived": 0, "target_size": 2}
        for client in ("phone-1", "phone-2"):
            service.ok("/reports", {"client": client, "seconds": 1.0})
        while (event := read_event(stream)) is not None and not event.data["ready"]:
            assert event.data["arrived"] <= 1
        assert event is not None
        assert event.data["arrived"] == 2


def test_a_stream_is_resumed_after_the_last_event_that_was_received(service: Service) -> None:
    service.ok("/clients", {"clients": ["phone-1", "phone-2"]})
    for _ in range(3):
        one_round(service)
    everything = listed(service, "&after=0")
    assert [(event.kind, event.id) for event in everything] == [
        ("joined", 1),
        ("closed", 2),
        ("closed", 3),
        ("closed", 4),
        ("state", 4),
    ]
    assert everything[0].data == {"event": 1, "kind": "join", "clients": ["phone-1", "phone-2"]}
    assert listed(service, "&after=3") == everything[3:]
    assert [event.kind for event in listed(service, "")] == ["state"]  # from now on
    with following(service, "?after=0", {"Last-Event-ID": "2"}) as stream:
        assert read_event(stream) == everything[2]  # what a browser sends when it connects again


def test_many_events_are_delivered_in_parts(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "BATCH", 2)
    for number in range(5):
        service.ok("/clients", {"clients": [f"phone-{number}"]})
    assert [event.id for event in listed(service, "&after=0")] == [1, 2, 3, 4, 5, 5]


def test_a_fleet_without_rounds_streams_its_turns(tmp_path: Path) -> None:
    with served(tmp_path, {"fleet": SLOTS}) as service:
        first, second = service.ok("/turns", {"clients": ["phone-1", "phone-2", "phone-3"]})["turns"]
        service.ok("/reports", {"turn": first["id"], "seconds": 2.0})
        service.ok("/turns", {"clients": []})
        joined, filled, ended, state = listed(service, "&after=0")
    assert joined.kind == "joined"
    given = [{"turn": turn["id"], "client": turn["client"]} for turn in (first, second)]
    assert (filled.kind, filled.id, filled.data["ended"], filled.data["turns"]) == ("filled", 2, [], given)
    result = {"turn": first["id"], "client": first["client"], "outcome": "arrived", "seconds": 2.0}
    result |= {"loss": None, "signals": None}
    assert (ended.kind, ended.id, ended.data["ended"], ended.data["turns"]) == ("filled", 3, [result], [])
    assert state == Event("state", {"running": 1, "slots": 2}, 3)


def test_settings_and_departures_are_events(service: Service) -> None:
    service.ok("/clients", {"clients": ["phone-1", "phone-2"]})
    service.ok("/amendments", {"settings": {"deadline": 20}})
    service.ok("/retirements", {"client": "phone-2"})
    _, amended, retired, _ = listed(service, "&after=0")
    assert (amended.kind, amended.data["changes"]) == ("amended", {"deadline": 20.0})
    assert retired == Event("retired", {"event": 3, "kind": "retire", "client": "phone-2"}, 3)


def test_invalid_positions_are_refused_and_an_event_beyond_the_newest_is_gone_as_after_a_restore(
    service: Service,
) -> None:
    for query in ("after=-1", "after=x", "follow=x"):
        assert service.get(f"/events?{query}").status == 422, query
    for query, headers in (("after=1", {}), ("", {"last-event-id": "7"})):
        reply = service.get(f"/events?{query}", headers=headers)
        assert (reply.status, reply.data["code"]) == (410, "no_such_event")
        assert "begin after the newest, 0" in reply.error


def test_events_that_are_no_longer_kept_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path, {"fleet": {**ROUNDS, "keep_rounds": 10}}) as service:
        service.ok("/clients", {"clients": ["phone-1", "phone-2"]})
        scheduler, done = service.fleets["fleet"].scheduler, 0
        while service.get("/events?follow=false&after=0").status == 200:
            for _ in range(10):
                play_round(scheduler, ["phone-1", "phone-2"], 1.0)
            done += 10
            assert done < 500
        reply = service.get("/events?follow=false&after=0")
        assert (reply.status, "no longer kept" in reply.error) == (410, True)
        first = int(reply.error.split("begin after event ")[1])
        assert listed(service, f"&after={first}")[0].id == first + 1
        monkeypatch.setattr(events.EventLog, "begin", lambda *_: 0)  # they are removed after this check
        assert listed(service, "&after=0") == [Event("stale", {"code": "no_longer_kept", "detail": reply.error}, None)]


def test_the_state_is_sent_only_if_it_has_changed(service: Service) -> None:
    with following(service) as stream:
        assert read_event(stream) is not None
        for number in range(1, 4):
            service.ok("/clients", {"clients": [f"phone-{number}"]})
            event = known(read_event(stream))
            assert (event.kind, event.id, event.data["clients"]) == ("joined", number, [f"phone-{number}"])


def test_too_many_streams_are_refused_and_ended_ones_do_not_count(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MAX_STREAMS", 1)
    with following(service) as stream:
        read_event(stream)
        reply = service.get("/events?follow=false")
        assert (reply.status, reply.headers["retry-after"]) == (429, "1")
    service.ok("/clients", {"clients": ["phone-1"]})
    wait_until(lambda: service.get("/events?follow=false").status == 200, "the stream has ended")


def test_a_token_has_its_own_limit_of_streams(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_OWN_STREAMS", 1)
    with following(service) as stream:
        read_event(stream)
        assert service.get("/events?follow=false", role="viewer").status == 429
        assert service.get("/events?follow=false", role="server").status == 200


def test_streams_that_are_opened_at_once_are_counted_when_they_are_checked(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MAX_STREAMS", 2)
    begin, all_arrived = events.EventLog.begin, threading.Barrier(3)

    def slowly(log: events.EventLog, after: int | None) -> int:
        with suppress(threading.BrokenBarrierError):
            all_arrived.wait(MAX_WAIT)
        return begin(log, after)

    monkeypatch.setattr(events.EventLog, "begin", slowly)
    with ThreadPoolExecutor(3) as pool:
        sent = [pool.submit(service.get, "/events?follow=false") for _ in range(3)]
        wait_until(lambda: any(reply.done() for reply in sent), "one is refused, or all are accepted")
        all_arrived.abort()
        assert sorted(reply.result().status for reply in sent) == [200, 200, 429]


@pytest.mark.parametrize("change", ["it was revoked", "it expired", "the service ends", "it lasts too long"])
def test_a_stream_ends_when_its_token_or_its_time_is_over_or_the_service_ends(
    service: Service, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if change == "it lasts too long":
        monkeypatch.setattr(events, "STREAM_SECONDS", 0.0)
    with FleetTokens(service.fleets["fleet"].file.location) as file:
        (new,) = file.create("viewer", days=1)
        with following(service, "", {"authorization": f"Bearer {new.text}"}) as stream:
            assert read_event(stream) is not None
            if change == "it was revoked":
                file.revoke(new.token.id)
            elif change == "it expired":
                monkeypatch.setattr(time, "time", lambda: known(new.token.expires))
            service.server.should_exit = change == "the service ends"
            assert read_event(stream) is None


def test_a_quiet_stream_is_kept_open(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "KEEPALIVE_SECONDS", 0.0)
    with following(service) as stream:
        assert read_event(stream) is not None
        assert stream.readline() == b": still there\n"


def test_a_file_that_cannot_be_read_ends_the_stream(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise StoreError("damaged")

    with following(service) as stream:
        read_event(stream)
        monkeypatch.setattr(events.EventLog, "state", fail)
        assert read_event(stream) == Event("unreadable", {"code": "unavailable", "detail": UNREADABLE}, None)
        assert read_event(stream) is None


def test_every_kind_of_event_is_documented() -> None:
    assert set(events.EVENT_KINDS) == set(STORED_KINDS.values())


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Service]:
    with served(tmp_path, {"fleet": ROUNDS, "other": SLOTS}) as running:
        yield running


def shown(text: str) -> dict[str, float]:
    """Returns the samples of a page of metrics, by their names and labels."""
    return {f"{name}{labels(**dict(own))}": value for (name, own), value in parse_metrics(text)[1].items()}


def metrics(both: Service, **options: str) -> dict[str, float]:
    reply = both.send("GET", "/metrics", **options)  # type: ignore[arg-type]
    assert (reply.status, reply.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    return shown(reply.body.decode())


def test_requests_are_counted_by_operation_and_status(both: Service) -> None:
    both.ok("/clients", {"clients": ["phone-1", "phone-2"]})
    both.ok("/clients", {"clients": ["phone-3"]})
    assert both.post("/reports", {"client": "phone-1"}).status == 409
    assert both.get("", role=None).status == 401
    assert both.get("/nothing").status == 404
    values = metrics(both)
    total = "turnout_service_requests_total"
    assert values[f'{total}{{fleet="fleet",operation="register",status="200"}}'] == 2
    assert values[f'{total}{{fleet="fleet",operation="report",status="409"}}'] == 1
    assert values[f'{total}{{fleet="",operation="",status="401"}}'] == 1
    assert values[f'{total}{{fleet="",operation="",status="404"}}'] == 1
    assert values['turnout_service_request_seconds_count{fleet="fleet"}'] == 3
    assert values['turnout_service_calls_total{fleet="fleet"}'] == 3
    assert 1 <= values['turnout_service_groups_total{fleet="fleet"}'] <= 3


def test_the_state_of_a_fleet_with_rounds(both: Service) -> None:
    both.ok("/rounds", {"clients": ["phone-1", "phone-2"]})
    both.ok("/reports", {"client": "phone-1", "seconds": 1.0})
    both.ok("/rounds/1/close", {})
    values = metrics(both)
    assert values['turnout_up{fleet="fleet"}'] == 1
    assert values['turnout_clients{fleet="fleet"}'] == 2
    assert values['turnout_round{fleet="fleet"}'] == 1
    assert values['turnout_promise_status{fleet="fleet"}'] == 0
    assert values['turnout_service_waiting_calls{fleet="fleet"}'] == 0
    assert values['turnout_service_held_check_ins{fleet="fleet"}'] == 0
    assert 'turnout_running_turns{fleet="fleet"}' not in values


def test_the_state_of_a_fleet_without_rounds(both: Service) -> None:
    both.ok("/turns", {"clients": ["phone-1", "phone-2", "phone-3"]}, fleet="other")
    values = metrics(both, fleet="other")
    assert values['turnout_running_turns{fleet="other"}'] == 2
    assert values['turnout_clients{fleet="other"}'] == 3
    both.ok("/reports", {"turn": 1, "seconds": 1.0}, fleet="other")
    assert metrics(both, fleet="other")['turnout_running_turns{fleet="other"}'] == 1
    assert not [name for name in values if 'fleet="fleet"' in name]  # the token is of another fleet


def test_who_may_read_metrics(both: Service) -> None:
    statuses = {role: both.send("GET", "/metrics", role=role).status for role in ("viewer", "server", "operator")}
    assert set(statuses.values()) == {200}
    assert both.send("GET", "/metrics", role="device").status == 403
    assert both.send("GET", "/metrics", role=None).status == 401


def test_streams_have_a_histogram_of_their_own(both: Service) -> None:
    assert both.get("/events?follow=false").status == 200
    assert both.get("/events?follow=x").status == 422
    values = metrics(both)
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
