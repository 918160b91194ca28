"""The client's one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from adapters.flower.in_process import model, plain_app
from turnout.adapters.flower.client import client_id, machine_status, with_status
from turnout.adapters.flower.wire import Introduction, introduction_in


def context(**config: Any) -> Context:
    """Of node 42, with this configuration (a name's "-" is written "_" here)."""
    return Context(1, 42, {name.replace("_", "-"): value for name, value in config.items()}, RecordDict(), {})


def configured(**config: Any) -> Context:
    return Context(1, 42, config, RecordDict(), {})


def message(kind: str) -> Message:
    config = ConfigRecord({"server-round": 1})
    sent = Message(RecordDict({"arrays": model(0.0), "config": config}), dst_node_id=42, message_type=kind)
    sent.metadata.__dict__["_message_id"] = "message 1"
    return sent


def told(reply: Message) -> dict[str, Any]:
    return dict(reply.content.config_records["turnout"])


@pytest.fixture
def psutil(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A machine whose cores are busy by a quarter, with a card of 1,000 Mbit/s and others that do not count."""
    cards = {
        "lo": SimpleNamespace(isup=True, speed=100_000),
        "eth0": SimpleNamespace(isup=True, speed=1_000),
        "eth1": SimpleNamespace(isup=False, speed=10_000),
        "wlan0": SimpleNamespace(isup=True, speed=0),
    }
    fake = SimpleNamespace(cpu_percent=lambda interval: 25.0 if interval else 0.0, net_if_stats=lambda: cards)
    monkeypatch.setitem(sys.modules, "psutil", fake)
    return fake


# Who it is


def test_a_client_is_who_its_configuration_says() -> None:
    assert client_id(context(client_id="ward-3", partition_id=7)) == "ward-3"
    assert client_id(context(client_id=12)) == "12"
    assert client_id(context(partition_id=7)) == "7"
    assert client_id(context(partition_id=0)) == "0"
    assert client_id(context()) == "42"


# How it is


def test_free_cores_and_bandwidth_are_measured(monkeypatch: pytest.MonkeyPatch, psutil: SimpleNamespace) -> None:
    assert psutil
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert machine_status(context()) == {"free_cpu": 6.0, "bandwidth": 1000.0}


def test_without_psutil_the_load_tells_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "getloadavg", lambda: (3.5, 0.0, 0.0), raising=False)
    assert machine_status(context()) == {"free_cpu": 4.5, "bandwidth": 1.0}


def test_where_nothing_tells_of_the_load_all_cores_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    monkeypatch.delattr(os, "getloadavg", raising=False)
    assert machine_status(context()) == {"free_cpu": 1.0, "bandwidth": 1.0}


def test_a_machine_that_is_busy_is_slow_and_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (40.0, 0.0, 0.0), raising=False)
    assert machine_status(context())["free_cpu"] == 0.05


def test_without_a_card_that_is_up_the_bandwidth_is_not_known(
    monkeypatch: pytest.MonkeyPatch, psutil: SimpleNamespace
) -> None:
    monkeypatch.setattr(psutil, "net_if_stats", dict)
    assert machine_status(context())["bandwidth"] == 1.0


def test_the_configuration_of_a_node_goes_before_what_is_measured(
    monkeypatch: pytest.MonkeyPatch, psutil: SimpleNamespace
) -> None:
    monkeypatch.setattr(psutil, "cpu_percent", pytest.fail)
    assert machine_status(configured(free_cpu=0.5, bandwidth=3)) == {"free_cpu": 0.5, "bandwidth": 3.0}
    monkeypatch.setattr(psutil, "net_if_stats", pytest.fail)
    assert machine_status(configured(free_cpu=2, bandwidth=8.5)) == {"free_cpu": 2.0, "bandwidth": 8.5}


# The line


def test_every_reply_tells_who_and_how_the_client_is() -> None:
    app = with_status(plain_app(), lambda _: {"free_cpu": 0.5, "bandwidth": 3})
    for kind in ("train", "evaluate", "query.turnout"):
        reply = app(message(kind), context(client_id="c7"))
        assert told(reply) == {"client-id": "c7", "free_cpu": 0.5, "bandwidth": 3.0}


def test_what_the_app_says_stays_as_it_was() -> None:
    where = context(client_id="c7")
    plain, ours = plain_app(), with_status(plain_app(), lambda _: {})
    for kind in ("train", "evaluate"):
        before, now = plain(message(kind), where), ours(message(kind), where)
        assert introduction_in(now.content) == Introduction("c7", {})
        assert dict(now.content) == dict(before.content)


def test_by_default_it_tells_of_its_machine() -> None:
    reply = with_status(plain_app())(message("query.turnout"), configured(free_cpu=2.0))
    assert told(reply) == {"client-id": "42", "free_cpu": 2.0, "bandwidth": 1.0}


def test_a_status_function_gets_the_context() -> None:
    app = with_status(plain_app(), lambda context: {"battery": float(context.node_id)})
    assert told(app(message("query.turnout"), context()))["battery"] == 42.0


def test_what_the_app_raises_it_still_raises() -> None:
    with pytest.raises(ValueError, match="No train function"):
        with_status(ClientApp())(message("train"), context())


def test_an_error_of_the_apps_own_is_left_as_it_is() -> None:
    app = ClientApp()

    @app.train()
    def _train(message: Message, context: Context) -> Message:  # noqa: ARG001
        return Message(Error(code=0, reason="no data"), reply_to=message)

    reply = with_status(app)(message("train"), context())
    assert reply.has_error()


def test_what_is_registered_later_goes_to_the_app_itself() -> None:
    inner = ClientApp()
    app, seen = with_status(inner, lambda _: {}), list[str]()

    def answer(name: str) -> Any:
        def reply(message: Message, context: Context) -> Message:  # noqa: ARG001
            seen.append(name)
            return Message(RecordDict(), reply_to=message)

        return reply

    app.train()(answer("train"))
    app.evaluate()(answer("evaluate"))
    app.query("weather")(answer("weather"))

    @app.lifespan()
    def _life(context: Context) -> Iterator[None]:  # noqa: ARG001
        seen.append("lives")
        yield

    for kind in ("train", "evaluate", "query.weather"):
        app(message(kind), context())
    assert [word for word in seen if word != "lives"] == ["train", "evaluate", "weather"]
    assert "lives" in seen
    assert inner(message("train"), context()).has_content()


def test_our_own_query_cannot_be_registered_again() -> None:
    app = with_status(plain_app())
    with pytest.raises(ValueError, match="the query 'turnout' is answered already"):
        app.query("turnout")
    with pytest.raises(ValueError, match="the query 'turnout' is answered already"):
        app.query(action="turnout")


# On the wire


def test_what_is_no_introduction_is_none() -> None:
    assert introduction_in(RecordDict()) is None
    assert introduction_in(RecordDict({"turnout": model(1.0)})) is None
    assert introduction_in(RecordDict({"turnout": ConfigRecord({"free_cpu": 1.0})})) is None
    assert introduction_in(RecordDict({"turnout": ConfigRecord({"client-id": 5})})) is None
    assert introduction_in(RecordDict({"turnout": ConfigRecord({"client-id": ""})})) is None
    assert introduction_in(RecordDict({"turnout": ConfigRecord({"client-id": "a\0b"})})) is None


def test_an_introduction_is_taken_out_whatever_it_is() -> None:
    content = RecordDict({"turnout": model(1.0), "arrays": model(1.0)})
    introduction_in(content)
    assert list(content) == ["arrays"]


def test_of_a_status_only_numbers_are_heard() -> None:
    record = ConfigRecord({"client-id": "c1", "free_cpu": 2, "mood": "good", "bandwidth": 1.5, "all": [1.0, 2.0]})
    assert introduction_in(RecordDict({"turnout": record})) == Introduction("c1", {"free_cpu": 2.0, "bandwidth": 1.5})
