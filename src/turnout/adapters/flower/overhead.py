"""Measures what fair selection adds to a round of plain FedAvg."""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Strategy

from turnout.adapters.flower.client import with_status
from turnout.adapters.flower.selection import FairSelection
from turnout.adapters.flower.virtual import VirtualGrid
from turnout.live import Scheduler
from turnout.log import silenced

#: Targets: a round, and the first round, in units of a round of plain FedAvg with its default settings.
MOST_ROUND, MOST_FIRST = 1.5, 5.0
#: The number of weights of the model.
WEIGHTS = 1000
#: The number of rounds after the first one in each run.
LATER = 2
#: A folder in memory, on Linux: the fleet is written to it, so that fsyncs do not count.
MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """The shortest CPU seconds of a round of each kind: other programs can only make it longer.

    Attributes:
        plain: A round of plain FedAvg.
        fair: A later round with fair selection.
        first: The first round with fair selection, if the grid names its nodes.
        query: The first round with fair selection, if each node must be queried for its client id.
    """

    plain: float
    fair: float
    first: float
    query: float


@dataclass(frozen=True, slots=True)
class OverheadFigures:
    """What fair selection costs.

    Attributes:
        nodes: The number of virtual nodes.
        cohort: The number of clients per round.
        default: Rounds in which all nodes evaluate the model, which is Flower's default.
        train_only: Rounds without evaluation.
    """

    nodes: int
    cohort: int
    default: RoundTimes
    train_only: RoundTimes

    @property
    def ratio(self) -> float:
        """A later round in units of a round of plain FedAvg."""
        return self.default.fair / self.default.plain

    @property
    def first_ratio(self) -> float:
        """The first round in units of a round of plain FedAvg."""
        return self.default.first / self.default.plain


def measure_overhead(
    *, nodes: int = 2000, cohort: int = 20, repeats: int = 9, watch: Callable[[str], None] = lambda _: None
) -> OverheadFigures:
    """Runs plain FedAvg and FairSelection in turns, with a client that only adds 1 to the model.

    Args:
        nodes: The number of virtual nodes.
        cohort: The number of clients per round.
        repeats: The number of runs of each kind, which have a first round and two later ones.
        watch: Called with a description of each step.
    """
    with silenced("flwr"):  # it would cost both kinds of rounds the same
        watch("rounds with evaluation")
        default = _measure(nodes, cohort, repeats, evaluated=1.0)
        watch("rounds without evaluation")
        return OverheadFigures(nodes, cohort, default, _measure(nodes, cohort, repeats, evaluated=0.0))


def _measure(nodes: int, cohort: int, repeats: int, *, evaluated: float) -> RoundTimes:
    app, fair_app = trivial_app(), with_status(trivial_app())
    plain, fair, first, query = list[float](), list[float](), list[float](), list[float]()
    for _ in range(repeats):
        strategy = FedAvg(
            fraction_train=cohort / nodes,
            fraction_evaluate=evaluated,
            min_train_nodes=cohort,
            min_available_nodes=cohort,
        )
        plain += _round_times(strategy, VirtualGrid(app, nodes), LATER + 1)
        seconds = _fair_times(VirtualGrid(fair_app, nodes), cohort, LATER + 1, evaluated)
        first.append(seconds[0])
        fair += seconds[1:]
        query += _fair_times(VirtualGrid(fair_app, nodes, are_named=False), cohort, 1, evaluated)
    return RoundTimes(*map(min, (plain, fair, first, query)))


def trivial_app() -> ClientApp:
    """Returns a client app that adds 1 to each weight."""
    app = ClientApp()

    @app.train()
    def _train(message: Message, context: Context) -> Message:
        del context
        arrays = message.content.array_records["arrays"]
        updated = ArrayRecord({name: Array(array.numpy() + 1) for name, array in arrays.items()})
        metrics = MetricRecord({"num-examples": 10, "train_loss": 0.5})
        return Message(RecordDict({"arrays": updated, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def _evaluate(message: Message, context: Context) -> Message:
        del context
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 10, "loss": 0.5})}), reply_to=message)

    return app


def _fair_times(grid: VirtualGrid, cohort: int, rounds: int, evaluated: float) -> list[float]:
    """Returns the times of the rounds of a new fleet."""
    settings = {"cohort_size": cohort, "guaranteed_rate": cohort / len(grid.get_node_ids()) / 2}
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=evaluated, min_train_nodes=1, min_available_nodes=1)
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        path = Path(folder) / "fleet.turnout"
        with Scheduler.open(path, settings=settings, deadline=600.0) as scheduler:
            return _round_times(FairSelection(strategy, scheduler), grid, rounds)


def _round_times(strategy: Strategy, grid: Grid, rounds: int) -> list[float]:
    """Returns the CPU seconds of each round, without garbage collection, as `timeit` measures."""
    moments: list[float] = []

    def note(server_round: int, arrays: ArrayRecord) -> None:
        del server_round, arrays
        moments.append(time.thread_time())

    model = ArrayRecord({"weights": Array(np.zeros(WEIGHTS, dtype=np.float32))})
    gc.collect()
    gc.disable()
    try:
        strategy.start(grid, model, num_rounds=rounds, evaluate_fn=note)
    finally:
        gc.enable()
    return np.diff(moments).tolist()
