"""Check-ins that are held until their device is given a turn."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

from requesting import Reply
from service.served import ROUNDS, SLOTS, Service, count_calls, served
from turnout.client import FleetClient
from turnout.live import RunningTurn, Wait, clock
from turnout.service import calls, holding
from turnout.service.access import FleetTokens
from turnout.service.routes import waiting
from waiting import MAX_WAIT, wait_until

PREFER = {"prefer": "wait=60"}


class Devices:
    """Devices of a fleet whose slots all are in use, each with a thread of its own."""

    def __init__(self, service: Service, pool: ThreadPoolExecutor) -> None:
        self.service, self._pool = service, pool
        self.held = service.fleets["fleet"].held
        self.turns = service.ok("/turns", {"clients": ["busy-1", "busy-2"]})["turns"]
        assert len(self.turns) == 2

    def check_in(self, client: str, **options: Any) -> Future[Reply]:
        """Sends a check-in, and waits until it is held."""
        before, fleet = len(self.held), self.service.fleets["fleet"]
        executed = fleet.grouped
        sent = self._pool.submit(self.service.post, "/check-ins", {"client": client}, headers=PREFER, **options)
        wait_until(lambda: len(self.held) > before and fleet.grouped > executed, "the check-in to be held")
        return sent

    def report(self, turn: int = 0) -> None:
        """Reports one of the turns that are running."""
        assert self.service.ok("/reports", {"turn": self.turns[turn]["id"], "seconds": 1.0})["new"]


@contextmanager
def devices_of(folder: Path, **options: Any) -> Iterator[Devices]:
    with ThreadPoolExecutor(8) as pool, served(folder, {"fleet": {**SLOTS, **options}}) as service:
        yield Devices(service, pool)


@pytest.fixture
def devices(tmp_path: Path) -> Iterator[Devices]:
    with devices_of(tmp_path) as running:
        yield running


def turn_of(reply: Reply) -> Any:
    assert (reply.status, reply.headers.get("preference-applied")) == (200, "wait"), reply
    assert (reply.data["turn"] is None) != (reply.data["wait"] is None)
    return reply.data["turn"]


def test_a_check_in_is_held_until_a_slot_becomes_free(devices: Devices) -> None:
    waiting = devices.check_in("phone-1")
    devices.report()
    turn = turn_of(waiting.result(MAX_WAIT))
    assert (turn["client"], turn["id"]) == ("phone-1", 3)
    assert devices.service.ok("/turns")["turns"][-1] == turn


def test_a_device_whose_token_was_revoked_meanwhile_is_given_no_turn(devices: Devices, tmp_path: Path) -> None:
    token = devices.service.tokens["fleet"]["device"]
    waiting = devices.check_in("phone-1", token=token)
    with FleetTokens(tmp_path / "fleet.turnout") as file:
        file.revoke(token)
    devices.report()
    assert turn_of(waiting.result(MAX_WAIT)) is None
    assert [turn["client"] for turn in devices.service.ok("/turns")["turns"]] == ["busy-2"]


def test_each_free_slot_goes_to_one_device_and_the_others_wait_on_without_calls(
    devices: Devices, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = {name: devices.check_in(name) for name in ("phone-1", "phone-2", "phone-3")}
    executed = count_calls(monkeypatch)
    devices.report(0)
    wait_until(lambda: len(devices.held) == 2, "one device to be given the slot")
    devices.report(1)
    wait_until(lambda: len(devices.held) == 1, "another device to be given the slot")
    wait_until(lambda: sum(sent.done() for sent in waiting.values()) == 2, "their answers")
    done = {name: sent for name, sent in waiting.items() if sent.done()}
    assert {turn_of(sent.result())["client"] for sent in done.values()} == set(done)
    # For each slot the report, the check-in that fills it, and that of the device which is given it; a second look at
    # a turn that has ended may wake one more.
    assert len(executed) <= 10
    devices.held.end()
    (last,) = waiting.keys() - done.keys()
    assert turn_of(waiting[last].result(MAX_WAIT)) is None


def test_a_check_in_is_held_until_a_running_turn_is_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "LOOK_SECONDS", 0.01)
    with devices_of(tmp_path, deadline=100.0) as devices:
        waiting = devices.check_in("phone-1")
        monkeypatch.setattr(clock, "monotonic_seconds", lambda: time.monotonic() + 150.0)
        assert turn_of(waiting.result(MAX_WAIT))["client"] == "phone-1"


def test_a_check_in_is_held_until_the_announced_wait_is_over_and_not_if_it_is_given_a_turn(tmp_path: Path) -> None:
    with served(tmp_path, {"fleet": {**SLOTS, "window_seconds": 0.5}}) as service:
        reply = service.post("/check-ins", {"client": "phone-1"}, headers=PREFER)
        assert turn_of(reply)["client"] == "phone-1"
        again = service.post("/check-ins", {"client": "phone-1"}, headers=PREFER)
        assert again.data["turn"] == reply.data["turn"]
        assert "preference-applied" not in again.headers


@pytest.mark.parametrize("limit", ["the device", "the service", "the status"])
def test_after_its_time_a_device_is_told_to_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(waiting, "MAX_SECONDS", 0.05 if limit == "the service" else 60)
    with devices_of(tmp_path, status_ttl=0.05 if limit == "the status" else 60.0) as devices:
        prefer = "wait=1" if limit == "the device" else "wait=60"
        assert turn_of(devices.service.post("/check-ins", {"client": "phone-1"}, headers={"prefer": prefer})) is None
        assert len(devices.held) == 0


def test_a_newer_check_in_of_the_same_client_ends_the_wait_of_the_older_one(devices: Devices) -> None:
    older = devices.check_in("phone-1")
    newer = ThreadPoolExecutor(1).submit(devices.service.post, "/check-ins", {"client": "phone-1"}, headers=PREFER)
    assert turn_of(older.result(MAX_WAIT)) is None
    devices.report()
    assert turn_of(newer.result(MAX_WAIT))["client"] == "phone-1"


def test_a_device_that_disconnects_is_not_held_any_longer(devices: Devices) -> None:
    body = json.dumps({"client": "phone-1"}).encode()
    head = (
        "POST /v1/fleets/fleet/check-ins HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {devices.service.tokens['fleet']['device']}\r\nPrefer: wait=60\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", devices.service.port), timeout=MAX_WAIT) as connection:
        connection.sendall(head.encode() + body)
        wait_until(lambda: len(devices.held) == 1, "the check-in to be held")
    wait_until(lambda: len(devices.held) == 0, "the end of the wait")
    devices.report()
    assert devices.service.ok("/turns", {"clients": []})["turns"][0]["client"] == "phone-1"
    assert devices.service.ok("/check-ins", {"client": "phone-1"})["turn"]["client"] == "phone-1"  # it is given again


def test_held_check_ins_are_answered_when_the_service_ends(tmp_path: Path) -> None:
    with devices_of(tmp_path) as devices:
        held = [devices.check_in(f"phone-{number}") for number in range(3)]
    assert [turn_of(reply.result(MAX_WAIT)) for reply in held] == [None] * 3


def test_not_more_check_ins_are_held_than_the_limit(devices: Devices, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding, "MAX_HELD", 1)
    first = devices.check_in("phone-1")
    reply = devices.service.post("/check-ins", {"client": "phone-2"}, headers=PREFER)
    assert (reply.status, reply.data["turn"], "preference-applied" in reply.headers) == (200, None, False)
    devices.held.end()
    assert turn_of(first.result(MAX_WAIT)) is None


def test_check_ins_that_are_refused_are_not_held(tmp_path: Path) -> None:
    with served(tmp_path, {"fleet": ROUNDS}) as service:
        assert service.post("/check-ins", {"client": "phone-1"}, headers=PREFER).status == 409
        assert service.post("/check-ins", {}, headers=PREFER).status == 422
        assert service.post("/check-ins", {"client": "phone-2"}, role="device", headers=PREFER).status == 403
        assert len(service.fleets["fleet"].held) == 0


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ([], 0),
        (["wait=30"], 30),
        (["respond-async, WAIT = 5 ; foo=bar"], 5),
        (["respond-async", 'wait="7"'], 7),
        (["wait=9999999999999999999999"], 60),
        (["wait=3, wait=9"], 3),
        (["wait", "wait=", "wait=-1", "wait=1.5", "wait=²", "waits=5"], 0),
    ],
)
def test_the_preference_is_read_as_its_standard_says(headers: list[str], seconds: int) -> None:
    raw = [(b"prefer", header.encode("latin-1")) for header in headers]
    assert waiting.preferred_seconds(Request({"type": "http", "headers": raw})) == seconds


def test_a_client_waits_for_its_turn_in_the_call_and_its_timeout_begins_after_that(
    devices: Devices, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, token = (
        f"http://127.0.0.1:{devices.service.port}/v1/fleets/fleet",
        devices.service.tokens["fleet"]["device"],
    )
    with FleetClient(address, token=token, timeout=0.2, attempts=1) as client, ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(waiting, "MAX_SECONDS", 0.4)
        assert isinstance(client.check_in(wait=60), Wait)
        monkeypatch.setattr(waiting, "MAX_SECONDS", 60)
        answer = pool.submit(client.check_in, wait=60)
        devices.report()
        assert isinstance(answer.result(MAX_WAIT), RunningTurn)
