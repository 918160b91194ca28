"""Flower in one process: a grid that calls its nodes directly and can simulate every kind of failure."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from benchmarks.virtual_nodes import stamp_message, stamp_reply
from turnout.adapters.flower import ClientSettings, ExchangeSettings, FairSelection, VersionSettings
from turnout.adapters.flower.client import with_status
from turnout.client import FleetClient
from turnout.live import Scheduler

SUPERLINK = 1  # the source node id of the SuperLink's replies for disconnected nodes
LONG = 1e6  # seconds: a longer wait counts as an endless one
AnyFedAvg = TypeVar("AnyFedAvg", bound=FedAvg)
Between = Callable[[int], object]


class Clock:
    """A clock that advances only by `sleep`; steps that are powers of two cause no rounding errors."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._scheduled: list[tuple[float, Callable[[], object]]] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        assert self.now < LONG, "waits indefinitely"
        for entry in list(self._scheduled):
            due, action = entry
            if due <= self.now:
                self._scheduled.remove(entry)
                action()

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        """Schedules a call that happens while others sleep."""
        self._scheduled.append((self.now + seconds, action))


@dataclass
class Node:
    """A SuperNode that trains for `seconds`; `trouble` is the failure of messages whose kind is in `troubled`."""

    node_id: int
    app: ClientApp
    config: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    query_seconds: float = 0.0
    trouble: str | None = None  # "raises", "silent", "gone", "unsent"
    troubled: tuple[str, ...] = ("train",)
    error: Error = field(default_factory=lambda: Error(code=5, reason="node unavailable"))  # of a node that is "gone"
    described: dict[str, Any] = field(default_factory=dict)  # what the SuperLink knows about it

    @property
    def name(self) -> str:
        return str(self.config.get("client-id", self.config.get("partition-id", self.node_id)))


@dataclass
class Sent:
    """A message that was sent."""

    kind: str
    node_id: int
    client: str
    ttl: float
    content: RecordDict


class InProcessGrid(Grid):
    """Calls the client apps when messages are pushed, and returns their replies when they are due.

    With `tells_unsent`, push_messages returns None for a message that could not be sent; otherwise it omits it. The
    callback `before` is called with "push" or "pull" before each operation.
    """

    def __init__(self, nodes: Iterable[Node] = (), *, tells_unsent: bool = True) -> None:
        self.nodes = {node.node_id: node for node in nodes}
        self.pushes: list[list[Sent]] = []
        self.before: Callable[[str], object] = lambda _: None
        self._tells_unsent = tells_unsent
        self._due: dict[str, tuple[float, Message]] = {}
        self._number = itertools.count(1)

    def add(self, *nodes: Node) -> None:
        self.nodes |= {node.node_id: node for node in nodes}

    def client(self, name: str) -> Node:
        """Returns the newest node of this client."""
        return [node for node in self.nodes.values() if node.name == name][-1]

    def sent(self, kind: str) -> list[list[Sent]]:
        """Returns the messages of this kind, by push."""
        return [push for push in ([sent for sent in push if sent.kind == kind] for push in self.pushes) if push]

    def asked(self, kind: str) -> list[list[str]]:
        """Returns the sorted clients that got messages of this kind, by push."""
        return [sorted(sent.client for sent in push) for push in self.sent(kind)]

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def get_nodes(self) -> Any:
        unknown = dict.fromkeys(("name", "owner_name", "location", "registered_at", "last_activated_at"), "")
        return [SimpleNamespace(node_id=node.node_id, **{**unknown, **node.described}) for node in self.nodes.values()]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        self.before("push")
        ids: list[Any] = []
        push: list[Sent] = []
        self.pushes.append(push)
        for message in messages:
            message_id = f"message {next(self._number)}"
            metadata = message.metadata
            stamp_message(message, message_id)
            node = self.nodes.get(metadata.dst_node_id)
            kind = metadata.message_type.split(".")[0]
            name = "unknown node" if node is None else node.name
            push.append(Sent(metadata.message_type, metadata.dst_node_id, name, metadata.ttl, message.content))
            if node is not None and node.trouble == "unsent" and kind in node.troubled:
                ids += [None] if self._tells_unsent else []
                continue
            if node is not None:
                self._answer(node, message, kind)
            ids.append(message_id)
        return ids

    def _answer(self, node: Node, message: Message, kind: str) -> None:
        trouble = node.trouble if kind in node.troubled else None
        if trouble == "silent":
            return
        if trouble == "gone":
            reply, sender = Message(node.error, reply_to=message), SUPERLINK
        else:
            content = RecordDict(dict(message.content))
            received = Message(content, dst_node_id=node.node_id, message_type=message.metadata.message_type)
            stamp_message(received, message.metadata.message_id)
            context = Context(1, node.node_id, node.config, RecordDict(), {})
            try:
                if trouble == "raises":
                    raise RuntimeError("out of memory")
                reply = node.app(received, context)
            except Exception as error:  # like a SuperNode
                reply = Message(Error(code=2, reason=str(error)), reply_to=received)
            sender = node.node_id
        stamp_reply(reply, message, sender)
        due = time.monotonic() + {"train": node.seconds, "query": node.query_seconds}.get(kind, 0.0)
        self._due[message.metadata.message_id] = (due, reply)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        self.before("pull")
        now = time.monotonic()
        due = [message_id for message_id in message_ids if message_id in self._due and self._due[message_id][0] <= now]
        return [self._due.pop(message_id)[1] for message_id in due]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        raise NotImplementedError("the adapter implements its own polling")

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError


# Models and apps


def model(*numbers: float) -> ArrayRecord:
    """Returns a model with one array."""
    return ArrayRecord({"weights": Array(np.array(numbers, dtype=np.float64))})


def weights(arrays: ArrayRecord | None) -> list[float]:
    """Returns the values of a model made by `model`."""
    assert arrays is not None
    return [float(number) for number in arrays["weights"].numpy()]


def step_of(number: int, server_round: int) -> float:
    """Returns the amount that the client with this number adds to every weight in this round."""
    return 1 + number + number**2 / 8 + server_round / 4


def examples_of(number: int) -> int:
    return 10 * (number + 1)


def mean_step(server_round: int, *numbers: int) -> float:
    """Returns the mean step of these clients, weighted by their examples."""
    return sum(examples_of(n) * step_of(n, server_round) for n in numbers) / sum(map(examples_of, numbers))


def loss_of(number: int) -> float:
    return 0.5 + number / 8


def number_of(context: Context) -> int:
    """Returns 7 for client "c7" and for partition 7, and 0 for a client without a number."""
    config = context.node_config
    name = str(config.get("client-id", config.get("partition-id", "0")))
    return int("".join(filter(str.isdecimal, name)) or 0)


def plain_app(loss: Callable[[int], float] = loss_of) -> ClientApp:
    """Returns an app that adds the client's step to the model and evaluates to the mean of the weights.

    It reports the loss that `loss` returns for the number of the client.
    """
    app = ClientApp()

    @app.train()
    def _train(message: Message, context: Context) -> Message:
        number = number_of(context)
        step = step_of(number, int(str(message.content.config_records["config"]["server-round"])))
        arrays = message.content.array_records["arrays"]
        updated = ArrayRecord({name: Array(array.numpy() + step) for name, array in arrays.items()})
        metrics = MetricRecord({"num-examples": examples_of(number), "train_loss": loss(number), "norm_bit": 1})
        return Message(RecordDict({"arrays": updated, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def _evaluate(message: Message, context: Context) -> Message:  # noqa: ARG001
        mean = float(np.mean(message.content.array_records["arrays"]["weights"].numpy()))
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 10, "mean": mean})}), reply_to=message)

    return app


def named_nodes(
    count: int, seconds: Sequence[float] | float = 1.0, loss: Callable[[int], float] = loss_of
) -> list[Node]:
    """Returns nodes of the clients c0, c1, …, all with the same status."""
    times = [float(seconds)] * count if isinstance(seconds, int | float) else list(seconds)
    return [named_node(f"c{row}", 100 + row, times[row], loss) for row in range(count)]


def named_node(client: str, node_id: int, seconds: float = 1.0, loss: Callable[[int], float] = loss_of) -> Node:
    config = {"client-id": client, "free_cpu": 1.0, "bandwidth": 2.0}
    return Node(node_id, with_status(plain_app(loss)), config, seconds)


def partitions(count: int) -> list[Node]:
    """Returns nodes of the clients 0, 1, …, identified by partition as in a simulation."""
    return [Node(100 + row, with_status(plain_app()), {"partition-id": row, "bandwidth": 2.0}) for row in range(count)]


# Strategies


def open_to_all(kind: Callable[..., AnyFedAvg] = FedAvg, **settings: Any) -> AnyFedAvg:  # type: ignore[assignment]
    """Returns a strategy that trains on all visible nodes."""
    return kind(**{"fraction_train": 1.0, "min_train_nodes": 1, "min_available_nodes": 1, **settings})


class Spy(FedAvg):
    """Records its calls and the names of the records that it sees."""

    def __init__(self) -> None:
        super().__init__(fraction_train=1.0, min_train_nodes=1, min_available_nodes=1)
        self.configured: list[int] = []
        self.evaluated: list[int] = []
        self.aggregated: list[list[str]] = []
        self.seen: set[str] = set()

    def configure_train(self, server_round: int, *args: Any) -> Iterable[Message]:
        self.configured.append(server_round)
        return super().configure_train(server_round, *args)

    def configure_evaluate(self, server_round: int, *args: Any) -> Iterable[Message]:
        self.evaluated.append(server_round)
        return super().configure_evaluate(server_round, *args)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        received = list(replies)
        self.aggregated.append(
            ["error" if reply.has_error() else str(reply.metadata.src_node_id - 100) for reply in received]
        )
        self._record_names(received)
        return super().aggregate_train(server_round, received)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> Any:
        received = list(replies)
        self._record_names(received)
        return super().aggregate_evaluate(server_round, received)

    def _record_names(self, replies: list[Message]) -> None:
        self.seen |= {name for reply in replies if reply.has_content() for name in reply.content}


def fair_selection(strategy: Strategy, scheduler: Scheduler | FleetClient | str, **settings: Any) -> FairSelection:
    """Returns a FairSelection; the settings in its three objects are given by their names."""
    kinds: dict[str, Any] = {"clients": ClientSettings, "exchange": ExchangeSettings, "versions": VersionSettings}
    for name, kind in kinds.items():
        given = [each.name for each in fields(kind) if each.name in settings]
        settings[name] = kind(**{each: settings.pop(each) for each in given})
    return FairSelection(strategy, scheduler, **settings)


def train(
    scheduler: Scheduler | FleetClient | str,
    grid: Grid,
    strategy: Strategy | None = None,
    *,
    rounds: int = 3,
    arrays: ArrayRecord | None = None,
    timeout: float = 3600,
    evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    train_config: ConfigRecord | None = None,
    poll: float = 0.25,
    **settings: Any,
) -> Result:
    """Trains a model under fair selection, whose other settings are given; by default with FedAvg."""
    fair = fair_selection(open_to_all() if strategy is None else strategy, scheduler, poll=poll, **settings)
    return fair.start(grid, arrays or model(0.0), rounds, timeout, train_config, evaluate_fn=evaluate_fn)


def between_rounds(action: Between) -> Callable[[int, ArrayRecord], MetricRecord | None]:
    """Returns an `evaluate_fn` that calls the action: the server's evaluation is the last step of each round."""

    def evaluate(server_round: int, arrays: ArrayRecord) -> None:  # noqa: ARG001
        action(server_round)

    return evaluate


def after(server_round: int, action: Callable[[], object]) -> Callable[[int, ArrayRecord], MetricRecord | None]:
    """Returns an `evaluate_fn` that calls the action once, after this round."""
    return between_rounds(lambda number: action() if number == server_round else None)


def turns_of(scheduler: Scheduler) -> dict[str, int]:
    """Returns the number of turns of each client."""
    return {client: len(scheduler.history(client)) for client in scheduler.clients}


def kinds_in(scheduler: Scheduler, number: int) -> dict[str, str | None]:
    """Returns the outcome of each client in a round of the fleet."""
    return {turn.id: turn.kind for turn in scheduler.history(round=number)}


def metrics_keys(metrics: Mapping[int, MetricRecord]) -> dict[int, list[str]]:
    return {number: sorted(record) for number, record in metrics.items()}
