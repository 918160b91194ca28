"""Each fleet fails and recovers alone, and says so."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest

from live.fleets import rows_of
from narrowing import known
from prometheus_text import parse_metrics
from requesting import Reply, read_fields, streaming
from service.forked import Forker
from service.served import ROUNDS, SLOTS, Service, make_fleet, served
from service.simulated_devices import RestartedService
from service.test_calls import Gate
from turnout.client import FleetClient
from turnout.dashboard.app import make_app
from turnout.dashboard.serving import FleetPages
from turnout.dashboard.watch import Watch
from turnout.errors import StoreError
from turnout.live import FleetReader, Reporter, Scheduler
from turnout.service import calls, fleet, metrics
from turnout.service.access import FleetTokens
from turnout.service.fleet import UNOPENED, UNSTORED
from turnout.service.serving import Options, open_fleets
from turnout.storage.files.storefile import StoreFile
from turnout.web.access import SharedToken
from turnout.web.errors import UNREADABLE
from waiting import wait_until

BOTH = {"fleet": ROUNDS, "other": SLOTS}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Far shorter than in production: the tests wait until something ends, however long that takes."""
    for module, name, seconds in (
        (calls, "OPEN_SECONDS", 0.01),
        (calls, "PROBE_SECONDS", 0.0),
        (fleet, "FILE_SECONDS", 0.05),
        (fleet, "READ_SECONDS", 0.2),
        (metrics, "WAIT_SECONDS", 0.05),
    ):
        monkeypatch.setattr(module, name, seconds)


def readiness(service: Service, query: str = "") -> Reply:
    return service.send("GET", f"/readyz{query}", role=None)


def is_up(service: Service, name: str) -> float:
    reply = service.send("GET", "/metrics", fleet=name)
    samples = parse_metrics(reply.body.decode())[1]
    return next(value for (metric, _), value in samples.items() if metric == "turnout_up")


@contextmanager
def occupied(service: Service) -> Iterator[None]:
    """Lets a call of the first fleet run for the whole block."""
    gate = Gate()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(lambda: asyncio.run(service.fleets["fleet"].execute(gate)))
        gate.entered.wait()
        try:
            yield
        finally:
            gate.opened.set()
            running.result()


def test_a_fleet_is_ready_again_when_it_can_be_written_although_nobody_writes(tmp_path: Path) -> None:
    with served(tmp_path) as service:
        with patch.object(StoreFile, "_count_commit", side_effect=sqlite3.OperationalError("disk is full")):
            failed = service.post("/clients", {"clients": ["a"]})
            assert (failed.status, failed.headers["retry-after"], failed.data["detail"]) == (503, "1", UNSTORED)
            assert service.send("GET", "/healthz", role=None).status == 200
            reply = readiness(service)
            assert (reply.status, reply.headers["retry-after"]) == (503, "1")
            assert reply.data == {"status": "not ready", "fleets": {"fleet": UNSTORED}}
            assert is_up(service, "fleet") == 0
        wait_until(lambda: readiness(service).data == {"status": "ready"}, "it was tried")
        assert is_up(service, "fleet") == 1


def test_a_call_that_changes_nothing_does_not_make_a_fleet_ready(tmp_path: Path) -> None:
    with served(tmp_path) as service:
        service.ok("/clients", {"clients": ["a"]})
        with patch.object(StoreFile, "_count_commit", side_effect=sqlite3.OperationalError("disk is full")):
            assert service.post("/clients", {"clients": ["b"]}).status == 503
            assert service.ok("/clients", {"clients": ["a"]}) == {"new": 0}
            assert service.fleets["fleet"].problem is not None


def test_a_fleet_that_is_not_ready_is_named_and_the_others_are_ready(tmp_path: Path) -> None:
    path = tmp_path / "fleet.turnout"
    with served(tmp_path, BOTH) as service:
        path.rename(tmp_path / "elsewhere")
        reply = wait_until(lambda: (now := readiness(service)).data != {"status": "ready"} and now, "it was tried")
        assert isinstance(reply, Reply)
        assert (reply.status, reply.data) == (200, {"status": "partly ready", "fleets": {"fleet": UNSTORED}})
        statuses = {name: readiness(service, f"?fleet={name}").status for name in ("fleet", "other", "third")}
        assert statuses == {"fleet": 503, "other": 200, "third": 404}
        assert service.ok("/turns", {"clients": ["a"]}, fleet="other")["turns"]
        (tmp_path / "elsewhere").rename(path)
        wait_until(lambda: readiness(service).data == {"status": "ready"}, "it was tried again")


def test_a_fleet_whose_file_was_replaced_is_down_until_it_is_back_and_the_other_file_is_not_opened(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, own = tmp_path / "fleet.turnout", tmp_path / "own"
    with served(tmp_path, BOTH) as service:
        service.ok("/clients", {"clients": ["a"]})
        shutil.copy(path, tmp_path / "copy")
        path.rename(own)
        (tmp_path / "copy").rename(path)
        reply = service.post("/clients", {"clients": ["b"]})
        assert (reply.status, reply.data["detail"]) == (503, UNSTORED)
        assert "fleet.turnout was deleted or replaced while it was in use" in caplog.text
        assert readiness(service).data == {"status": "partly ready", "fleets": {"fleet": UNSTORED}}
        assert (is_up(service, "fleet"), is_up(service, "other")) == (0, 1)
        assert service.get("/events?follow=false").data["detail"] == UNREADABLE
        assert "fleet.turnout is not the file that is served" in caplog.text
        own.replace(path)
        wait_until(lambda: readiness(service).data == {"status": "ready"}, "it was tried again")
        assert service.ok("/clients", {"clients": ["a", "b"]}) == {"new": 1}
        assert service.get("/events?follow=false").status == 200


@pytest.mark.parametrize("content", [b"", b"no fleet" * 1000])
def test_a_fleet_that_cannot_be_opened_is_not_served_and_opened_later(tmp_path: Path, content: bytes) -> None:
    path, kept = tmp_path / "fleet.turnout", tmp_path / "kept"
    own = make_fleet(path, ROUNDS)
    path.rename(kept)
    path.write_bytes(content)
    make_fleet(tmp_path / "other.turnout", SLOTS)
    with served(tmp_path, BOTH) as service:
        reply = service.get("", token=own["viewer"])
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        assert readiness(service).data == {"status": "partly ready", "fleets": {"fleet": UNOPENED}}
        assert service.send("GET", "/v1/fleets", token="turnout_x_y").status == 503  # perhaps of that fleet
        kept.replace(path)
        wait_until(lambda: readiness(service).data == {"status": "ready"}, "it was opened")
        assert service.ok("", token=own["viewer"])["clients"] == 0
        assert service.post("/clients", {"clients": ["a"]}, token=own["server"]).data == {"new": 1}


def test_a_missing_file_does_not_prevent_the_start_of_the_others(tmp_path: Path) -> None:
    paths = [tmp_path / "fleet.turnout", tmp_path / "other.turnout"]
    make_fleet(paths[1], SLOTS)
    with open_fleets(paths, Options()) as (opened, _):
        assert [fleet.problem for fleet in opened.values()] == [UNOPENED, None]
        assert f"there is no fleet at {paths[0]}" in str(opened["fleet"].file.refusal)
        make_fleet(paths[0], ROUNDS)
        wait_until(lambda: opened["fleet"].problem is None, "it was opened")


def test_calls_of_a_fleet_that_is_not_open_are_refused_without_tokens_too(tmp_path: Path) -> None:
    make_fleet(tmp_path / "other.turnout", SLOTS)
    make_fleet(tmp_path / "fleet.turnout", ROUNDS)
    (tmp_path / "fleet.turnout").write_bytes(b"no fleet" * 1000)
    with served(tmp_path, BOTH, options=Options(port=0, tokens=False)) as service:
        for reply in (service.get(""), service.get("/events"), service.post("/clients", {"clients": ["a"]})):
            assert (reply.status, UNOPENED in reply.body.decode()) == (503, True)
        assert service.ok("", fleet="other")["clients"] == 0


def test_a_service_without_any_fleet_does_not_start(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"no fleet" * 1000)
    with pytest.raises(StoreError, match="neither a fleet"), open_fleets([tmp_path / "a", tmp_path / "b"], Options()):
        pass


def test_reads_of_an_occupied_fleet_end_and_those_of_others_do_not_wait(tmp_path: Path) -> None:
    with served(tmp_path, BOTH) as service, ThreadPoolExecutor(60) as pool:
        service.ok("/turns", {"clients": ["a"]}, fleet="other")
        with occupied(service):
            reads = [pool.submit(service.get, path) for path in ("", "/round", "/certificate") for _ in range(20)]
            for path in ("", "/turns", "/certificate", "/events?follow=false"):
                assert service.get(path, fleet="other").status == 200
            assert (is_up(service, "fleet"), is_up(service, "other")) == (1, 1)  # what takes long is no failure
            for read in reads:
                reply = read.result()
                assert (reply.status, reply.headers["retry-after"]) == (503, "1")
            assert readiness(service).status == 200
        assert service.ok("")["clients"] == 0


def test_only_so_many_queries_of_a_fleet_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "READ_SECONDS", 1000.0)
    monkeypatch.setattr(fleet, "MAX_READS", 3)
    with served(tmp_path) as service, ThreadPoolExecutor(4) as pool:
        with occupied(service):
            reads = [pool.submit(service.get, "") for _ in range(4)]
            wait_until(lambda: any(read.done() for read in reads), "one is refused")
        assert sorted(read.result().status for read in reads) == [200, 200, 200, 429]


def test_a_stream_of_an_occupied_fleet_goes_on_when_it_is_free(tmp_path: Path) -> None:
    with served(tmp_path) as service:
        token = {"authorization": f"Bearer {service.tokens['fleet']['viewer']}"}
        with ExitStack() as opened:
            with occupied(service):
                stream = opened.enter_context(streaming(service.port, "/v1/fleets/fleet/events", token))
                assert service.get("").status == 503
            assert known(read_fields(stream))["event"] == "state"


def test_a_transaction_of_another_process_delays_a_call_shortly_and_errors_name_no_file(tmp_path: Path) -> None:
    path = tmp_path / "fleet.turnout"
    with served(tmp_path, BOTH) as service:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            reply = service.post("/clients", {"clients": ["a"]})
            assert (reply.status, reply.headers["retry-after"]) == (503, "1")
            assert UNSTORED in reply.body.decode()
        wait_until(lambda: service.post("/clients", {"clients": ["a"]}).status == 200, "the other has ended")
        with patch.object(Scheduler, "history", side_effect=StoreError(f"{path} is damaged, process 12")):
            read = service.get("/history?client=a")
            assert (read.status, UNREADABLE in read.body.decode()) == (503, True)
        missing = service.get("/history?client=nobody")
        for answer in (reply, read, missing):
            assert str(tmp_path) not in answer.body.decode()


def test_requests_of_a_page_that_is_slow_do_not_stop_the_pages_of_other_fleets(tmp_path: Path) -> None:
    watches = {}
    for name in ("slow", "quick"):
        path = tmp_path / f"{name}.turnout"
        Scheduler.open(path, **ROUNDS).close()
        watches[name] = Watch(path, partial(FleetReader, path))
    access = SharedToken(None)
    pages = {name: make_app(watch, access, fleet=name) for name, watch in watches.items()}
    try:
        with served(tmp_path, page=FleetPages(pages, access)) as service, ThreadPoolExecutor(60) as pool:
            with watches["slow"].locked_source():
                sent = [pool.submit(service.send, "GET", "/fleets/slow/api/overview", role=None) for _ in range(60)]
                wait_until(lambda: len(service.server.server_state.connections) == 60, "all have arrived")
                assert service.send("GET", "/fleets/quick/api/overview", role=None).status == 200
            assert {reply.result().status for reply in sent} == {200}
    finally:
        for watch in watches.values():
            watch.stop()


def test_errors_of_the_page_beside_a_service_name_no_file(tmp_path: Path) -> None:
    path = tmp_path / "page.turnout"
    Scheduler.open(path, **ROUNDS).close()
    watch = Watch(path, lambda: FleetReader(path))
    try:
        with (
            served(tmp_path, page=make_app(watch, SharedToken(None), fleet="fleet")) as service,
            patch.object(Watch, "locked_source", side_effect=StoreError(f"{path} is damaged, process 12")),
        ):
            reply = service.send("GET", "/api/overview", role=None)
        assert (reply.status, b"12" in reply.body, b"page" in reply.body) == (503, False, False)
    finally:
        watch.stop()


def test_answers_without_a_change_are_not_stored(tmp_path: Path) -> None:
    with served(tmp_path, {"fleet": SLOTS}) as service:
        turn = service.ok("/check-ins", {}, role="device")["turn"]["id"]
        for number in range(5):
            key = {"idempotency-key": f"key-{number}"}
            for path, body in (
                ("/reports", {"turn": turn, "seconds": 1.0}),
                ("/failures", {"turn": turn, "why": "broken"}),
            ):
                service.post(path, body, role="device", headers={"idempotency-key": f"{path}{number}"})
            service.ok("/clients", {"clients": ["phone-1"]}, headers=key)
            service.ok("/amendments", {"settings": {"deadline": None}}, headers={"idempotency-key": f"amend-{number}"})
        service.ok("/turns", {"clients": ["a", "b", "c"]})
        service.ok("/check-ins", {"client": "d"})
        commits = service.fleets["fleet"].scheduler.metrics().commits
        answer = service.ok("/check-ins", {"client": "d"}, headers={"idempotency-key": "waits"})
        assert (answer["turn"], service.fleets["fleet"].scheduler.metrics().commits) == (None, commits)
    assert rows_of(tmp_path / "fleet.turnout", "SELECT COUNT(*) FROM answers") == [(1,)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A fleet with an open round of the clients a and b."""
    path = tmp_path / "fleet.turnout"
    with Scheduler.open(path, **ROUNDS) as scheduler:
        scheduler.choose(["a", "b"])
    return path


@pytest.fixture
def service(path: Path, forker: Forker) -> Iterator[RestartedService]:
    service = RestartedService(forker, path)
    yield service
    service.kill()


def read_all(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT COUNT(*) FROM turns").fetchone() == (2,)


def report(path: Path) -> None:
    with Reporter(path) as reporter:
        assert reporter.report("a", 1.5)


def locks(path: Path, process: int) -> list[str]:
    """Returns the POSIX locks that a process holds on a file."""
    inode, lines = str(path.stat().st_ino), Path("/proc/locks").read_text(encoding="ascii").splitlines()
    fields = [line.split() for line in lines]
    return [
        field[3]
        for field in fields
        if field[1] == "POSIX" and field[4] == str(process) and field[5].rpartition(":")[2] == inode
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/locks")
@pytest.mark.parametrize("use", [read_all, report])
def test_nothing_acknowledged_is_lost_when_another_process_closes_the_file_and_the_service_is_killed(
    path: Path, service: RestartedService, use: Callable[[Path], None]
) -> None:
    with FleetTokens(path) as file:
        (operator,) = file.create("operator")
    service.start()
    assert locks(path, service.process) == ["READ"]
    address = f"http://127.0.0.1:{service.port}/v1/fleets/fleet"
    with FleetClient(address, token=operator.text, attempts=1) as client:
        assert client.report("b", 2.5)
        use(path)  # the last process that closes a file deletes its log
        assert path.with_name("fleet.turnout-wal").stat().st_size > 0
        assert client.close_round()["round"] == 1
        assert client.register(["c", "d"]) == 2
        assert client.status()["clients"] == 4
    assert locks(path, service.process) == ["READ"]
    service.kill()
    with Scheduler.open(path) as scheduler:
        assert (scheduler.round, sorted(scheduler.clients)) == (1, ["a", "b", "c", "d"])
        assert {turn.id: turn.seconds for turn in scheduler.history(round=1)}["b"] == 2.5
