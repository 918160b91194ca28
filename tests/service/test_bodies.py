"""Bodies with very many entries, read and executed in pieces; the limits are lowered here, so that few entries do."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import pytest

from live.fleets import named
from service.served import ROUNDS, SLOTS, count_calls, served
from service.test_calls import behind_a_gate, calls_of
from turnout.errors import StoreError
from turnout.live import Scheduler, _internals
from turnout.live._internals import StoredAnswer, session_of
from turnout.service import models
from turnout.service.calls import Answer
from turnout.service.routes import bodies, changes
from waiting import MAX_WAIT


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "LARGE", 100)
    monkeypatch.setattr(bodies, "PIECE", 4)
    at_once = {models.Registration: ("clients", 3), models.ReportBatch: ("reports", 3)}
    monkeypatch.setattr(bodies, "AT_ONCE", at_once)


def test_other_requests_are_answered_while_a_large_body_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_reading, parse = threading.Event(), bodies._parse
    may_go_on = threading.Event()

    def slow(*arguments: Any) -> Any:
        is_reading.set()
        assert may_go_on.wait(MAX_WAIT)
        return parse(*arguments)

    ids = [f"phone-{number:05}" for number in range(6_000)]
    with served(tmp_path) as service, ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(bodies, "_parse", slow)
        large = pool.submit(service.ok, "/clients", {"clients": ids})
        assert is_reading.wait(MAX_WAIT)
        monkeypatch.setattr(bodies, "_parse", parse)
        assert service.send("GET", "/healthz").status == 200
        assert service.ok("/clients", {"clients": ["phone-00000"]}) == {"new": 1}
        may_go_on.set()
        assert large.result() == {"new": 5_999}


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize(
    ("path", "body", "where"),
    [
        ("/clients", {"clients": [*named(9), 5]}, "clients.9: "),
        ("/clients", {"clients": [5] * 9}, "clients.0: "),
        ("/clients", {"clients": named(9), "other": 1}, "other: "),
        ("/clients", {"clients": [*named(9), "a\0b"]}, "client ids must be non-empty strings without null characters"),
        ("/turns", {"statuses": {name: {"free_cpu": "x"} for name in named(9)}}, "statuses.c0.free_cpu: "),
        ("/turns", {"statuses": {**dict.fromkeys(named(9)), "last": 1}}, "statuses.last: "),
        ("/turns", {"statuses": dict.fromkeys(named(9)), "cold": [*named(9), 5]}, "cold.9: "),
        ("/turns", {"statuses": dict.fromkeys(named(9)), "clients": ["a"]}, "send either statuses or clients"),
    ],
)
def test_the_first_error_of_many_entries_is_named_and_nothing_is_changed(
    tmp_path: Path, path: str, body: Any, where: str
) -> None:
    with served(tmp_path, {"fleet": SLOTS}) as service:
        reply = service.post(path, body)
        assert reply.status == 422
        assert where in reply.body.decode()
        assert service.fleets["fleet"].scheduler.clients == []
        reply = service.post(path, b'{"clients": [' + b'"a", ' * 50)
        assert reply.status == 400


@pytest.mark.parametrize("in_steps", [False, True])
def test_the_time_of_a_client_that_has_just_started_is_not_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, *, in_steps: bool
) -> None:
    if in_steps:
        request.getfixturevalue("small_pieces")
        monkeypatch.setattr(bodies, "READ_AT_ONCE", 3)
    ids = named(9)
    rounds, slots = {**ROUNDS, "settings": {"cohort_size": 9}}, {**SLOTS, "concurrency": 9}
    with served(tmp_path, {"fleet": rounds, "slots": slots}) as service:
        opened = service.ok("/rounds", {"clients": ids, "cold": ids[:5]})
        assert [client["timed"] for client in opened["clients"]] == [False] * 9
        service.ok("/reports/batch", {"reports": [{"client": client, "seconds": 2.0} for client in ids]})
        service.ok("/rounds/1/close", {})
        selected = service.ok("/rounds", {"clients": ids})["clients"]
        assert [(client["timed"], client["expected_seconds"] is None) for client in selected] == (
            [(False, True)] * 5 + [(True, False)] * 4
        )
        turns = service.ok("/turns", {"clients": ids, "cold": ids[:5]}, fleet="slots")["turns"]
        reports = [{"turn": turn["id"], "seconds": 2.0} for turn in turns]
        service.ok("/reports/batch", {"reports": reports}, fleet="slots")
        service.ok("/turns", {"clients": []}, fleet="slots")
        learned = session_of(service.fleets["slots"].scheduler).fleet.counters.learned
        assert learned.tolist() == [0] * 5 + [1] * 4
        assert service.ok("/settings", fleet="slots")["target_size"] == 1
        assert [client["last_round"] for client in service.ok("/clients")["clients"]] == [1] * 9


@pytest.mark.usefixtures("small_pieces")
def test_many_clients_join_in_several_calls_and_the_same_request_has_the_same_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executed = count_calls(monkeypatch)
    with served(tmp_path) as service:
        for _ in range(2):
            reply = service.post("/clients", {"clients": [*named(10), "c0"]}, headers={"idempotency-key": "k"})
            assert (reply.status, reply.data) == (200, {"new": 10})
        assert len(executed) == 8
        assert service.fleets["fleet"].scheduler.clients == named(10)
        assert service.post("/clients", {"clients": ["b"]}, headers={"idempotency-key": "k"}).status == 422
        assert service.ok("/clients", {"clients": named(10)}) == {"new": 0}


@pytest.mark.usefixtures("small_pieces")
def test_a_batch_of_very_many_reports_is_answered_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path, {"fleet": ROUNDS}) as service:
        first, second = service.ok("/rounds", {"clients": named(6)})["cohort"]
        names, executed = [first, "x", first, "y", second, "z", second], count_calls(monkeypatch)
        reports = [{"client": name, "seconds": 2.0} for name in names]
        answer = service.ok("/reports/batch", {"reports": reports})
        assert len(executed) == 3
        assert answer["new"] == 2
        assert [refused["index"] for refused in answer["refused"]] == [1, 3, 5]


Value = TypeVar("Value")
FLEET: Mapping[str, Any] = {**SLOTS, "concurrency": 5}
STATUSES: dict[str, Any] = {
    name: {"free_cpu": 1.0 + number % 4, "bandwidth": 2.0} for number, name in enumerate(named(12))
}
#: Lists may name a client twice, also in different steps.
BODIES = [{"statuses": STATUSES}, {"clients": [*named(12), "c0", "c11", "c11"]}]


def value_of(reading: Generator[None, None, Value]) -> Value:
    """Returns what a generator returns after its last step."""
    while True:
        try:
            next(reading)
        except StopIteration as end:
            value: Value = end.value
            return value


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "READ_AT_ONCE", 3)
    monkeypatch.setattr(bodies, "JOIN_AT_ONCE", 5)
    monkeypatch.setattr(changes, "TURNS_AT_ONCE", 2)


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("joined", [0, 7, 12])
def test_many_clients_are_given_the_same_turns_as_in_one_step(tmp_path: Path, body: Any, joined: int) -> None:
    with Scheduler.open(tmp_path / "once.turnout", **FLEET) as once:
        once.register(named(joined)) if joined else None
        given = once.fill(body.get("statuses") or list(dict.fromkeys(body["clients"])))
        with served(tmp_path, {"fleet": FLEET}) as service:
            scheduler = service.fleets["fleet"].scheduler
            scheduler.register(named(joined)) if joined else None
            turns = service.ok("/turns", body)["turns"]
            assert [(turn["id"], turn["client"]) for turn in turns] == [(turn.id, turn.client) for turn in given]
            assert scheduler.clients == once.clients
            one, other = scheduler.certificate(), once.certificate()
            assert one is not None
            assert other is not None
            assert one.behind.tolist() == other.behind.tolist()
            assert service.ok("/turns", body)["turns"] == []


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("body", BODIES)
def test_many_clients_have_the_same_cohort_as_in_one_step(tmp_path: Path, body: Any) -> None:
    with Scheduler.open(tmp_path / "once.turnout", **ROUNDS) as once, served(tmp_path, {"fleet": ROUNDS}) as service:
        cohort = once.choose(STATUSES)
        first = service.ok("/rounds", body, headers={"idempotency-key": "k"})
        assert first["cohort"] == cohort
        assert service.ok("/rounds", body)["cohort"] == cohort
        service.ok("/rounds/1/abandon", {})
        assert service.ok("/rounds", body, headers={"idempotency-key": "k"}) == first
        assert service.fleets["fleet"].scheduler.open_round is None


@pytest.mark.usefixtures("small_steps")
def test_other_calls_are_executed_between_the_steps_also_behind_a_second_call_of_many_steps(tmp_path: Path) -> None:
    calls, seen = calls_of(tmp_path / "fleet.turnout", **FLEET), list[int]()
    body = models.Available(statuses=STATUSES)

    def look(scheduler: Scheduler) -> Answer:
        seen.append(len(scheduler.clients))
        return Answer({}, is_change=False)

    fills = [
        calls.execute(lambda fleet, answer: changes.fill_in_steps(fleet, body, answer), is_stepped=True)
        for _ in range(2)
    ]
    calls.start()
    results = asyncio.run(behind_a_gate(calls, *fills, calls.execute(look)))
    calls.stop()
    assert seen == [0], "before the clients join"
    assert [len(json.loads(text)["turns"]) for text in results[:2]] == [5, 0]


@pytest.mark.usefixtures("small_steps")
def test_a_call_that_fails_between_its_steps_gives_no_more_turns_when_it_is_sent_again(tmp_path: Path) -> None:
    fill_some, count = _internals.fill_some, list[int]()

    def failing(*arguments: Any) -> Any:
        count.append(1)
        if len(count) == 2:
            raise StoreError("the disk is full")
        return fill_some(*arguments)

    with served(tmp_path, {"fleet": FLEET}) as service:
        with patch.object(_internals, "fill_some", failing):
            assert service.post("/turns", {"statuses": STATUSES}, headers={"idempotency-key": "k"}).status == 503
        for _ in range(2):
            turns = service.ok("/turns", {"statuses": STATUSES}, headers={"idempotency-key": "k"})["turns"]
            running = service.fleets["fleet"].scheduler.running()
            assert [turn["id"] for turn in turns] == [turn.id for turn in running] == [1, 2]
        others = {"statuses": {**STATUSES, "late": None}}
        assert service.post("/turns", others, headers={"idempotency-key": "k"}).status == 422
        assert len(service.ok("/turns", {"statuses": STATUSES})["turns"]) == 3


@pytest.mark.usefixtures("small_steps")
def test_whenever_a_call_stops_the_file_has_the_answer_with_all_turns_that_were_given(tmp_path: Path) -> None:
    body, stored = models.Available(statuses=STATUSES), StoredAnswer(b"key", b"request", "", 0.0)
    was_given = list[int]()
    for stop in range(1, 100):
        path = tmp_path / f"{stop}.turnout"
        with Scheduler.open(path, **FLEET) as scheduler:
            done = [None for _, _ in zip(range(stop), changes.fill_in_steps(scheduler, body, stored), strict=False)]
        with Scheduler.open(path) as scheduler:
            found, running = session_of(scheduler).stored_answer(b"key"), scheduler.running()
            turns = [] if found is None else json.loads(found.answer)["turns"]
            assert [(turn["id"], turn["client"]) for turn in turns] == [(turn.id, turn.client) for turn in running]
            assert scheduler.clients == named(len(scheduler.clients))
        was_given.append(len(running))
        if len(done) < stop:
            break
    assert sorted(set(was_given)) == [0, 2, 4, 5]


@pytest.mark.usefixtures("small_steps")
def test_a_client_that_is_forgotten_between_the_steps_is_given_no_turn(tmp_path: Path) -> None:
    with Scheduler.open(tmp_path / "fleet.turnout", **{**FLEET, "concurrency": 12}) as scheduler:
        scheduler.register(named(12))
        reading = bodies.read_in_steps(session_of(scheduler), STATUSES)
        for _ in range(7):
            next(reading)
        scheduler.forget("c0")
        scheduler.register(["c0"])
        given = scheduler.fill(value_of(reading))
        assert sorted(turn.client for turn in given) == sorted(set(named(12)) - {"c0"})


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize(
    ("path", "body", "where"),
    [
        ("/turns", {"statuses": {**STATUSES, "last": {"free_cpu": -1.0, "bandwidth": 2.0}}}, "free_cpu of 'last'"),
        ("/turns", {"clients": [*named(9), "a\0b"]}, "client ids must be non-empty"),
        ("/rounds", {"statuses": STATUSES}, "rounds"),
    ],
)
@pytest.mark.usefixtures("small_steps")
def test_what_cannot_be_executed_is_refused_and_nobody_joins(tmp_path: Path, path: str, body: Any, where: str) -> None:
    with served(tmp_path, {"fleet": FLEET}) as service:
        reply = service.post(path, body)
        assert reply.status in (409, 422)
        assert where in reply.body.decode()
        assert service.fleets["fleet"].scheduler.clients == []
