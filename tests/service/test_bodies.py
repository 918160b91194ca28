"""Bodies with very many entries, read and executed in pieces; the limits are lowered here, so that few entries do."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from live.fleets import named
from service.served import ROUNDS, SLOTS, count_calls, served
from turnout.live._internals import session_of
from turnout.service import models
from turnout.service.routes import bodies
from waiting import MAX_WAIT


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.usefixtures("few_at_once")
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
        (
            "/turns",
            {"statuses": dict.fromkeys(named(9)), "clients": ["a"]},
            "send either statuses or clients",
        ),
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
        request.getfixturevalue("few_at_once")
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


@pytest.mark.usefixtures("few_at_once")
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


@pytest.mark.usefixtures("few_at_once")
def test_a_batch_of_very_many_reports_is_answered_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(tmp_path, {"fleet": ROUNDS}) as service:
        first, second = service.ok("/rounds", {"clients": named(6)})["cohort"]
        names, executed = [first, "x", first, "y", second, "z", second], count_calls(monkeypatch)
        reports = [{"client": name, "seconds": 2.0} for name in names]
        answer = service.ok("/reports/batch", {"reports": reports})
        assert len(executed) == 3
        assert answer["new"] == 2
        assert [refused["index"] for refused in answer["refused"]] == [1, 3, 5]
