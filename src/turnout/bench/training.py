"""Measures a federated round of training: 8 clients with 500 items each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from turnout.bench.timing import in_turns
from turnout.kernel.arrays import FloatArray, IntArray
from turnout.lab.training.datasets import Dataset, find_source
from turnout.lab.training.learners.base import Cohort, Learner, Training
from turnout.lab.training.learners.devices import device_name, usable_device
from turnout.lab.training.learners.module_learner import cnn_learner
from turnout.lab.training.learners.networks import Network, paper_network
from turnout.lab.training.learners.stacked_learner import StackedLearner

TASKS = ("fashion-mnist", "cifar-10")
SHAPES = {"digits": (8, 8, 1), "fashion-mnist": (28, 28, 1), "cifar-10": (32, 32, 3)}
CLIENTS, ITEMS, HELD = 8, 4000, 500
RUNS = 16  # stacked on a GPU


@dataclass(frozen=True, slots=True)
class TrainingFigures:
    """Median wall-clock seconds of a round.

    `stacked_seconds` is the time per run if `stacked_runs` runs train at once, which only a GPU does.
    """

    dataset: str
    device: str
    batch: int
    round_seconds: float
    stacked_runs: int
    stacked_seconds: float

    @property
    def items_per_second(self) -> float:
        """Training items that one run processes per second."""
        return CLIENTS * HELD / self.round_seconds

    @property
    def stacked_speedup(self) -> float:
        """Time of a round of one run, divided by the time per run if several runs train at once."""
        return self.round_seconds / self.stacked_seconds


@dataclass(frozen=True, slots=True)
class TrainingCase:
    """A round of training that is ready to be measured: learner, initial weights and the order of the items."""

    dataset: Dataset
    network: Network
    training: Training
    device: str
    kind: str
    learner: Learner
    start: FloatArray
    orders: IntArray

    def cohort(self, learner: Learner) -> Cohort:
        """Returns the cohort of the round for this learner."""
        return Cohort(learner.loaded(self.start), self.orders, np.ones(CLIENTS))

    @property
    def stacked_runs(self) -> int:
        """The number of runs that train at once in the second task."""
        return RUNS if self.kind == "cuda" else 1

    def tasks(self) -> list[Callable[[], object]]:
        """Returns a round of one run and, on a GPU, a round of several runs at once."""
        cohort = self.cohort(self.learner)
        together = [cohort] * self.stacked_runs
        tasks: list[Callable[[], object]] = [lambda: self.learner.train([cohort])]
        return [*tasks, lambda: self.learner.train(together)] if self.kind == "cuda" else tasks


def training_case(dataset: str, *, device: str = "cpu", batch: int = 10) -> TrainingCase:
    """Prepares a round on `device`. The images are noise, since their content does not change the time."""
    kind = usable_device(device)
    data, how = noise(dataset), Training(batch_size=batch, learning_rate=0.001)
    network = paper_network(data)
    learner: Learner = (
        cnn_learner(data, network, how) if kind == "cpu" else StackedLearner(data, network, how, device=device)
    )
    rng = np.random.default_rng(0)
    orders = np.stack([rng.permutation(ITEMS)[None, :HELD] for _ in range(CLIENTS)])
    return TrainingCase(data, network, how, device, kind, learner, network.initial_weights(0), orders)


def measure_training(dataset: str, *, device: str = "cpu", batch: int = 10, repeats: int = 5) -> TrainingFigures:
    """Measures a round of one run and, on a GPU, of several runs at once."""
    case = training_case(dataset, device=device, batch=batch)
    seconds = in_turns(case.tasks(), repeats)
    case.learner.close()
    runs = case.stacked_runs
    return TrainingFigures(dataset, device_name(device), batch, seconds[0], runs, seconds[-1] / runs)


def noise(dataset: str) -> Dataset:
    """Returns random images with the shape and the classes of the dataset."""
    source, rng = find_source(dataset), np.random.default_rng(0)
    images = rng.integers(0, source.brightest + 1, (ITEMS, *SHAPES[dataset]), dtype=np.uint8)
    labels = rng.integers(0, len(source.classes), ITEMS, dtype=np.uint8)
    return Dataset(dataset, source.classes, images, labels, images[:10], labels[:10], brightest=source.brightest)
