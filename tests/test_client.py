"""The Python client against the real service, and against a server that breaks."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

import pytest

from service.served import ROUNDS, SLOTS, Service, served
from turnout import ClientStatus
from turnout.client import (
    AsyncFleetClient,
    FleetClient,
    OpenedRound,
    RefusedError,
    UnavailableError,
    connections,
    fleet,
    transport,
)
from turnout.errors import SettingError
from turnout.live import RunningTurn, Wait
from turnout.service import events


def client_of(service: Service, role: str = "operator", **options: Any) -> FleetClient:
    return FleetClient(
        f"http://127.0.0.1:{service.port}/v1/fleets/fleet/", token=service.tokens["fleet"][role], **options
    )


@pytest.fixture
def no_pauses() -> Iterator[list[float]]:
    pauses: list[float] = []
    with patch.object(transport, "time", SimpleNamespace(sleep=pauses.append, monotonic=time.monotonic)):
        yield pauses


@pytest.fixture
def opened() -> Iterator[list[HTTPConnection]]:
    """Every connection that is opened; its socket is None once it is closed."""
    connections: list[HTTPConnection] = []
    connect = HTTPConnection.connect

    def note(connection: HTTPConnection) -> None:
        connections.append(connection)
        connect(connection)

    with patch.object(HTTPConnection, "connect", note):
        yield connections


def test_rounds_over_http(tmp_path: Path) -> None:
    settings = {**ROUNDS, "signals": {"utility": (0, 10)}}
    with served(tmp_path, {"fleet": settings}) as service, client_of(service) as client:
        assert client.register(["a", "b", "c", "d/?é"]) == 4
        opened = client.choose({"a": ClientStatus(1.0, 2.0), "b": {"free_cpu": 1.0, "bandwidth": 2.0}, "d/?é": None})
        assert isinstance(opened, OpenedRound)
        assert (opened.round, len(opened.cohort), opened.deadline, opened.target_size) == (1, 2, 10.0, 2)
        first, second = opened.cohort
        assert client.report(first, 1.5, loss=0.5, signals={"utility": 2.0})
        assert not client.report(first, 1.5, loss=0.5, signals={"utility": 2.0})
        signals = {second: {"utility": 3.0}, "nobody": {"utility": 4.0}}
        assert client.report_many({second: 2.0, "nobody": 1.0}, losses={second: 0.25}, signals=signals)[0] == 1
        assert client.round_state()["ready"]
        turns = client.close_round()["turns"]
        assert [(turn["loss"], turn["signals"]["utility"]) for turn in turns] == [(0.5, 2.0), (0.25, 3.0)]
        opened = client.choose({"a", "d/?é"})
        assert client.report_failure("d/?é", "no power")
        assert client.close_round(3.0)["round"] == 2
        client.choose(["a", "b"])
        assert client.abandon_round() == 3
        assert [turn["why"] for turn in client.history("d/?é")][-1] == "no power"
        assert client.explain("d/?é", 2)["outcome"] == "chosen"
        assert client.certificate("a")["clients"][0]["client"] == "a"
        assert len(client.certificate(limit=3)["clients"]) == 3
        assert client.amend(deadline=30.0) == ["deadline"]
        client.retire("b")
        client.forget("a")
        assert client.status()["retired"] == 2
        with pytest.raises(RefusedError, match="there is no client 'a'") as refused:
            client.history("a")
        assert (refused.value.status, refused.value.code) == (404, "unknown_client")
        with pytest.raises(RefusedError, match="round 1 is closed already") as refused:
            client.close_round(round=1)
        assert (refused.value.status, refused.value.code) == (409, "round_closed")
        assert [entry["client"] for entry in client.clients()][1:] == ["b", "c", "d/?é"]
        assert client.round(1)["turns"][0]["client"] in ("a", "b", "d/?é", "forgotten-0")
        etag = client.settings()["etag"]
        assert client.amend(deadline=31.0, if_match=etag) == ["deadline"]
        with pytest.raises(RefusedError) as refused:
            client.amend(deadline=32.0, if_match=etag)
        assert (refused.value.status, refused.value.code) == (412, "amended")


def test_devices_over_http(tmp_path: Path) -> None:
    with (
        served(tmp_path, {"fleet": SLOTS}) as service,
        client_of(service, "server") as server,
        client_of(service, "device") as device,
    ):
        turn = device.check_in(status=ClientStatus(1.0, 2.0))
        assert isinstance(turn, RunningTurn)
        assert (turn.id, turn.client) == (1, "phone-1")
        assert [given.client for given in server.fill(["phone-2"])] == ["phone-2"]
        assert isinstance(server.check_in("phone-3"), Wait)
        assert device.report(turn.id, 2.0)
        assert [given.client for given in server.running()] == ["phone-2"]
        assert server.report_failure(2, "no power")
        with pytest.raises(RefusedError, match="the role device does not allow this") as refused:
            device.status()
        assert refused.value.status == 403


def test_asyncio(tmp_path: Path) -> None:
    async def run(service: Service) -> None:
        async with AsyncFleetClient(client_of(service)) as client:
            ids = [f"c{number}" for number in range(20)]
            assert len((await client.choose(ids)).cohort) == 20
            assert await asyncio.gather(*(client.report(name, 1.0) for name in ids)) == [True] * 20
            assert (await client.close_round())["round"] == 1
            with pytest.raises(RefusedError, match="no round is open"):
                await client.close_round()
            assert [event.kind async for event in client.events(0, follow=False)] == ["joined", "closed", "state"]

    with served(tmp_path, {"fleet": {**ROUNDS, "settings": {"cohort_size": 20}}}) as service:
        asyncio.run(run(service))


def test_the_asynchronous_client_has_every_method() -> None:
    public = {name for name in dir(FleetClient) if not name.startswith("_")}
    assert public == {name for name in vars(AsyncFleetClient) if not name.startswith("_")}
    for name in public - {"close", "events"}:
        assert getattr(AsyncFleetClient, name).__doc__ == getattr(FleetClient, name).__doc__


Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def breaking(*answers: Answer) -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """Serves these answers, one for each request; yields the address, and the keys and bodies that were sent."""
    sent: list[tuple[str, bytes]] = []
    left = iter(answers)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            length = int(self.headers.get("content-length", 0))
            sent.append((self.headers.get("idempotency-key", ""), self.rfile.read(length)))
            next(left)(self)

        do_GET = do_POST  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/v1/fleets/fleet", sent
        finally:
            server.shutdown()
            thread.join()


def answering(status: int, body: Any, **headers: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        handler.send_response(status)
        for name, value in {"content_length": str(len(content)), **headers}.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(content)

    return answer


def hang_up(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True


def break_off(handler: BaseHTTPRequestHandler) -> None:
    answering(200, b'{"new"', content_length="100")(handler)
    handler.close_connection = True


DONE = answering(200, {"new": 1})


@pytest.mark.parametrize(
    "failure",
    [
        hang_up,
        break_off,
        answering(429, {"detail": "busy"}, retry_after="1"),
        answering(503, {"detail": "disk full"}),
        answering(502, b"<html>proxy</html>"),
    ],
)
def test_a_call_is_sent_again_with_the_same_key_until_it_is_answered(failure: Answer, no_pauses: list[float]) -> None:
    with breaking(failure, failure, failure, DONE, DONE) as (address, sent), FleetClient(address) as client:
        assert client.register(["a"]) == 1
        assert client.register(["a"]) == 1
    keys = [key for key, _ in sent]
    assert len(set(keys[:4])) == 1
    assert keys[4] != keys[0]
    assert {body for _, body in sent} == {b'{"clients": ["a"]}'}
    assert len(no_pauses) == 3
    assert all(pause <= 1 + transport.FIRST_PAUSE * 2**attempt for attempt, pause in enumerate(no_pauses))


def test_a_busy_service_is_given_the_time_that_it_asks_for(no_pauses: list[float]) -> None:
    busy = answering(429, {"detail": "busy"}, retry_after="2")
    with breaking(busy, DONE) as (address, _), FleetClient(address) as client:
        assert client.register(["a"]) == 1
    assert 2.0 <= no_pauses[0] <= 2.0 + transport.FIRST_PAUSE


def without_length(body: Any) -> Answer:
    """Answers as some proxies do: the body ends with the connection."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("connection", "close")
        handler.end_headers()
        handler.wfile.write(json.dumps(body).encode())
        handler.close_connection = True

    return answer


def test_an_answer_without_a_length_is_read_to_its_end_if_it_is_not_too_large(no_pauses: list[float]) -> None:
    long = without_length({"new": 3, "padding": "x" * 200_000})  # more than is read at once
    with breaking(long) as (address, _), FleetClient(address) as client:
        assert client.register(["a"]) == 3
    assert no_pauses == []
    large = answering(200, {"new": 3, "padding": "x" * 200_000})
    with (
        patch.object(transport, "MAX_BYTES", 100_000),
        breaking(long, large, without_length({"new": 2})) as (address, _),
        FleetClient(address) as client,
    ):
        assert client.register(["a"]) == 2
    assert len(no_pauses) == 2


def test_the_log_says_that_a_service_is_waited_for_and_that_it_is_back(
    no_pauses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    answers = *[hang_up] * 4, answering(200, {"new": 1}), hang_up, answering(200, {"new": 1})
    with breaking(*answers) as (address, _), FleetClient(address) as client:
        assert [client.register(["a"]), client.register(["b"])] == [1, 1]
    host, called = urlsplit(address).netloc, "POST /v1/fleets/fleet/clients"
    waiting, back = (record.getMessage() for record in caplog.records if record.name == "turnout.client")
    assert waiting.startswith(
        f"{host} did not execute {called} in 3 attempts, and is asked again, up to 8 times in all: "
    )
    assert back == f"{host} has executed {called}"
    assert len(no_pauses) == 5


def test_a_client_gives_up_after_its_attempts(no_pauses: list[float]) -> None:
    failures = [answering(503, {"detail": "disk full"})] * 3
    with breaking(*failures) as (address, sent), FleetClient(address, attempts=3) as client:
        with pytest.raises(UnavailableError, match="in 3 attempts: disk full") as gone:
            client.register(["a"])
        assert gone.value.status == 503
    assert (len(sent), len(no_pauses)) == (3, 2)
    with FleetClient(address, attempts=2) as client, pytest.raises(UnavailableError, match="Connection") as gone:
        client.status()
    assert gone.value.status is None


@pytest.mark.parametrize(
    ("status", "body"), [(409, {"detail": "no"}), (500, b"oops"), (302, b""), (200, b"no JSON"), (200, b"[]")]
)
def test_other_answers_are_not_tried_again(status: int, body: Any, no_pauses: list[float]) -> None:
    with breaking(answering(status, body)) as (address, sent), FleetClient(address) as client:
        with pytest.raises(RefusedError) as refused:
            client.close_round()
        assert refused.value.status == status
    assert (len(sent), no_pauses) == (1, [])


def test_the_page_of_a_proxy_is_shown_without_its_tags_and_is_no_stream(no_pauses: list[float]) -> None:
    page = answering(200, b"<html>\n<h1>Log in</h1>\n<p>first</p></html>", content_type="text/html")
    with breaking(page, page) as (address, _), FleetClient(address) as client:
        for call in (client.status, lambda: next(client.events())):
            with pytest.raises(RefusedError, match=r"check the address, .*; it says 'Log in first'") as refused:
                call()
            assert refused.value.status == 200
    assert no_pauses == []


def test_a_broken_connection_after_the_change_never_counts_twice(tmp_path: Path, no_pauses: list[float]) -> None:
    with served(tmp_path) as service, client_of(service) as client:
        client.choose(["a", "b"])
        read = HTTPResponse.read
        lost: list[bytes] = []

        def lose_first(response: HTTPResponse) -> bytes:
            content = read(response)
            if not lost:
                lost.append(content)
                raise ConnectionResetError("the answer was lost")
            return content

        with patch.object(HTTPResponse, "read", lose_first):
            assert client.close_round(round=1)["round"] == 1  # without a key: the round is closed
        assert json.loads(lost[0])["round"] == 1
    assert len(no_pauses) == 1


def is_open(connections: list[HTTPConnection]) -> list[bool]:
    return [connection.sock is not None for connection in connections]


def in_threads(number: int, call: Callable[[], object]) -> None:
    with ThreadPoolExecutor(number) as threads:
        list(threads.map(lambda _: call(), range(number)))


def test_threads_share_connections_of_which_few_stay_open(opened: list[HTTPConnection]) -> None:
    callers = connections.MAX_IDLE + 3
    all_call = threading.Barrier(callers)

    def wait_for_all(handler: BaseHTTPRequestHandler) -> None:
        all_call.wait()
        DONE(handler)

    with breaking(*[DONE] * 5, *[wait_for_all] * callers) as (address, _), FleetClient(address) as client:
        for _ in range(5):
            in_threads(1, lambda: client.register(["a"]))
        assert is_open(opened) == [True]
        in_threads(callers, lambda: client.register(["a"]))
        assert len(opened) == callers
        assert sum(is_open(opened)) == connections.MAX_IDLE
        client.close()
        assert not any(is_open(opened))


def test_a_connection_in_use_is_closed_after_its_call_if_the_client_was_closed(opened: list[HTTPConnection]) -> None:
    def close_and_answer(handler: BaseHTTPRequestHandler) -> None:
        client.close()
        DONE(handler)

    with breaking(close_and_answer, DONE) as (address, _), FleetClient(address) as client:
        assert client.register(["a"]) == 1
        assert is_open(opened) == [False]
        assert client.register(["a"]) == 1
        assert is_open(opened) == [False, True]


def test_a_connection_that_the_server_closed_costs_no_attempt(opened: list[HTTPConnection]) -> None:
    def answer_and_hang_up(handler: BaseHTTPRequestHandler) -> None:
        DONE(handler)
        hang_up(handler)

    with breaking(answer_and_hang_up, DONE) as (address, _), FleetClient(address, attempts=1) as client:
        assert client.register(["a"]) == 1
        assert opened[0].sock.recv(1, socket.MSG_PEEK) == b""  # waits until the end of the connection has arrived
        assert client.register(["a"]) == 1
        assert is_open(opened) == [False, True]


def test_a_connection_is_used_neither_after_a_long_pause_nor_by_a_forked_process(opened: list[HTTPConnection]) -> None:
    with breaking(*[DONE] * 4) as (address, _), FleetClient(address, attempts=1) as client:
        client.register(["a"])
        with patch.object(os, "getpid", lambda: -1):
            client.register(["a"])
            assert is_open(opened) == [False, True]  # a process closes only its own copy of a socket
            with patch.object(connections, "IDLE_SECONDS", 0.0):
                client.register(["a"])
            assert is_open(opened) == [False, False, False]


@pytest.mark.parametrize(
    "address",
    [
        "",
        "fleet.turnout",
        "ftp://host/x",
        "http://",
        "http://host/?a=1",
        "http://host#x",
        "http://host",
        "http://host/v1",
        "http://host/v1/fleets/",
    ],
)
def test_addresses_that_are_none_are_refused(address: str) -> None:
    with pytest.raises(SettingError, match="address must be that of a fleet"):
        FleetClient(address)


def test_settings_are_checked_and_a_token_is_not_shown() -> None:
    for token in ("turnout_1_secret\n", "turnout_1 secret", ""):
        with pytest.raises(SettingError, match="token must be one line of ASCII characters") as refused:
            FleetClient("http://host/proxied/v1/fleets/fleet", token=token)
        assert "secret" not in str(refused.value)
    with pytest.raises(SettingError, match="attempts must be at least 1, got 0"):
        FleetClient("http://host/v1/fleets/a", attempts=0)
    client = FleetClient("http://host/v1/fleets/a", token="turnout_secret")
    assert "secret" not in repr(client)
    with pytest.raises(SettingError, match="statuses must be a mapping"):
        client.choose("phone-1")


def test_events_are_yielded_and_the_stream_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "STREAM_SECONDS", 0.0)  # every stream breaks off at once
    with served(tmp_path, {"fleet": ROUNDS}) as service, client_of(service) as client:
        stream = client.events()
        first = next(stream)
        assert (first.kind, first.number, first.data["is_open"]) == ("state", 0, False)
        client.register(["a", "b"])
        seen = [next(event for event in stream if event.kind == "joined")]
        client.choose(["a", "b"])
        client.report_many({"a": 1.0, "b": 2.0})
        client.close_round()
        client.retire("b")
        while seen[-1].kind != "retired":
            seen += [event for event in [next(stream)] if event.kind != "state"]
        assert [(event.kind, event.number) for event in seen] == [("joined", 1), ("closed", 2), ("retired", 3)]
        assert seen[0].data["clients"] == ["a", "b"]
        assert [event.kind for event in client.events(1, follow=False)] == ["closed", "retired", "state"]
        with pytest.raises(RefusedError, match="there is no event 9: begin after the newest, 3"):
            next(client.events(9))


def test_a_stream_that_cannot_be_opened_is_tried_as_often_as_a_call(
    tmp_path: Path, no_pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MAX_STREAMS", 0)
    with served(tmp_path, {"fleet": ROUNDS}) as service, client_of(service, attempts=3) as client:
        with pytest.raises(UnavailableError, match=r"did not send its events in 3 attempts: .*0 streams"):
            next(client.events())
        assert len(no_pauses) == 2


def streamed(*parts: str) -> Answer:
    return answering(200, "".join(f"{part}\n\n" for part in parts).encode(), content_type="text/event-stream")


def joined(number: int) -> str:
    return f'id: {number}\nevent: joined\ndata: {{"clients":["c{number}"]}}'


def test_comments_of_a_stream_are_no_events(no_pauses: list[float]) -> None:
    quiet = streamed(": still there", joined(1), ": still there", ": still there", joined(2))
    with breaking(quiet) as (address, _), FleetClient(address) as client:
        stream = list(client.events(0, follow=False))
    assert [(event.kind, event.number, event.data) for event in stream] == [
        ("joined", 1, {"clients": ["c1"]}),
        ("joined", 2, {"clients": ["c2"]}),
    ]
    assert no_pauses == []


def test_a_stream_whose_next_events_are_no_longer_kept_is_not_opened_again(no_pauses: list[float]) -> None:
    stale = streamed(joined(1), 'event: stale\ndata: {"code":"x","detail":"the events from 2 to 9 are no longer kept"}')
    with breaking(stale) as (address, sent), FleetClient(address) as client:
        stream = client.events(0)
        assert next(stream).number == 1
        with pytest.raises(RefusedError, match="the events from 2 to 9 are no longer kept") as refused:
            next(stream)
        assert refused.value.status == 410
    assert (len(sent), no_pauses) == (1, [])


BROKEN = 'event: unreadable\ndata: {"code":"x","detail":"the disk is full"}'


@pytest.mark.parametrize(
    ("answers", "attempts", "numbers", "why"),
    [
        (
            [streamed(joined(1), BROKEN), streamed(joined(2), BROKEN), streamed(BROKEN)],
            2,
            [1, 2],
            "UnavailableError: the disk is full",
        ),
        ([streamed()] * 3, 3, [], "the stream ended without an event"),
    ],
)
def test_a_stream_that_ends_at_once_or_with_an_error_is_opened_again_after_a_pause(
    answers: list[Answer], attempts: int, numbers: list[int], why: str, no_pauses: list[float]
) -> None:
    with breaking(*answers) as (address, sent), FleetClient(address, attempts=attempts) as client:
        stream = client.events(0)
        assert [next(stream).number for _ in numbers] == numbers
        with pytest.raises(UnavailableError, match=f"in {attempts} attempts: {why}"):
            next(stream)
    assert (len(sent), len(no_pauses)) == (3, 2)


@pytest.mark.parametrize("cut", ["", "id: 9\nevent: joined\ndata: {", "event: joined\ndata: {}"])
def test_a_stream_that_is_cut_off_after_each_event_is_opened_again_after_a_pause(
    cut: str, no_pauses: list[float]
) -> None:
    with (
        breaking(*(streamed(joined(number), cut) for number in (1, 2, 3))) as (address, sent),
        FleetClient(address, attempts=2) as client,
    ):
        stream = client.events(0)
        assert [next(stream).number for _ in range(3)] == [1, 2, 3]
        assert (len(sent), len(no_pauses)) == (3, 2)
        stream.close()
        assert list(stream) == []
    assert all(pause <= transport.FIRST_PAUSE for pause in no_pauses)


@pytest.mark.parametrize("ends", ["cancelled", "closed"])
def test_a_stream_that_nobody_awaits_any_more_keeps_no_thread(
    tmp_path: Path, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "THREADS", 1)

    async def run(service: Service) -> None:
        client, seen = AsyncFleetClient(client_of(service)), asyncio.Queue[str]()

        async def follow() -> None:
            async for event in client.events(0):
                seen.put_nowait(event.kind)

        task = asyncio.create_task(follow())
        assert await seen.get() == "state"
        if ends == "cancelled":
            task.cancel()
            assert (await client.status())["clients"] == 0
        await client.close()  # waits for the thread that read from the stream
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled() == (ends == "cancelled")

    with served(tmp_path) as service:
        asyncio.run(run(service))


def test_a_device_loads_the_standard_library_only() -> None:
    code = "import sys, turnout.client; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert loaded <= {"turnout", "__main__", *sys.stdlib_module_names, *startup_modules()}
    assert "sqlite3" not in loaded - startup_modules()
    assert len([name for name in done.stdout.split() if name.startswith("turnout")]) <= 14


def startup_modules() -> set[str]:
    """Returns the modules that Python itself loads, some for packages that are installed."""
    done = subprocess.run(
        [sys.executable, "-c", "import sys; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return {name.partition(".")[0] for name in done.stdout.split()}
