"""The simplest learner: small, exact, and without torch."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import numpy.typing as npt

from turnout.kernel.arrays import FloatArray, IntArray
from turnout.lab.datasets import Dataset
from turnout.lab.learners.base import Cohort, Training, TrainingResult, average_models
from turnout.lab.learners.networks import perceptron


class NumpyLearner:
    """Softmax regression, or with `hidden` units a network of one hidden layer.

    All clients of a cohort are trained in one stacked computation, which gives what training them one by one gives.
    """

    def __init__(self, dataset: Dataset, training: Training | None = None, *, hidden: int = 32) -> None:
        self.training = training or Training()
        self.network = perceptron(dataset, hidden)
        self._train = _flat(dataset.train_images, dataset.brightest)
        self._labels = dataset.train_labels.astype(np.int64)
        self._test = _flat(dataset.test_images, dataset.brightest)
        self._test_labels = dataset.test_labels.astype(np.int64)

    def initial_weights(self, seed: int) -> FloatArray:
        """A fresh model."""
        return self.network.initial_weights(seed)

    def train(self, cohorts: Sequence[Cohort]) -> list[TrainingResult]:
        """One cohort after the other."""
        taught = []
        for cohort in cohorts:
            models, losses = self.train_clients(cohort.weights, cohort.orders)
            taught.append(average_models(cohort.weights, models, losses, cohort.shares))
        return taught

    def train_clients(self, weights: FloatArray, orders: IntArray) -> tuple[FloatArray, FloatArray]:
        """The trained model of each client, one a row, and its mean loss."""
        how = self.training
        clients, epochs, held = orders.shape
        start = np.repeat(weights[None], clients, axis=0)
        models, momentum = start.copy(), np.zeros_like(start)
        total, batches = np.zeros(clients), 0
        with np.errstate(over="ignore", invalid="ignore"):  # a model that diverges is told by its weights
            for epoch in range(epochs):
                for first in range(0, held, how.batch_size):
                    items = orders[:, epoch, first : first + how.batch_size]
                    losses, slopes = self._slopes(models, self._train[items], self._labels[items])
                    slopes += how.weight_decay * models + how.proximal_mu * (models - start)
                    momentum = how.momentum * momentum + slopes
                    models = models - how.learning_rate * momentum
                    total += losses
                    batches += 1
        return models, total / max(batches, 1)

    def evaluate(self, models: Sequence[FloatArray]) -> list[float]:
        """The share of test images whose likeliest class is theirs."""
        accuracies = []
        for weights in models:
            with np.errstate(over="ignore", invalid="ignore"):
                scores = self._forward(weights[None], self._test[None])[-1][0]
            accuracies.append(float((scores.argmax(axis=1) == self._test_labels).mean()))
        return accuracies

    def saved(self, weights: FloatArray) -> npt.NDArray[np.floating]:
        """A copy."""
        return weights.copy()

    def loaded(self, array: npt.ArrayLike) -> FloatArray:
        """A copy, if it is of this network."""
        return self.network.check_weights(array).astype(np.float64)

    def close(self) -> None:
        """There is nothing to let go of."""

    def _forward(self, models: FloatArray, images: FloatArray) -> list[FloatArray]:
        """The input of each layer, and the scores: (models, items, …)."""
        layers = self.network.split(models)
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
        layers = self.network.split(models)
        slopes: list[FloatArray] = []
        for depth in range(len(layers) - 2, -1, -2):
            before = values[depth // 2]
            slopes.insert(0, error.sum(axis=1))
            slopes.insert(0, before.transpose(0, 2, 1) @ error)
            if depth:
                error = (error @ layers[depth].transpose(0, 2, 1)) * (before > 0)
        return losses, np.concatenate([part.reshape(len(models), prod(part.shape[1:])) for part in slopes], axis=1)


def _flat(images: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], brightest: int) -> FloatArray:
    return images.reshape(len(images), -1) / brightest
