"""Flower with virtual nodes in this process, a grid without a SuperLink: the times of its rounds."""

from __future__ import annotations

import gc
import itertools
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Strategy

from turnout.adapters.flower.client import with_status
from turnout.adapters.flower.selection import FairSelection
from turnout.live import FleetStatus, Scheduler

try:  # a message needs the id of its sender; in older versions the grid sets it
    from flwr.supercore.task_identity import TaskIdentity
except ModuleNotFoundError:
    pass
else:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

RUN = 1  # the number of the Flower run
FIRST_NODE = 1000
#: A folder on a disk, by convention: flushes of the fleet file count.
DISK = Path("/var/tmp")
#: The number of rounds after the first one in each run, with evaluation and without.
LATER, LATER_UNEVALUATED = 2, 10


def measure_rounds(
    nodes: int, cohort: int, repeats: int, evaluated: float, weights: int
) -> dict[str, tuple[float, float]]:
    """Runs plain FedAvg and FairSelection alternately, with a client that only adds 1 to the model.

    Returns the shortest seconds of the CPU and by the clock, because other programs can only make a round longer: of a
    round of plain FedAvg, of a later and of the first round with fair selection, and of the first one in which nodes
    must be queried; without evaluation, also of what the fleet alone does in a later round.

    Args:
        nodes: The number of virtual nodes.
        cohort: The number of clients per round.
        repeats: The number of runs of each kind, which have a first round and later ones.
        evaluated: The share of the nodes that evaluate the model.
        weights: The number of weights of the model.
    """
    model = ArrayRecord({"weights": Array(np.zeros(weights, dtype=np.float32))})
    app, fair_app = trivial_app(), with_status(trivial_app())
    seconds: dict[str, list[tuple[float, float]]] = {"plain": [], "later": [], "first": [], "first, queried": []}
    if not evaluated:
        seconds["the fleet alone"] = []
    rounds = 1 + (LATER if evaluated else LATER_UNEVALUATED)
    for _ in range(repeats):
        strategy = FedAvg(
            fraction_train=cohort / nodes,
            fraction_evaluate=evaluated,
            min_train_nodes=cohort,
            min_available_nodes=cohort,
        )
        seconds["plain"] += _round_times(strategy, VirtualGrid(app, nodes), rounds, model)
        first, *later = _fair_times(VirtualGrid(fair_app, nodes), cohort, rounds, evaluated, model)
        seconds["first"].append(first)
        seconds["later"] += later
        queried = VirtualGrid(fair_app, nodes, are_named=False)
        seconds["first, queried"] += _fair_times(queried, cohort, 1, evaluated, model)
        if not evaluated:
            seconds["the fleet alone"] += _fleet_times(nodes, cohort, rounds)[1:]
    return {kind: (min(cpu for cpu, _ in times), min(wall for _, wall in times)) for kind, times in seconds.items()}


def trivial_app() -> ClientApp:
    """Returns a client app that adds 1 to each weight."""
    app = ClientApp()

    @app.train()
    def _train(message: Message, _: Context) -> Message:
        arrays = message.content.array_records["arrays"]
        updated = ArrayRecord({name: Array(array.numpy() + 1) for name, array in arrays.items()})
        metrics = MetricRecord({"num-examples": 10, "train_loss": 0.5})
        return Message(RecordDict({"arrays": updated, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def _evaluate(message: Message, _: Context) -> Message:
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 10, "loss": 0.5})}), reply_to=message)

    return app


def _fair_times(
    grid: VirtualGrid, cohort: int, rounds: int, evaluated: float, model: ArrayRecord
) -> list[tuple[float, float]]:
    """Returns the times of the rounds of a new fleet."""
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=evaluated, min_train_nodes=1, min_available_nodes=1)
    with _new_fleet(len(grid.get_node_ids()), cohort) as scheduler:
        return _round_times(FairSelection(strategy, scheduler), grid, rounds, model)


def _fleet_times(nodes: int, cohort: int, rounds: int) -> list[tuple[float, float]]:
    """Returns the times of the rounds of a new fleet without Flower: selecting, reporting, closing."""
    statuses = FleetStatus({"free_cpu": np.ones(nodes), "bandwidth": np.ones(nodes)}, np.arange(nodes))
    moments = []
    with _new_fleet(nodes, cohort) as scheduler, _uncollected():
        scheduler.register([f"client-{number}" for number in range(nodes)])
        for _ in range(rounds + 1):
            moments.append((time.process_time(), time.perf_counter()))
            selected = scheduler.choose(statuses)
            scheduler.report_many(dict.fromkeys(selected, 1.0), losses=dict.fromkeys(selected, 0.5))
            scheduler.close_round()
    return _differences(moments)


@contextmanager
def _new_fleet(nodes: int, cohort: int) -> Iterator[Scheduler]:
    settings = {"cohort_size": cohort, "guaranteed_rate": cohort / nodes / 2}
    with (
        tempfile.TemporaryDirectory(dir=DISK if DISK.is_dir() else None) as folder,
        Scheduler.open(Path(folder, "fleet.turnout"), settings=settings, deadline=600.0) as scheduler,
    ):
        yield scheduler


def _round_times(
    strategy: Strategy | FairSelection, grid: Grid, rounds: int, model: ArrayRecord
) -> list[tuple[float, float]]:
    """Returns the seconds of the CPU and by the clock of each round."""
    moments: list[tuple[float, float]] = []
    with _uncollected():
        strategy.start(
            grid, model, rounds, evaluate_fn=lambda *_: moments.append((time.process_time(), time.perf_counter()))
        )
    return _differences(moments)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Switches garbage collection off, like `timeit`."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _differences(moments: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(cpu, wall) for cpu, wall in np.diff(moments, axis=0).tolist()]


class VirtualGrid(Grid):
    """Calls the client app of a node when a message is pushed; its reply is there at once.

    Messages and replies are serialized and parsed, as on their way to another process.

    Args:
        app: the client app of all nodes.
        nodes: the number of nodes; node i has the partition-id i.
        are_named: whether the grid knows the nodes by name, like a SuperLink at which they are registered.
    """

    def __init__(self, app: ClientApp, nodes: int, *, are_named: bool = True) -> None:
        self._app, self._partitions = app, {FIRST_NODE + partition: partition for partition in range(nodes)}
        unknown = dict.fromkeys(("owner_name", "location", "registered_at", "last_activated_at"), "")
        self._descriptions = [
            SimpleNamespace(node_id=node, **{**unknown, "name": f"client-{number}" if are_named else ""})
            for node, number in self._partitions.items()
        ]
        self._replies: dict[str, Message] = {}
        self._numbers = itertools.count(1)

    def get_node_ids(self) -> list[int]:
        """Returns the ids of all nodes."""
        return list(self._partitions)

    def get_nodes(self) -> Any:
        """Returns the descriptions of all nodes."""
        return self._descriptions

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Delivers the messages and keeps the replies."""
        ids = []
        for message in messages:
            message_id = f"message-{next(self._numbers)}"
            stamp_message(message, message_id)
            self._replies[message_id] = self._answer(message)
            ids.append(message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Returns the replies to these messages."""
        return [self._replies.pop(message_id) for message_id in list(message_ids) if message_id in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Delivers the messages and returns the replies."""
        del timeout  # nothing is waited for
        return self.pull_messages(self.push_messages(messages))

    def _answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        config: dict[str, bool | float | int | str] = {"partition-id": self._partitions[node], "free_cpu": 1.0}
        reply = self._app(_copy(message), Context(RUN, node, {**config, "bandwidth": 1.0}, RecordDict(), {}))
        stamp_reply(reply, message, node)
        return _copy(reply)

    # What neither strategies nor the adapter use of a grid.
    run: Any = None
    set_run: Any = None
    create_message: Any = None


# A grid without a SuperLink must set what the SuperLink sets.


def stamp_message(message: Message, message_id: str) -> None:
    """Gives a message its id."""
    message.metadata.__dict__["_message_id"] = message_id


def stamp_reply(reply: Message, message: Message, node: int) -> None:
    """Makes a reply the answer of a node to a message."""
    reply.metadata.__dict__["_src_node_id"] = node
    reply.metadata.__dict__["_reply_to_message_id"] = message.metadata.message_id


def _copy(message: Message) -> Message:
    proto = message_to_proto(message)
    return message_from_proto(type(proto).FromString(proto.SerializeToString()))
