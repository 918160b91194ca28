"""The client side: ids, statuses and the wrapped app."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

import turnout
from adapters.flower.in_process import Clock, model, plain_app
from turnout.adapters.common import machine
from turnout.adapters.flower.client import client_id, machine_status, with_status
from turnout.adapters.flower.wire import ClientInfo, pop_client_info


def context(**config: Any) -> Context:
    """Returns the context of node 42 with this configuration; "_" in a name stands for "-"."""
    return Context(1, 42, {name.replace("_", "-"): value for name, value in config.items()}, RecordDict(), {})


def configured(**config: Any) -> Context:
    return Context(1, 42, config, RecordDict(), {})


def message(kind: str) -> Message:
    config = ConfigRecord({"server-round": 1})
    sent = Message(RecordDict({"arrays": model(0.0), "config": config}), dst_node_id=42, message_type=kind)
    sent.metadata.__dict__["_message_id"] = "message 1"
    return sent


def client_record(reply: Message) -> dict[str, Any]:
    """Returns the client id and the status in a reply."""
    info = pop_client_info(reply.content)
    assert info is not None
    return {"client-id": info.client, **info.status}


@pytest.fixture
def psutil(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A machine with CPU counters, an active interface of 1,000 Mbit/s, and interfaces that must be ignored."""
    interfaces = {
        "lo": SimpleNamespace(isup=True, speed=100_000),
        "eth0": SimpleNamespace(isup=True, speed=1_000),
        "eth1": SimpleNamespace(isup=False, speed=10_000),
        "wlan0": SimpleNamespace(isup=True, speed=0),
    }
    times = CpuTimes(user=80.0, system=20.0, idle=900.0, iowait=50.0, guest=30.0)
    fake = SimpleNamespace(times=times, net_if_stats=lambda: interfaces)
    fake.cpu_times = lambda: fake.times
    monkeypatch.setitem(sys.modules, "psutil", fake)
    monkeypatch.setattr(machine, "_samples", [])
    return fake


class CpuTimes(NamedTuple):
    """The CPU seconds of a machine since it was started, as psutil counts them on Linux."""

    user: float
    system: float
    idle: float
    iowait: float
    guest: float  # is part of user


# Client ids


def test_the_configuration_determines_the_client_id() -> None:
    assert client_id(context(client_id="ward-3", partition_id=7)) == "ward-3"
    assert client_id(context(client_id=12)) == "12"
    assert client_id(context(partition_id=7)) == "7"
    assert client_id(context(partition_id=0)) == "0"
    assert client_id(context()) == "42"


# Statuses


@pytest.mark.parametrize(
    ("elapsed", "others", "own", "free"),
    [
        (10.0, 15.0, 5.0, 8 - 1.5),
        (4.0, 0.0, 0.0, 8.0),
        (1.0, -0.25, 2.25, 8.0),  # the counters are not read at the same moment
        (0.0625, 1.0, 0.0, 8 - 2.5),  # too short: the load average
        (None, 0.0, 0.0, 8 - 2.5),  # the first sample
    ],
)
def test_free_cores_are_those_that_other_programs_left_free_since_the_last_status(
    monkeypatch: pytest.MonkeyPatch,
    psutil: SimpleNamespace,
    clock: Clock,
    elapsed: float | None,
    others: float,
    own: float,
    free: float,
) -> None:
    """Others and the client itself use so many CPU seconds."""
    used = [7.0]
    monkeypatch.setattr(os, "times", lambda: (used[0], 0.0, 0.0, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "getloadavg", lambda: (2.5, 0.0, 0.0), raising=False)
    if elapsed is not None:
        with_status(plain_app())  # takes the first sample
        clock.sleep(elapsed)
    used[0] += own
    psutil.times = CpuTimes(user=80 + (others + own) / 2, system=20 + (others + own) / 2, idle=930, iowait=55, guest=60)
    assert machine_status(context()) == {"free_cpu": free, "bandwidth": 1000.0}


def test_a_status_does_not_wait(monkeypatch: pytest.MonkeyPatch, psutil: SimpleNamespace) -> None:
    assert psutil
    own, real_sleep = threading.current_thread(), time.sleep

    def sleep(seconds: float) -> None:
        if threading.current_thread() is own:
            pytest.fail(f"it waits for {seconds} s")
        real_sleep(seconds)  # other threads of the process may wait

    monkeypatch.setattr(time, "sleep", sleep)
    app = with_status(plain_app())
    for _ in range(3):
        assert client_record(app(message("query.turnout"), context()))["free_cpu"] > 0


@pytest.mark.parametrize(("cores", "load", "free"), [(8, 3.5, 4.5), (2, 40.0, 0.05), (None, None, 1.0)])
def test_without_psutil_the_load_if_there_is_one_tells_of_the_cores(
    monkeypatch: pytest.MonkeyPatch, cores: int | None, load: float | None, free: float
) -> None:
    """A machine that is busy is slow and not gone; where nothing tells of the load, all cores are free."""
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0), raising=False)
    if load is None:
        monkeypatch.delattr(os, "getloadavg")
    assert machine_status(context()) == {"free_cpu": free, "bandwidth": 1.0}


def test_bandwidth_is_unknown_without_an_interface(monkeypatch: pytest.MonkeyPatch, psutil: SimpleNamespace) -> None:
    monkeypatch.setattr(psutil, "net_if_stats", dict)
    assert machine_status(context())["bandwidth"] == 1.0


def test_the_node_configuration_overrides_measurements(
    monkeypatch: pytest.MonkeyPatch, psutil: SimpleNamespace
) -> None:
    monkeypatch.setattr(psutil, "cpu_times", pytest.fail)
    assert machine_status(configured(free_cpu=0.5, bandwidth=3)) == {"free_cpu": 0.5, "bandwidth": 3.0}
    monkeypatch.setattr(psutil, "net_if_stats", pytest.fail)
    assert machine_status(configured(free_cpu=2, bandwidth=8.5)) == {"free_cpu": 2.0, "bandwidth": 8.5}


# The wrapped app


def test_replies_carry_the_client_id_and_status_but_not_evaluations_which_all_clients_send() -> None:
    app = with_status(plain_app(), lambda _: {"free_cpu": 0.5, "bandwidth": 3})
    for kind in ("train", "query.turnout"):
        reply = app(message(kind), context(client_id="c7"))
        assert client_record(reply) == {"client-id": "c7", "free_cpu": 0.5, "bandwidth": 3.0}
    assert pop_client_info(app(message("evaluate"), context(client_id="c7")).content) is None


def test_the_content_of_the_apps_replies_is_unchanged() -> None:
    client = context(client_id="c7")
    plain, wrapped = plain_app(), with_status(plain_app(), lambda _: {})
    for kind in ("train", "evaluate"):
        expected, reply = plain(message(kind), client), wrapped(message(kind), client)
        assert pop_client_info(reply.content) == (ClientInfo("c7", {}) if kind == "train" else None)
        assert dict(reply.content) == dict(expected.content)


def test_a_status_is_that_of_the_machine_or_of_a_function_of_the_context() -> None:
    reply = with_status(plain_app())(message("query.turnout"), configured(free_cpu=2.0))
    assert client_record(reply) == {"client-id": "42", "free_cpu": 2.0, "bandwidth": 1.0}
    app = with_status(plain_app(), lambda context: {"battery": float(context.node_id)})
    assert client_record(app(message("query.turnout"), context()))["battery"] == 42.0


def test_exceptions_and_error_replies_of_the_app_are_passed_on() -> None:
    app = ClientApp()
    with pytest.raises(ValueError, match="No train function"):
        with_status(app)(message("train"), context())

    @app.train()
    def _train(message: Message, context: Context) -> Message:  # noqa: ARG001
        return Message(Error(code=0, reason="no data"), reply_to=message)

    assert with_status(app)(message("train"), context()).has_error()


def test_functions_registered_after_wrapping_belong_to_the_wrapped_app() -> None:
    inner = ClientApp()
    app, calls = with_status(inner, lambda _: {}), list[str]()

    def answer(name: str) -> Any:
        def reply(message: Message, context: Context) -> Message:  # noqa: ARG001
            calls.append(name)
            return Message(RecordDict(), reply_to=message)

        return reply

    app.train()(answer("train"))
    app.evaluate()(answer("evaluate"))
    app.query("weather")(answer("weather"))

    @app.lifespan()
    def _lifespan(context: Context) -> Iterator[None]:  # noqa: ARG001
        calls.append("lifespan")
        yield

    for kind in ("train", "evaluate", "query.weather"):
        app(message(kind), context())
    assert [call for call in calls if call != "lifespan"] == ["train", "evaluate", "weather"]
    assert "lifespan" in calls
    assert inner(message("train"), context()).has_content()


def test_the_reserved_query_cannot_be_registered() -> None:
    app = with_status(plain_app())
    with pytest.raises(ValueError, match="the query action 'turnout' is reserved"):
        app.query("turnout")
    with pytest.raises(ValueError, match="the query action 'turnout' is reserved"):
        app.query(action="turnout")


# The client record


@pytest.mark.parametrize(
    "record",
    [
        model(1.0),
        ConfigRecord({"client-id": "c1"}),
        ConfigRecord({"info": 5}),
        *(ConfigRecord({"info": text}) for text in ("", "{", "[1]", "null", "{}", "[" * 100_000)),
        ConfigRecord({"info": '{"client-id": 5}'}),
    ],
)
def test_an_invalid_client_record_is_ignored_and_removed(record: Any) -> None:
    content = RecordDict({"turnout": record, "arrays": model(1.0)})
    assert pop_client_info(content) is None
    assert list(content) == ["arrays"]
    assert pop_client_info(content) is None


def test_only_numeric_status_values_are_read() -> None:
    text = (
        '{"client-id": "c1", "status": {"free_cpu": 2.0, "mood": "good", "on": true, "all": [1.0]}, "groups": {"a": 1}}'
    )
    assert pop_client_info(RecordDict({"turnout": ConfigRecord({"info": text})})) == ClientInfo("c1", {"free_cpu": 2.0})
    for status in ("[1]", "null", "5"):
        record = ConfigRecord({"info": f'{{"client-id": "c1", "status": {status}, "groups": {status}}}'})
        assert pop_client_info(RecordDict({"turnout": record})) == ClientInfo("c1", {})


def test_a_client_record_is_read_as_it_was_written() -> None:
    info = ClientInfo("ω\n7", {"free_cpu": 2, "inf": float("inf")}, {"ward": "icu"})
    assert pop_client_info(RecordDict({"turnout": info.to_record()})) == info
    assert list(info.to_record()) == ["info"]


def test_a_client_imports_nothing_of_the_server() -> None:
    """Flower starts a process for each message."""
    code = "import sys, turnout.adapters.flower.client; print(*(name for name in sys.modules if 'turnout' in name))"
    environment = {**os.environ, "PYTHONPATH": str(Path(turnout.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    imported = done.stdout.split()
    assert "turnout.adapters.flower.wire" in imported
    server = ("turnout.live", "turnout.lab", "turnout.adapters.flower.core")
    assert [name for name in imported if name.startswith(server)] == []
