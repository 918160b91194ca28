"""The client's side: one line tells the server who this client is, and how it is.

app = with_status(app)
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from turnout.adapters.flower.wire import ACTION, CLIENT_ID, QUERY, RECORD, Introduction

log = logging.getLogger("flwr")
Status = Callable[[Context], Mapping[str, float]]
LEAST_CPU = 0.05  # of a core: a machine that is busy is slow, not gone
UNKNOWN_BANDWIDTH = 1.0


def with_status(app: ClientApp, status: Status | None = None) -> ClientApp:
    """The same app, which also answers who it is and adds that to every reply.

    Its id is `client-id` of the node's configuration, or its `partition-id`, or else the node's id (which changes when
    a SuperNode is started again). `status`: one number for each feature of the fleet; by default `machine_status`.
    """
    return _WithStatus(app, status or machine_status)


def client_id(context: Context) -> str:
    """Who this is, for as long as its configuration stays."""
    for name in (CLIENT_ID, "partition-id"):
        if name in context.node_config:
            return str(context.node_config[name])
    return str(context.node_id)


def machine_status(context: Context) -> dict[str, float]:
    """Free cores and bandwidth: as the node's configuration says (`free_cpu`, `bandwidth`), or as measured here.

    Free cores are those that the last moment (with psutil) or minute left idle. The bandwidth is that of the fastest
    network card, in Mbit/s (with psutil), or 1: nothing says what the way to the server carries.
    """
    configured = context.node_config
    return {
        "free_cpu": float(configured.get("free_cpu", 0) or _free_cpu()),
        "bandwidth": float(configured.get("bandwidth", 0) or _bandwidth()),
    }


class _WithStatus(ClientApp):
    """Asks the app, and adds a record to what it says."""

    def __init__(self, app: ClientApp, status: Status) -> None:
        super().__init__()
        self._app, self._status = app, status

    def __call__(self, message: Message, context: Context) -> Message:
        if message.metadata.message_type == QUERY:
            reply = Message(RecordDict(), reply_to=message)
        else:
            reply = self._app(message, context)
        if reply.has_content():
            reply.content[RECORD] = self._introduction(context)
        return reply

    def _introduction(self, context: Context) -> ConfigRecord:
        try:
            return Introduction(client_id(context), self._status(context)).record()
        except Exception as odd:  # whatever a status function does, what was trained is not lost
            log.warning("turnout: this client does not know how it is: %r", odd)
            return Introduction(client_id(context), {}).record()

    # What is registered later goes to the app itself.

    def train(self, *names: Any, **more: Any) -> Any:
        return self._app.train(*names, **more)

    def evaluate(self, *names: Any, **more: Any) -> Any:
        return self._app.evaluate(*names, **more)

    def query(self, *names: Any, **more: Any) -> Any:
        if ACTION in (*names, more.get("action")):
            raise ValueError(f"the query {ACTION!r} is answered already: with_status gave that answer")
        return self._app.query(*names, **more)

    def lifespan(self) -> Any:
        return self._app.lifespan()


def _free_cpu() -> float:
    cores = float(os.cpu_count() or 1)
    try:
        import psutil  # type: ignore[import-untyped,unused-ignore]
    except ModuleNotFoundError:
        busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    else:
        busy = cores * psutil.cpu_percent(interval=0.1) / 100
    return max(cores - busy, LEAST_CPU)


def _bandwidth() -> float:
    try:
        import psutil
    except ModuleNotFoundError:
        return UNKNOWN_BANDWIDTH
    cards = {name: card for name, card in psutil.net_if_stats().items() if card.isup and not name.startswith("lo")}
    return float(max((card.speed for card in cards.values()), default=0) or UNKNOWN_BANDWIDTH)
