"""Runs clients of Flower's older interface (`NumPyClient`, `Client`) as an app of the Message API.

    app = with_status(message_app(client_fn))

New apps do not need it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import Client, NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import Code, EvaluateIns, FitIns, Status, ndarrays_to_parameters, parameters_to_ndarrays

NUM_EXAMPLES = "num-examples"
ClientFn = Callable[[Context], Client | NumPyClient]


def message_app(client_fn: ClientFn) -> ClientApp:
    """Returns a client app that calls `fit` and `evaluate` of the client that `client_fn` returns.

    The arrays keep the names that the server gave them, so there must be as many. Numeric metrics are sent to the
    server, with the number of examples as "num-examples" and the loss of an evaluation as "loss". A status other than
    OK is an error.
    """
    app = ClientApp()

    @app.train()
    def _train(message: Message, context: Context) -> Message:
        names, parameters, config = _instructions(message)
        result = _client(client_fn, context).fit(FitIns(parameters, config))
        _check(result.status)
        arrays = parameters_to_ndarrays(result.parameters)
        trained = ArrayRecord({name: Array(array) for name, array in zip(names, arrays, strict=True)})
        metrics = _metrics(result.num_examples, result.metrics)
        return Message(RecordDict({"arrays": trained, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def _evaluate(message: Message, context: Context) -> Message:
        _, parameters, config = _instructions(message)
        result = _client(client_fn, context).evaluate(EvaluateIns(parameters, config))
        _check(result.status)
        metrics = _metrics(result.num_examples, {"loss": result.loss, **result.metrics})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def _client(client_fn: ClientFn, context: Context) -> Client:
    client = client_fn(context)
    return client.to_client() if isinstance(client, NumPyClient) else client


def _instructions(message: Message) -> tuple[list[str], Any, dict[str, Any]]:
    """Returns the names of the arrays, the arrays and the configuration that the server sent."""
    record = next(iter(message.content.array_records.values()))
    config = next(iter(message.content.config_records.values()), ConfigRecord())
    return list(record), ndarrays_to_parameters([array.numpy() for array in record.values()]), dict(config)


def _metrics(examples: int, metrics: Mapping[str, Any]) -> MetricRecord:
    numbers = {name: value for name, value in metrics.items() if isinstance(value, bool | int | float)}
    converted = {name: int(value) if isinstance(value, bool) else value for name, value in numbers.items()}
    return MetricRecord({NUM_EXAMPLES: examples, **converted})


def _check(status: Status) -> None:
    if status.code != Code.OK:
        raise RuntimeError(f"{status.code.name}: {status.message}")  # Flower replies with it
