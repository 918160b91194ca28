"""Fleets in a database: standbys, takeovers, and a database that cannot be reached."""

from __future__ import annotations

import asyncio
import json
import math
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from cli.processes import running, send
from killing import TORTURE
from postgres import Cluster, running_cluster
from prometheus_text import parse_metrics
from requesting import Reply
from service.served import ROUNDS, Service, make_fleet, served
from service.test_calls import Gate
from turnout.client import FleetClient, UnavailableError
from turnout.dashboard.sources.fleet import FleetSource
from turnout.errors import SettingError, StoreError
from turnout.live import FleetReader, Reporter, Scheduler
from turnout.live._internals import session_of
from turnout.service import access as access_module
from turnout.service import calls as calls_module
from turnout.service.access import FleetTokens
from turnout.service.calls import Answer, FleetCalls
from turnout.service.fleet import STANDBY, UNSTORED, FleetFile
from turnout.service.serving import Options, open_fleets
from turnout.storage.address import DatabaseAddress
from waiting import wait_until

pytestmark = pytest.mark.files
CLIENTS = ["phone-1", "phone-2", "phone-3"]
serving = partial(running, "serve")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorter than in production: the tests wait until something ends, however long that takes."""
    monkeypatch.setattr(calls_module, "PROBE_SECONDS", 0.0)
    monkeypatch.setattr(calls_module, "OPEN_SECONDS", 0.05)
    monkeypatch.setattr(access_module, "WATCH_SECONDS", 0.05)


@pytest.fixture
def address(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[DatabaseAddress]:
    address = cluster.address(f"fleet-{crc32(request.node.nodeid.encode()):x}")
    yield address
    cluster.execute(f'DROP SCHEMA IF EXISTS "{address.schema}" CASCADE')


@contextmanager
def served_at(folder: Path, address: DatabaseAddress, **options: Any) -> Iterator[Service]:
    with served(folder, {"fleet": ROUNDS, **options.pop("files", {})}, places={"fleet": address}, **options) as service:
        name, fleets = address.name, service.fleets
        service.tokens = {name: service.tokens.get("fleet", {}), **service.tokens}
        assert name in fleets
        yield service


def metric(service: Service, name: str, fleet: str) -> float | None:
    reply = service.send("GET", "/metrics", fleet=fleet)
    samples = parse_metrics(reply.body.decode())[1]
    return next((value for (found, _), value in samples.items() if found == name), None)


def post(service: Service, address: DatabaseAddress, path: str, body: Any) -> Reply:
    return service.post(path, body, fleet=address.name)


def test_a_fleet_in_a_database_is_served_like_one_in_a_file(tmp_path: Path, address: DatabaseAddress) -> None:
    with served_at(tmp_path, address) as service:
        assert service.ok("/clients", {"clients": CLIENTS}, fleet=address.name) == {"new": 3}
        opened = service.ok("/rounds", {"clients": CLIENTS}, fleet=address.name)
        for client in opened["cohort"]:
            assert service.ok("/reports", {"client": client, "seconds": 2.0}, fleet=address.name)["new"]
        assert service.ok("/rounds/1/close", {"after": None}, fleet=address.name)["round"] == 1
        assert service.ok("", fleet=address.name)["round"] == 1
        assert service.send("GET", "/readyz", role=None).data == {"status": "ready"}
        assert metric(service, "turnout_up", address.name) == 1
        assert metric(service, "turnout_standby", address.name) == 0
        assert (metric(service, "turnout_store_bytes", address.name) or 0) > 10_000
    with FleetReader(address) as reader:
        assert reader.round == 1


def test_a_change_of_the_tokens_in_a_database_takes_effect_soon(tmp_path: Path, address: DatabaseAddress) -> None:
    with served_at(tmp_path, address) as service, FleetTokens(address) as tokens:
        (new,) = tokens.create("viewer")
        assert service.get("", token=new.text, fleet=address.name).status == 200
        tokens.revoke(new.token.id)
        wait_until(lambda: service.get("", token=new.text, fleet=address.name).status == 401, "it was noticed")


def test_a_standby_answers_503_and_takes_over_when_the_other_service_ends(
    tmp_path: Path, address: DatabaseAddress
) -> None:
    waiting = Options(port=0, standby=True)
    with served_at(tmp_path, address) as first:
        assert post(first, address, "/clients", {"clients": CLIENTS}).status == 200
        with served_at(tmp_path, address, options=waiting) as standby:
            standby.tokens = first.tokens
            for reply in (standby.get("", fleet=address.name), post(standby, address, "/rounds", {"clients": CLIENTS})):
                assert (reply.status, reply.data["code"], reply.error) == (503, "standby", STANDBY)
                assert reply.headers["retry-after"] == "1"
            assert standby.get("", token="turnout_0_0", fleet=address.name).status == 401
            reply = standby.send("GET", "/readyz", role=None)
            assert (reply.status, reply.data["fleets"]) == (503, {address.name: STANDBY})
            assert metric(standby, "turnout_standby", address.name) == 1
            assert metric(standby, "turnout_up", address.name) is None
            first.fleets[address.name].stop()
            wait_until(lambda: standby.send("GET", "/readyz", role=None).status == 200, "the standby took over")
            assert standby.ok("", fleet=address.name)["clients"] == 3
            assert metric(standby, "turnout_standby", address.name) == 0


def test_a_service_whose_fleet_was_taken_over_waits_as_its_standby(
    tmp_path: Path, address: DatabaseAddress, caplog: pytest.LogCaptureFixture
) -> None:
    with served_at(tmp_path, address) as service:
        assert post(service, address, "/clients", {"clients": CLIENTS}).status == 200
        with Scheduler.open(address, takeover=True) as other:
            reply = post(service, address, "/clients", {"clients": ["new"]})
            assert (reply.status, reply.data["code"]) == (503, "standby")
            wait_until(lambda: service.get("", fleet=address.name).status == 503, "nothing stale is answered")
            other.register(["other"])
            assert "was taken over by another process: this service waits as its standby now" in caplog.text
        wait_until(lambda: service.get("", fleet=address.name).status == 200, "it has the fleet again")
        assert [each["client"] for each in service.ok("/clients", fleet=address.name)["clients"]] == [*CLIENTS, "other"]


def test_an_idle_service_notices_a_takeover_by_itself(tmp_path: Path, address: DatabaseAddress) -> None:
    with served_at(tmp_path, address) as service:
        calls = service.fleets[address.name]
        with Scheduler.open(address, takeover=True):
            wait_until(lambda: calls.problem == STANDBY, "nobody asked")


def test_a_standby_needs_a_database(tmp_path: Path) -> None:
    path = tmp_path / "fleet.turnout"
    make_fleet(path, ROUNDS)
    with pytest.raises(SettingError, match="only one machine can open"), open_fleets([path], Options(standby=True)):
        pass


def test_a_service_that_is_no_standby_does_not_start_while_another_one_has_the_fleet(address: DatabaseAddress) -> None:
    make_fleet(address, ROUNDS)
    with (
        Scheduler.open(address),
        pytest.raises(Exception, match="is being written by"),
        open_fleets([address], Options()),
    ):
        pass


@pytest.fixture
def calls(address: DatabaseAddress) -> Iterator[FleetCalls]:
    Scheduler.open(address, **ROUNDS).close()
    file = FleetFile(address, needs_tokens=False)
    assert file.open()
    running = FleetCalls(file)
    running.start()
    yield running
    running.stop()


def registering(client: str, cut: Callable[[Scheduler], None]) -> Any:
    def run(scheduler: Scheduler) -> Answer:
        new = scheduler.register([client])
        cut(scheduler)
        return Answer({"new": new})

    return run


@pytest.mark.parametrize("cut_after", range(3))
def test_calls_of_a_group_whose_connection_is_lost_are_repeated(
    calls: FleetCalls, cluster: Cluster, address: DatabaseAddress, cut_after: int
) -> None:
    executed: list[int] = []

    def cut(scheduler: Scheduler) -> None:
        executed.append(len(executed))
        if executed[-1] == cut_after:
            pid = session_of(scheduler).journal.file.connection.execute("SELECT pg_backend_pid()").fetchone()
            cluster.execute("SELECT pg_terminate_backend(%s)", pid)

    async def ask() -> list[str]:
        gate = Gate()  # the calls gather behind it
        waiting = asyncio.ensure_future(calls.execute(gate))
        gathered = asyncio.gather(*(calls.execute(registering(client, cut)) for client in CLIENTS))
        await asyncio.to_thread(gate.entered.wait)
        gate.opened.set()
        await waiting
        return await gathered

    assert asyncio.run(ask()) == ['{"new":1}'] * 3
    assert (len(executed), calls.last_error) == (cut_after + 4, None)
    with FleetReader(address) as reader:
        assert reader.clients == CLIENTS


@pytest.mark.thorough
def test_a_service_whose_database_has_lost_commits_says_so_and_stores_nothing_more(
    cluster: Cluster, tmp_path: Path, address: DatabaseAddress, caplog: pytest.LogCaptureFixture
) -> None:
    with served_at(tmp_path, address) as service:
        for client in CLIENTS:
            assert post(service, address, "/clients", {"clients": [client]}).status == 200
        cluster.execute(  # as after a failover to an asynchronous replica, on which even the lease is older
            f'UPDATE "{address.schema}".control SET commits = commits - 2, epoch = epoch - 1'
        )
        cluster.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        wait_until(lambda: "has lost 2 of" in caplog.text, "it was noticed")
        for _ in range(3):
            reply = post(service, address, "/clients", {"clients": ["new"]})
            assert (reply.status, reply.data["code"]) == (503, "unavailable")
        assert not service.fleets[address.name].file.is_standby


@pytest.mark.thorough
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["stopped", "crashed"])
def test_a_fleet_whose_database_is_not_available_recovers_by_itself_and_others_go_on(
    tmp_path: Path, how: signal.Signals
) -> None:
    with running_cluster({"fsync": "off", "full_page_writes": "off"}) as cluster:
        address = cluster.address("fleet")
        with served(tmp_path, {"other": ROUNDS, "fleet": ROUNDS}, places={"fleet": address}) as service:
            assert service.ok("/clients", {"clients": CLIENTS}) == {"new": 3}
            cluster.stop(how)
            for reply in (service.post("/clients", {"clients": ["new"]}), service.get("")):
                assert (reply.status, reply.headers["retry-after"]) == (503, "1")
                assert str(address) not in reply.error
            assert service.ok("/clients", {"clients": CLIENTS}, fleet="other") == {"new": 3}
            assert service.ok("", fleet="other")["clients"] == 3
            reply = service.send("GET", "/readyz", role=None)
            assert (reply.status, reply.data["status"]) == (200, "partly ready")
            assert reply.data["fleets"] == {"fleet": UNSTORED}
            cluster.start()
            wait_until(lambda: service.send("GET", "/readyz", role=None).data == {"status": "ready"}, "it recovered")
            assert service.ok("/clients", {"clients": ["new"]}) == {"new": 1}


def _open_file(address: DatabaseAddress) -> FleetFile:
    file = FleetFile(address)
    if not file.open():
        file.close()
        raise file.refusal or AssertionError
    return file


def _open_source(address: DatabaseAddress) -> FleetSource:
    return FleetSource(FleetReader(address))


@pytest.mark.thorough
@pytest.mark.parametrize("open_", [_open_file, _open_source, Reporter])
def test_what_fails_at_any_statement_while_it_is_opened_leaves_no_connection_and_no_lease(
    address: DatabaseAddress, monkeypatch: pytest.MonkeyPatch, open_: Callable[[DatabaseAddress], Any]
) -> None:
    psycopg = pytest.importorskip("psycopg")
    make_fleet(address, ROUNDS)
    made: list[Any] = []
    left = math.inf  # statements until one fails

    class Connection(psycopg.Connection):  # type: ignore[misc, name-defined]
        def execute(self, *arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise psycopg.errors.InsufficientPrivilege("this statement fails")
            return super().execute(*arguments, **options)

    def connect(*arguments: Any, **options: Any) -> Any:
        made.append(Connection.connect(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(psycopg, "connect", connect)
    for number in count(1) if TORTURE > 1 else count(3, 3):
        left = number
        try:
            with closing(open_(address)):
                has_failed, left = left <= 0, math.inf
        except StoreError as error:
            if "this statement fails" not in str(error):
                raise
            has_failed = True
        assert all(connection.closed for connection in made), f"statement {number} has failed"
        if not has_failed:
            break
    assert number > 10


def clients_of(ports: list[int], name: str, **options: Any) -> FleetClient:
    return FleetClient([f"http://127.0.0.1:{port}/v1/fleets/{name}" for port in ports], **options)


@pytest.mark.thorough
def test_a_client_of_two_services_goes_on_when_the_first_is_killed(address: DatabaseAddress) -> None:
    token = make_fleet(address, ROUNDS)["operator"]
    raw = f"{address.conninfo}&fleet={address.name}"
    with serving(raw, "--no-page") as (first, port, _), serving(raw, "--standby") as (_, standby, lines):
        assert any("this service waits to take over" in line for line in lines)
        status, _, body = send(standby, "GET", "/api/store", headers={"authorization": f"Bearer {token}"})
        assert (status, json.loads(body)["name"]) == (200, address.name)  # the page of a standby shows the fleet, too
        with clients_of([port, standby], address.name, token=token) as client:
            assert client.register(CLIENTS) == 3
            opened = client.choose(CLIENTS)
            assert client.report(opened.cohort[0], 2.0, round=1)
            _kill(first)
            assert client.choose(CLIENTS) == opened
            assert client.report(opened.cohort[1], 3.0, round=1)
            assert not client.report(opened.cohort[0], 2.0, round=1)
            assert client.close_round(round=1)["round"] == 1
            assert client.status()["round"] == 1
    with FleetReader(address) as reader:
        assert [closed.round for closed in reader.closed_rounds()] == [1]


def _kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()


def test_a_client_names_all_services_that_it_has_tried(address: DatabaseAddress) -> None:
    with (
        clients_of([1, 2], address.name, attempts=1) as client,
        pytest.raises(UnavailableError, match=r"^127\.0\.0\.1:1 and 127\.0\.0\.1:2 "),
    ):
        client.status()
