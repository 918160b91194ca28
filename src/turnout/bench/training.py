"""What a federated round of training costs, beside a plain loop over the clients, measured in turns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from turnout.bench.plain_training import PlainRound
from turnout.bench.timing import in_turns
from turnout.lab.datasets import Dataset, find_source
from turnout.lab.learners.base import Cohort, Learner, Training
from turnout.lab.learners.devices import device_name, usable_device
from turnout.lab.learners.networks import Network, paper_network
from turnout.lab.learners.stacked_learner import StackedLearner
from turnout.lab.learners.torch_learner import TorchLearner

TASKS = ("fashion-mnist", "cifar-10")
LEAST = {"cuda": 20.0, "cpu": 1.4}  # times faster than the plain loop
SHAPES = {"digits": (8, 8, 1), "fashion-mnist": (28, 28, 1), "cifar-10": (32, 32, 3)}
CLIENTS, ITEMS, HELD = 8, 4000, 500
RUNS = 16  # stacked on a GPU
MOST_APART = 0.05  # of how far training moved the weights, in float32


@dataclass(frozen=True, slots=True)
class TrainingFigures:
    """Median wall seconds of a round of 8 clients with 500 items each."""

    dataset: str
    device: str
    batch: int
    plain_seconds: float
    round_seconds: float
    stacked_runs: int
    stacked_seconds: float
    apart: float
    least: float

    @property
    def speedup(self) -> float:
        """How many times faster than the plain loop one run's round is."""
        return self.plain_seconds / self.round_seconds

    @property
    def met(self) -> bool:
        """Whether that is enough."""
        return self.speedup >= self.least

    @property
    def stacked_speedup(self) -> float:
        """The same for a run among several that train together."""
        return self.plain_seconds / self.stacked_seconds


def measure_training(dataset: str, *, device: str = "cpu", batch: int = 10, repeats: int = 5) -> TrainingFigures:
    """A plain loop, one run, and on a GPU several runs at once; all from the same weights, and compared.

    The images are noise: what they show changes nothing about the time.
    """
    kind = usable_device(device)
    data, how = noise(dataset), Training(batch_size=batch, learning_rate=0.001)
    network = paper_network(data)
    learner, exact = _learners(data, network, how, device, kind)
    middle, width = data.brightness
    images = (torch.tensor(data.train_images, device=device).float() - middle) / width
    plain = PlainRound(network, how, images, torch.tensor(data.train_labels, device=device).long())
    start = network.initial_weights(0)
    sent = torch.tensor(start, device=device).float()
    rng = np.random.default_rng(0)
    orders = np.stack([rng.permutation(ITEMS)[None, :HELD] for _ in range(CLIENTS)])
    cohort = Cohort(learner.loaded(start), orders, np.ones(CLIENTS))
    together = [cohort] * (RUNS if kind == "cuda" else 1)
    tasks = [lambda: plain.train(sent, orders), lambda: learner.train([cohort]), lambda: learner.train(together)]
    checked = Cohort(exact.loaded(start), orders, np.ones(CLIENTS))
    given = np.asarray(exact.saved(exact.train([checked])[0].weights), dtype=np.float64)  # first: it forks
    expected = plain.train(sent, orders)[0].cpu().numpy().astype(np.float64)
    apart = float(np.linalg.norm(given - expected) / np.linalg.norm(expected - start))
    if not apart < MOST_APART:
        raise AssertionError(
            f"the plain loop ends elsewhere (apart by {apart:.3g} of the way): one of the two is wrong"
        )
    seconds = in_turns(tasks if kind == "cuda" else tasks[:2], repeats)
    learner.close()
    stacked = seconds[2] / RUNS if kind == "cuda" else seconds[1]
    name = device_name(device)
    return TrainingFigures(dataset, name, batch, seconds[0], seconds[1], len(together), stacked, apart, LEAST[kind])


def _learners(data: Dataset, network: Network, how: Training, device: str, kind: str) -> tuple[Learner, Learner]:
    """The one that is timed, and one with float32 products, which is compared with the plain loop."""
    if kind == "cpu":
        learner = TorchLearner(data, network, how)
        return learner, learner
    stacked = StackedLearner(data, network, how, device=device)
    return stacked, StackedLearner(data, network, how, device=device, precision="float32")


def noise(dataset: str) -> Dataset:
    """Images of the dataset's shape with nothing on them."""
    source, rng = find_source(dataset), np.random.default_rng(0)
    images = rng.integers(0, source.brightest + 1, (ITEMS, *SHAPES[dataset]), dtype=np.uint8)
    labels = rng.integers(0, len(source.classes), ITEMS, dtype=np.uint8)
    return Dataset(dataset, source.classes, images, labels, images[:10], labels[:10], brightest=source.brightest)
