"""The client side: one line in the client app reports the client's id and status to the server.

    app = with_status(app)

It imports nothing of the server.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from turnout.adapters.common.machine import bandwidth, free_cpu, start_measuring
from turnout.adapters.flower.flower_api import is_older_app
from turnout.adapters.flower.wire import ACTION, CLIENT_ID, GROUPS, QUERY, RECORD, ClientInfo
from turnout.errors import SettingError

log = logging.getLogger("flwr")
Status = Callable[[Context], Mapping[str, float]]


def with_status(app: ClientApp, status: Status | None = None) -> ClientApp:
    """Wraps a client app so that every reply carries the client's id and status.

    The id is `client-id` of the node's configuration; if that is missing, its `partition-id`, else the node id (which
    changes when a SuperNode restarts). `status` returns one number for each feature of the fleet; the default is
    `machine_status`, which does not wait.
    """
    if not isinstance(app, ClientApp) or is_older_app(app):
        raise SettingError(
            f"with_status needs a client app of the Message API, got {app!r}: for a client_fn of Flower's older "
            "interface write with_status(message_app(client_fn)), with message_app of turnout.adapters.flower.legacy"
        )
    start_measuring()
    return _AppWithStatus(app, status or machine_status)


def client_id(context: Context) -> str:
    """Returns the id of this client, which is stable as long as the node's configuration does not change."""
    configured = context.node_config
    return str(configured.get(CLIENT_ID, configured.get("partition-id", context.node_id)))


def machine_status(context: Context) -> dict[str, float]:
    """Returns free cores and bandwidth: from the node's configuration (`free_cpu`, `bandwidth`), else measured.

    Free cores are those that other programs did not use since the last status (with psutil), or all cores less the load
    average of the last minute. Bandwidth is the speed of the fastest network interface in Mbit/s (with psutil), or 1 if
    it is unknown: the `model_size` of the fleet must then be in megabits. The actual throughput to the server cannot be
    measured here.
    """
    configured = context.node_config
    return {
        "free_cpu": float(configured.get("free_cpu", 0) or free_cpu()),
        "bandwidth": float(configured.get("bandwidth", 0) or bandwidth()),
    }


class _AppWithStatus(ClientApp):
    """Calls the wrapped app and adds the client's record to its reply."""

    def __init__(self, app: ClientApp, status: Status) -> None:
        super().__init__()
        self._app, self._status = app, status

    def __call__(self, message: Message, context: Context) -> Message:
        kind = message.metadata.message_type
        if kind == QUERY:
            reply = Message(RecordDict(), reply_to=message)
            reply.content[RECORD] = self._client_record(context, _requested_groups(message, context))
            return reply
        reply = self._app(message, context)
        if kind.startswith("train") and reply.has_content():  # all clients evaluate: there it would cost much more
            reply.content[RECORD] = self._client_record(context, {})
        return reply

    def _client_record(self, context: Context, groups: Mapping[str, str]) -> ConfigRecord:
        try:
            return ClientInfo(client_id(context), self._status(context), groups).to_record()
        except Exception as error:  # a failing status function must not discard the trained model
            log.warning("turnout: the status of this client could not be determined: %r", error)
            return ClientInfo(client_id(context), {}, groups).to_record()

    # Functions registered after wrapping belong to the wrapped app.

    def train(self, *args: Any, **kwargs: Any) -> Any:
        return self._app.train(*args, **kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        return self._app.evaluate(*args, **kwargs)

    def query(self, *args: Any, **kwargs: Any) -> Any:
        if ACTION in (*args, kwargs.get("action")):
            raise ValueError(f"the query action {ACTION!r} is reserved by with_status: register another name")
        return self._app.query(*args, **kwargs)

    def lifespan(self) -> Any:
        return self._app.lifespan()


def _requested_groups(query: Message, context: Context) -> dict[str, str]:
    """Returns the entries of the node's configuration that a query asks for; empty for a missing one."""
    names = query.content.config_records.get(RECORD, ConfigRecord()).get(GROUPS, [])
    return {str(name): str(context.node_config.get(str(name), "")) for name in names} if isinstance(names, list) else {}
