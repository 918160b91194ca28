"""Group commit, idempotency keys, back-pressure and shutdown."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from live.fleets import rows_of
from service.served import ROUNDS, SLOTS, served
from turnout.errors import ReportError
from turnout.live import FleetReader, Scheduler, Wait
from turnout.live._internals import StoredAnswer, examine, session_of
from turnout.live.journal.changes import Changes
from turnout.service import calls as calls_module
from turnout.service.calls import Answer, FleetCalls, RequestKey
from turnout.service.errors import BusyError, ReusedKeyError, StoppingError
from turnout.service.fleet import UNSTORED, FleetFile
from turnout.storage.files.storefile import StoreFile
from waiting import wait_until


class Gate:
    """A call that occupies the thread of a fleet until it is opened."""

    def __init__(self) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()

    def __call__(self, _: Scheduler) -> Answer:
        self.entered.set()
        self.opened.wait()
        return Answer({"gate": True}, is_change=False)


@pytest.fixture
def calls(tmp_path: Path) -> Iterator[FleetCalls]:
    running = calls_of(tmp_path / "fleet.turnout", **ROUNDS)
    running.start()
    yield running
    running.stop()


def calls_of(path: Path, **options: Any) -> FleetCalls:
    """Creates a fleet and opens it."""
    Scheduler.open(path, **options).close()
    file = FleetFile(path, needs_tokens=False)
    assert file.open()
    return FleetCalls(file)


def registering(client: str) -> Any:
    return lambda scheduler: Answer({"new": scheduler.register([client])})


def key(name: str, request: str = "request") -> RequestKey:
    return RequestKey(name.encode(), request.encode())


async def occupied(calls: FleetCalls) -> tuple[Gate, asyncio.Task[str]]:
    """Occupies the thread of a fleet, until the gate is opened."""
    gate = Gate()
    task = asyncio.create_task(calls.execute(gate))
    await asyncio.to_thread(gate.entered.wait)
    return gate, task


async def behind_a_gate(calls: FleetCalls, *coroutines: Any) -> list[Any]:
    """Starts calls while another occupies the thread, so that they are executed together; returns their results."""
    gate, first = await occupied(calls)
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    await asyncio.sleep(0)  # every task has put its call into the queue
    gate.opened.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    await first
    return results


def test_calls_that_arrive_together_share_one_commit_and_each_has_its_own_answer(calls: FleetCalls) -> None:
    def refused(_: Scheduler) -> Answer:
        raise ReportError("refused")

    def buggy(_: Scheduler) -> Answer:
        raise ZeroDivisionError

    before = calls.scheduler.metrics().commits
    coroutines = [calls.execute(registering(f"c{number}")) for number in range(20)]
    results = asyncio.run(behind_a_gate(calls, *coroutines, calls.execute(refused), calls.execute(buggy)))
    assert results[:20] == ['{"new":1}'] * 20
    assert [type(error) for error in results[20:]] == [ReportError, ZeroDivisionError]
    assert calls.scheduler.metrics().commits == before + 1
    assert len(calls.scheduler.clients) == 20


def test_an_answer_is_given_only_after_the_commit(calls: FleetCalls, tmp_path: Path) -> None:
    tasks: list[asyncio.Task[str]] = []
    seen: list[bool] = []
    acknowledge = StoreFile._acknowledge

    def observe(file: StoreFile, *arguments: Any) -> None:
        seen.append(tasks[0].done())
        acknowledge(file, *arguments)

    async def run() -> str:
        tasks.append(asyncio.create_task(calls.execute(registering("a"))))
        return await tasks[0]

    with patch.object(StoreFile, "_acknowledge", observe):
        assert asyncio.run(run()) == '{"new":1}'
    assert seen == [False]
    assert rows_of(tmp_path / "fleet.turnout", "SELECT id FROM clients") == [("a",)]


def test_a_group_that_cannot_be_written_is_refused_as_a_whole_and_later_ones_go_on(calls: FleetCalls) -> None:
    with patch.object(StoreFile, "_count_commit", side_effect=sqlite3.OperationalError("disk I/O error")):
        results = asyncio.run(
            behind_a_gate(calls, *[calls.execute(registering(f"c{n}"), key(f"{n}")) for n in range(3)])
        )
    assert [str(error) for error in results] == [UNSTORED] * 3
    assert calls.problem is not None
    assert calls.last_error is not None
    assert "disk I/O error" in calls.last_error
    assert calls.scheduler.clients == []
    assert asyncio.run(calls.execute(registering("c0"), key("0"))) == '{"new":1}'
    assert calls.problem is None


def test_a_request_with_the_same_key_is_executed_once_also_in_the_same_group(calls: FleetCalls) -> None:
    executed: list[int] = []

    def count(scheduler: Scheduler) -> Answer:
        executed.append(1)
        scheduler.register([f"c{len(executed)}"])
        return Answer({"call": len(executed)})

    results = asyncio.run(behind_a_gate(calls, *[calls.execute(count, key("same")) for _ in range(3)]))
    assert results == ['{"call":1}'] * 3
    assert asyncio.run(calls.execute(count, key("same"))) == '{"call":1}'
    assert asyncio.run(calls.execute(count, key("other"))) == '{"call":2}'
    assert len(executed) == 2
    with pytest.raises(ReusedKeyError):
        asyncio.run(calls.execute(count, key("same", "another request")))
    assert len(executed) == 2


def test_a_refused_call_stores_no_answer_and_is_executed_when_it_is_sent_again(calls: FleetCalls) -> None:
    def close(scheduler: Scheduler) -> Answer:
        return Answer({"round": scheduler.close_round().round})

    with pytest.raises(ReportError):
        asyncio.run(calls.execute(close, key("close")))
    calls.scheduler.choose(["a", "b"])
    assert asyncio.run(calls.execute(close, key("close"))) == '{"round":1}'
    assert asyncio.run(calls.execute(close, key("close"))) == '{"round":1}'


def test_too_many_calls_are_refused_at_once(calls: FleetCalls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls_module, "MAX_WAITING", 50)
    results = asyncio.run(behind_a_gate(calls, *[calls.execute(registering(f"c{n}")) for n in range(60)]))
    assert results[:50] == ['{"new":1}'] * 50
    assert [type(error) for error in results[50:]] == [BusyError] * 10
    assert len(calls.scheduler.clients) == 50


def test_stopping_executes_what_waits_and_refuses_what_comes_later(calls: FleetCalls, tmp_path: Path) -> None:
    async def run() -> list[Any]:
        gate, first = await occupied(calls)
        tasks = [asyncio.create_task(calls.execute(registering(f"c{number}"))) for number in range(5)]
        await asyncio.sleep(0)
        stopping = asyncio.create_task(asyncio.to_thread(calls.stop))
        await asyncio.to_thread(wait_until, lambda: calls.problem is not None, "it is stopping")
        with pytest.raises(StoppingError):
            await calls.execute(registering("late"))
        gate.opened.set()
        results = await asyncio.gather(*tasks)
        await first
        await stopping
        return results

    assert asyncio.run(run()) == ['{"new":1}'] * 5
    with FleetReader(tmp_path / "fleet.turnout") as reader:
        assert len(reader.clients) == 5


def test_a_fleet_whose_thread_was_never_started_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "fleet.turnout"
    calls = calls_of(path, **ROUNDS)
    calls.stop()
    assert calls.problem is not None
    Scheduler.open(path).close()  # the lock is free


def test_a_caller_that_has_gone_does_not_stop_the_others(calls: FleetCalls) -> None:
    async def run() -> str:
        gate, first = await occupied(calls)
        gone = asyncio.create_task(calls.execute(registering("gone")))
        other = asyncio.create_task(calls.execute(registering("other")))
        await asyncio.sleep(0)
        gone.cancel()
        gate.opened.set()
        await first
        return await other

    assert asyncio.run(run()) == '{"new":1}'
    assert calls.scheduler.clients == ["gone", "other"]  # it was accepted, so it is executed

    async def leave() -> Gate:
        gate, task = await occupied(calls)
        task.cancel()
        return gate

    gate = asyncio.run(leave())  # its event loop is closed
    gate.opened.set()
    assert asyncio.run(calls.execute(registering("later"))) == '{"new":1}'


def test_other_calls_are_executed_between_the_steps_of_a_long_one(calls: FleetCalls) -> None:
    order: list[str] = []
    waiting = threading.Event()

    def steps(scheduler: Scheduler, answer: StoredAnswer | None) -> Iterator[None]:
        order.append("first step")
        waiting.wait()
        if answer is not None:
            session_of(scheduler).store_answer(answer)
        yield
        order.append("second step")

    def note(_: Scheduler) -> Answer:
        order.append("other call")
        return Answer({}, is_change=False)

    async def run() -> None:
        long = asyncio.create_task(calls.execute(steps, key("long"), is_stepped=True))
        await asyncio.to_thread(wait_until, lambda: order, "the first step")
        others = [asyncio.create_task(calls.execute(note)), asyncio.create_task(calls.execute(steps, is_stepped=True))]
        await asyncio.sleep(0)
        waiting.set()
        await asyncio.gather(long, *others)
        assert await calls.execute(steps, key("long"), is_stepped=True) == "{}"  # not executed again

    asyncio.run(run())
    assert order == ["first step", "other call", "second step", "first step", "second step"]


def test_many_groups_are_limited_in_size(calls: FleetCalls) -> None:
    before = calls.scheduler.metrics().commits
    with patch.object(calls_module, "MAX_AT_ONCE", 10):
        asyncio.run(behind_a_gate(calls, *[calls.execute(registering(f"c{n}")) for n in range(40)]))
    assert calls.scheduler.metrics().commits == before + 4


def test_a_call_that_interrupts_its_group_fails_alone(tmp_path: Path) -> None:
    calls = calls_of(tmp_path / "fleet.turnout", persist_statuses=False, **SLOTS)
    calls.start()

    def checking_in(client: str) -> Any:
        def call(scheduler: Scheduler) -> Answer:
            if client == "unlucky":
                with patch.object(Changes, "put_closed_round", side_effect=MemoryError):
                    scheduler.check_in(client)
            return Answer({"waits": isinstance(scheduler.check_in(client), Wait)})

        return call

    try:
        coroutines = [calls.execute(checking_in(client), key(client)) for client in ("a", "unlucky", "b", "c")]
        results = asyncio.run(behind_a_gate(calls, *coroutines))
        assert [results[0], *results[2:]] == ['{"waits":false}', '{"waits":false}', '{"waits":true}']
        assert type(results[1]) is MemoryError
        assert calls.scheduler.clients == ["a", "b", "c"]
        assert calls.problem is None
        assert asyncio.run(calls.execute(checking_in("a"), key("a"))) == results[0]
    finally:
        calls.stop()
    assert all(finding.ok is not False for finding in examine(tmp_path / "fleet.turnout"))


# Over HTTP


def test_keys_over_http(tmp_path: Path) -> None:
    with served(tmp_path) as service:
        once = {"idempotency-key": "3f6b"}
        opened = service.ok("/rounds", {"clients": ["a", "b", "c"]}, headers=once)
        service.ok("/rounds/1/close", {}, headers={"idempotency-key": "close-1"})
        assert service.ok("/rounds", {"clients": ["a", "b", "c"]}, headers=once) == opened  # no second round
        assert service.ok("/round")["open"] is None
        assert service.ok("/rounds/1/close", {}, headers={"idempotency-key": "close-1"})["round"] == 1
        other = service.post("/rounds", {"clients": ["a"]}, headers=once)
        assert (other.status, "used for another request" in other.error) == (422, True)
        assert service.post("/rounds", {"clients": ["a", "b"]}, role="server", headers=once).status == 200  # its own
        for invalid in ("x" * 201, "a b"):
            assert service.post("/rounds/1/close", {}, headers={"idempotency-key": invalid}).status == 422
    assert rows_of(tmp_path / "fleet.turnout", "SELECT COUNT(*) FROM answers") == [(3,)]


def test_a_full_queue_is_429_with_a_time_to_retry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls_module, "MAX_WAITING", 1)
    with served(tmp_path) as service, ThreadPoolExecutor() as pool:
        gate, calls = Gate(), service.fleets["fleet"]

        def waiting() -> int:
            return len(calls._waiting)

        first = pool.submit(lambda: asyncio.run(calls.execute(gate)))
        gate.entered.wait()
        second = pool.submit(service.post, "/clients", {"clients": ["a"]})
        wait_until(lambda: waiting() == 1, "the queue is full")
        refused = service.post("/clients", {"clients": ["b"]})
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        gate.opened.set()
        assert second.result().data == {"new": 1}
        first.result()


def test_a_shutdown_answers_running_requests_and_stores_them(tmp_path: Path) -> None:
    with ThreadPoolExecutor() as pool, served(tmp_path) as service:
        gate, calls = Gate(), service.fleets["fleet"]
        first = pool.submit(lambda: asyncio.run(calls.execute(gate)))
        gate.entered.wait()
        sent = [pool.submit(service.post, "/clients", {"clients": [f"c{number}"]}) for number in range(3)]
        wait_until(lambda: len(calls._waiting) == 3, "all have arrived")
        service.server.should_exit = True
        wait_until(lambda: not service.server.servers or not service.server.servers[0].is_serving(), "it ends")
        gate.opened.set()
        assert [future.result().status for future in sent] == [200] * 3
        first.result()
    path = tmp_path / "fleet.turnout"
    with FleetReader(path) as reader:
        assert sorted(reader.clients) == ["c0", "c1", "c2"]
    assert all(finding.ok is not False for finding in examine(path))
