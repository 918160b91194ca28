"""What trains: a Learner, and the simplest one.

Weights are flat vectors, one row a model. Then averaging, checkpoints and the check for models that diverged are the
same for every learner, and a learner is free to stack as many models as it likes into one computation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

from turnout.kernel.arrays import BoolArray, FloatArray, IntArray, as_count, as_number
from turnout.kernel.errors import SettingError
from turnout.kernel.randomness import round_rng
from turnout.lab.datasets import Dataset
from turnout.lab.partition import Partition


@dataclass(frozen=True, slots=True)
class Training:
    """How a client trains: stochastic gradient descent on its own items.

    `proximal` above 0 is FedProx: it pulls a client's weights towards those it was sent, by proximal/2 · ‖w − w₀‖².
    """

    epochs: int = 1
    batch: int = 32
    rate: float = 0.05
    momentum: float = 0.0
    weight_decay: float = 0.0
    proximal: float = 0.0

    def __post_init__(self) -> None:
        as_count("epochs", self.epochs, SettingError)
        as_count("batch", self.batch, SettingError)
        as_number("rate", self.rate, SettingError, above=0)
        as_number("momentum", self.momentum, SettingError, least=0, most=1)
        as_number("weight_decay", self.weight_decay, SettingError, least=0)
        as_number("proximal", self.proximal, SettingError, least=0)


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """What came back: one row of weights and one mean training loss a client."""

    weights: FloatArray
    losses: FloatArray

    @property
    def sound(self) -> BoolArray:
        """Whose weights are all finite; the others diverged and must not be averaged."""
        finite: BoolArray = np.isfinite(self.weights).all(axis=1) & np.isfinite(self.losses)
        return finite


class Learner(Protocol):
    """Trains cohorts and tells how good a model is."""

    def initial_weights(self, seed: int) -> FloatArray:
        """A fresh model, (parameters,)."""

    def train(self, weights: FloatArray, clients: Sequence[int], *, seed: int, round: int) -> Trained:  # noqa: A002
        """Let these clients train from the same weights."""

    def evaluate(self, weights: FloatArray) -> float:
        """Accuracy on the test set."""


def average(trained: Trained, items: IntArray) -> FloatArray | None:
    """The mean of the sound models, each weighted by how many items it was trained on; None if none is sound."""
    sound = trained.sound
    if not sound.any():
        return None
    shares = items[sound] / items[sound].sum()
    mean: FloatArray = shares @ trained.weights[sound]
    return mean


class NumpyLearner:
    """Softmax regression, or with `hidden` units a network of one hidden layer: small, exact, and without torch.

    All clients of a cohort are trained in one stacked computation, which gives what training them one by one gives.
    """

    def __init__(
        self, dataset: Dataset, holdings: Partition, training: Training | None = None, *, hidden: int = 32
    ) -> None:
        self.training = training or Training()
        self.holdings = holdings
        as_count("hidden", hidden, SettingError, least=0)
        self._train = _flat(dataset.train_images, dataset.brightest)
        self._labels = dataset.train_labels.astype(np.int64)
        self._test = _flat(dataset.test_images, dataset.brightest)
        self._test_labels = dataset.test_labels.astype(np.int64)
        sizes = [self._train.shape[1], *([hidden] if hidden else []), len(dataset.classes)]
        self._shapes = [shape for before, after in pairwise(sizes) for shape in ((before, after), (after,))]

    @property
    def parameters(self) -> int:
        """How many numbers a model is."""
        return sum(int(np.prod(shape)) for shape in self._shapes)

    def initial_weights(self, seed: int) -> FloatArray:
        """He's normal draws for the layers, zeros for the biases."""
        rng = round_rng(seed, "initial weights", 0)
        parts = [
            rng.standard_normal(shape) * np.sqrt(2 / shape[0]) if len(shape) == 2 else np.zeros(shape)
            for shape in self._shapes
        ]
        return np.concatenate([part.ravel() for part in parts])

    def train(self, weights: FloatArray, clients: Sequence[int], *, seed: int, round: int) -> Trained:  # noqa: A002
        """Each client's batches are drawn for it and this round alone: who else trains changes nothing."""
        how = self.training
        start = np.repeat(weights[None], len(clients), axis=0)
        models, momentum = start.copy(), np.zeros_like(start)
        total, batches = np.zeros(len(clients)), 0
        with np.errstate(over="ignore", invalid="ignore"):  # a model that diverges is told by its weights
            for epoch in range(how.epochs):
                order = self._orders(clients, seed, round, epoch)
                for first in range(0, order.shape[1], how.batch):
                    items = order[:, first : first + how.batch]
                    losses, slopes = self._slopes(models, self._train[items], self._labels[items])
                    slopes += how.weight_decay * models + how.proximal * (models - start)
                    momentum = how.momentum * momentum + slopes
                    models = models - how.rate * momentum
                    total += losses
                    batches += 1
        return Trained(models, total / max(batches, 1))

    def evaluate(self, weights: FloatArray) -> float:
        """The share of test images whose likeliest class is theirs."""
        with np.errstate(over="ignore", invalid="ignore"):
            scores = self._forward(weights[None], self._test[None])[-1][0]
        return float((scores.argmax(axis=1) == self._test_labels).mean())

    def _orders(self, clients: Sequence[int], seed: int, round: int, epoch: int) -> IntArray:  # noqa: A002
        orders = []
        for client in clients:
            held = self.holdings.items[client]
            orders.append(round_rng(seed, f"batches of {client}, epoch {epoch}", round).permutation(held))
        return np.array(orders, dtype=np.int64).reshape(len(clients), self.holdings.items.shape[1])

    def _layers(self, models: FloatArray) -> list[FloatArray]:
        """Views of the flat weights, (models, …) each."""
        layers, place = [], 0
        for shape in self._shapes:
            size = int(np.prod(shape))
            layers.append(models[:, place : place + size].reshape(len(models), *shape))
            place += size
        return layers

    def _forward(self, models: FloatArray, images: FloatArray) -> list[FloatArray]:
        """The input of each layer, and the scores: (models, items, …)."""
        layers = self._layers(models)
        values = [images]
        for depth in range(0, len(layers), 2):
            scores = values[-1] @ layers[depth] + layers[depth + 1][:, None, :]
            values.append(np.maximum(scores, 0.0) if depth + 2 < len(layers) else scores)
        return values

    def _slopes(self, models: FloatArray, images: FloatArray, labels: IntArray) -> tuple[FloatArray, FloatArray]:
        """Mean cross-entropy of each model on its batch, and its gradient, flat."""
        values = self._forward(models, images)
        scores = values[-1] - values[-1].max(axis=2, keepdims=True)
        chances = np.exp(scores)
        chances /= chances.sum(axis=2, keepdims=True)
        right = np.take_along_axis(chances, labels[:, :, None], axis=2)[:, :, 0]
        losses = -np.log(np.maximum(right, 1e-300)).mean(axis=1)
        losses = np.where(np.isnan(right).any(axis=1), np.nan, losses)
        error = chances
        np.put_along_axis(error, labels[:, :, None], right[:, :, None] - 1, axis=2)
        error /= labels.shape[1]
        layers = self._layers(models)
        slopes: list[FloatArray] = []
        for depth in range(len(layers) - 2, -1, -2):
            before = values[depth // 2]
            slopes.insert(0, error.sum(axis=1))
            slopes.insert(0, before.transpose(0, 2, 1) @ error)
            if depth:
                error = (error @ layers[depth].transpose(0, 2, 1)) * (before > 0)
        return losses, np.concatenate([part.reshape(len(models), -1) for part in slopes], axis=1)


def _flat(images: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], brightest: int) -> FloatArray:
    return images.reshape(len(images), -1) / brightest
