"""Flower without its processes: a grid whose nodes are called, with every way in which they can let us down."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from turnout.adapters.flower.client import with_status
from turnout.scheduler import Scheduler

try:  # a message needs to know who sends it; older versions let the grid say so
    from flwr.supercore.task_identity import TaskIdentity
except ModuleNotFoundError:
    pass
else:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

SUPERLINK = 1  # the node in whose name the SuperLink answers for one that is gone
LONG = 1e6  # seconds: who waits so long waits for ever
Any_ = TypeVar("Any_", bound=FedAvg)
Between = Callable[[int], object]


class Clock:
    """Time that passes when somebody sleeps, and never else; in steps without rounding errors, as a test likes them."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._coming: list[tuple[float, Callable[[], object]]] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        assert self.now < LONG, "waits for ever"
        for coming in list(self._coming):
            if coming[0] <= self.now:
                self._coming.remove(coming)
                coming[1]()

    def after(self, seconds: float, do: Callable[[], object]) -> None:
        """Something that happens while others sleep."""
        self._coming.append((self.now + seconds, do))


@dataclass
class Node:
    """One SuperNode. `seconds`: how long it trains; `trouble`: what becomes of the messages of these kinds."""

    node_id: int
    app: ClientApp
    config: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    trouble: str | None = None  # "raises", "silent", "gone", "unsent"
    troubled: tuple[str, ...] = ("train",)

    @property
    def name(self) -> str:
        return str(self.config.get("client-id", self.config.get("partition-id", self.node_id)))


@dataclass
class Sent:
    """A message that was pushed."""

    kind: str
    node_id: int
    client: str
    ttl: float
    content: RecordDict


class InProcessGrid(Grid):
    """Calls the clients' apps when messages are pushed, and hands replies over when they are due.

    `tells_unsent`: a message that could not be sent is None in the answer, or just not there. `before`: is told what
    is about to happen, "push" or "pull".
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
        """The newest node of this client."""
        return [node for node in self.nodes.values() if node.name == name][-1]

    def sent(self, kind: str) -> list[list[Sent]]:
        """The messages of this kind, by push."""
        pushes = ([one for one in push if one.kind == kind] for push in self.pushes)
        return [push for push in pushes if push]

    def asked(self, kind: str) -> list[list[str]]:
        """Which clients got messages of this kind, by push, in order."""
        return [sorted(one.client for one in push) for push in self.sent(kind)]

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        self.before("push")
        ids: list[Any] = []
        push: list[Sent] = []
        self.pushes.append(push)
        for message in messages:
            number = f"message {next(self._number)}"
            told = message.metadata
            told.__dict__["_message_id"] = number
            node = self.nodes.get(told.dst_node_id)
            kind = told.message_type.split(".")[0]
            name = "nobody" if node is None else node.name
            push.append(Sent(told.message_type, told.dst_node_id, name, told.ttl, message.content))
            if node is not None and node.trouble == "unsent" and kind in node.troubled:
                ids += [None] if self._tells_unsent else []
                continue
            if node is not None:
                self._answer(node, message, kind)
            ids.append(number)
        return ids

    def _answer(self, node: Node, message: Message, kind: str) -> None:
        trouble = node.trouble if kind in node.troubled else None
        if trouble == "silent":
            return
        if trouble == "gone":
            reply = Message(Error(code=5, reason="node unavailable"), reply_to=message)
            reply.metadata.__dict__["_src_node_id"] = SUPERLINK
        else:
            content = RecordDict(dict(message.content))
            received = Message(content, dst_node_id=node.node_id, message_type=message.metadata.message_type)
            received.metadata.__dict__["_message_id"] = message.metadata.message_id
            context = Context(1, node.node_id, node.config, RecordDict(), {})
            try:
                if trouble == "raises":
                    raise RuntimeError("out of memory")
                reply = node.app(received, context)
            except Exception as raised:  # as the SuperNode does
                reply = Message(Error(code=2, reason=str(raised)), reply_to=received)
            reply.metadata.__dict__["_src_node_id"] = node.node_id
        reply.metadata.__dict__["_reply_to_message_id"] = message.metadata.message_id
        due = time.monotonic() + (node.seconds if kind == "train" else 0.0)
        self._due[message.metadata.message_id] = (due, reply)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        self.before("pull")
        now = time.monotonic()
        due = [one for one in message_ids if one in self._due and self._due[one][0] <= now]
        return [self._due.pop(one)[1] for one in due]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        raise NotImplementedError("Flower's own way to wait is not used")

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **more: Any) -> Message:
        raise NotImplementedError


# Models and apps


def model(*numbers: float) -> ArrayRecord:
    """A model of one array."""
    return ArrayRecord({"weights": Array(np.array(numbers, dtype=np.float64))})


def weights(arrays: ArrayRecord | None) -> list[float]:
    """Its numbers."""
    assert arrays is not None
    return [float(number) for number in arrays["weights"].numpy()]


def step_of(number: int, server_round: int) -> float:
    """How far the client of this number moves every weight in this round."""
    return 1 + number + number**2 / 8 + server_round / 4


def examples_of(number: int) -> int:
    return 10 * (number + 1)


def loss_of(number: int) -> float:
    return 0.5 + number / 8


def number_of(context: Context) -> int:
    """Client "c7" and partition 7 have the number 7, one without a number has 0."""
    config = context.node_config
    name = str(config.get("client-id", config.get("partition-id", "0")))
    return int("".join(filter(str.isdecimal, name)) or 0)


def plain_app() -> ClientApp:
    """A ClientApp whose every client moves the model by its own step, and evaluates to the mean of the weights."""
    app = ClientApp()

    @app.train()
    def _train(message: Message, context: Context) -> Message:
        number = number_of(context)
        step = step_of(number, int(str(message.content.config_records["config"]["server-round"])))
        arrays = message.content.array_records["arrays"]
        moved = ArrayRecord({name: Array(array.numpy() + step) for name, array in arrays.items()})
        metrics = MetricRecord({"num-examples": examples_of(number), "train_loss": loss_of(number), "norm_bit": 1})
        return Message(RecordDict({"arrays": moved, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def _evaluate(message: Message, context: Context) -> Message:  # noqa: ARG001
        mean = float(np.mean(message.content.array_records["arrays"]["weights"].numpy()))
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 10, "mean": mean})}), reply_to=message)

    return app


def named_nodes(count: int, seconds: Sequence[float] | float = 1.0) -> list[Node]:
    """Clients c0, c1, …, in the same condition."""
    took = [float(seconds)] * count if isinstance(seconds, int | float) else list(seconds)
    return [named_node(f"c{row}", 100 + row, took[row]) for row in range(count)]


def named_node(client: str, node_id: int, seconds: float = 1.0) -> Node:
    config = {"client-id": client, "free_cpu": 1.0, "bandwidth": 2.0}
    return Node(node_id, with_status(plain_app()), config, seconds)


def partitions(count: int) -> list[Node]:
    """Clients 0, 1, …, as a simulation has them."""
    return [Node(100 + row, with_status(plain_app()), {"partition-id": row, "bandwidth": 2.0}) for row in range(count)]


# Strategies


def open_to_all(kind: Callable[..., Any_] = FedAvg, **settings: Any) -> Any_:  # type: ignore[assignment]
    """A strategy that takes all it is shown."""
    return kind(**{"fraction_train": 1.0, "min_train_nodes": 1, "min_available_nodes": 1, **settings})


class Spy(FedAvg):
    """Notes what it is asked, and which records it sees."""

    def __init__(self) -> None:
        super().__init__(fraction_train=1.0, min_train_nodes=1, min_available_nodes=1)
        self.configured: list[int] = []
        self.aggregated: list[list[str]] = []
        self.seen: set[str] = set()

    def configure_train(self, server_round: int, *args: Any) -> Iterable[Message]:
        self.configured.append(server_round)
        return super().configure_train(server_round, *args)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        answered = list(replies)
        self.aggregated.append(
            ["error" if one.has_error() else str(one.metadata.src_node_id - 100) for one in answered]
        )
        self._see(answered)
        return super().aggregate_train(server_round, answered)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> Any:
        answered = list(replies)
        self._see(answered)
        return super().aggregate_evaluate(server_round, answered)

    def _see(self, replies: list[Message]) -> None:
        self.seen |= {name for reply in replies if reply.has_content() for name in reply.content}


def between_rounds(do: Between) -> Callable[[int, ArrayRecord], MetricRecord | None]:
    """As the server's evaluation, which comes last in a round: something that happens after this round."""

    def happen(server_round: int, arrays: ArrayRecord) -> None:  # noqa: ARG001
        do(server_round)

    return happen


def after(server_round: int, do: Callable[[], object]) -> Callable[[int, ArrayRecord], MetricRecord | None]:
    """Something that happens once, after this round."""
    return between_rounds(lambda number: do() if number == server_round else None)


def turns_of(scheduler: Scheduler) -> dict[str, int]:
    """How often each client was asked."""
    return {client: len(scheduler.history(client)) for client in scheduler.clients}


def kinds_in(scheduler: Scheduler, number: int) -> dict[str, str | None]:
    """What became of each client in a round of the fleet."""
    return {turn.id: turn.kind for turn in scheduler.turns(number)}


def metrics_keys(metrics: Mapping[int, MetricRecord]) -> dict[int, list[str]]:
    return {number: sorted(record) for number, record in metrics.items()}
