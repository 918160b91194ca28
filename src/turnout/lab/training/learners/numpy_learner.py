"""A learner for small models that needs NumPy only, and the architecture of the built-in models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import numpy as np

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray, IntArray, as_count
from turnout.kernel.randomness import round_rng
from turnout.lab.training.datasets import Dataset
from turnout.lab.training.learners.base import Cohort, Layout, Learner, Training, TrainingResult, average_models

KERNEL = 5
POOL = 2
#: (convolutions, hidden layers): the paper's two networks, and one for the small digits.
CONVOLUTIONAL = {"digits": ((16,), (32,)), "fashion-mnist": ((20, 50), (500,)), "cifar-10": ((64, 64), (384, 192))}


@dataclass(frozen=True, slots=True)
class Network(Layout):
    """Convolutions (5 × 5, no padding, 2 × 2 max-pooling, ReLU), hidden layers (ReLU), and one score per class.

    `image` is (height, width, channels). The flat weights contain each layer in turn: its matrix (inputs, outputs),
    then its biases. The inputs of a convolution are ordered (row, column, channel).
    """

    image: tuple[int, int, int]
    convolutions: tuple[int, ...]
    hidden: tuple[int, ...]
    classes: int

    def __post_init__(self) -> None:
        for size in (*self.convolutions, *self.hidden):
            as_count("size of a layer", size, SettingError)
        for height, width, _ in self.image_sizes[:-1]:
            if min(height, width) < KERNEL + POOL - 1 or (height - KERNEL + 1) % POOL or (width - KERNEL + 1) % POOL:
                raise SettingError(
                    f"a {KERNEL} × {KERNEL} convolution and pooling do not fit on {height} × {width} pixels: "
                    f"height and width must be even and at least {KERNEL + POOL - 1}"
                )

    @property
    def image_sizes(self) -> list[tuple[int, int, int]]:
        """The input shape of each convolution, and the output shape of the last."""
        height, width, channels = self.image
        sizes = [self.image]
        for channels in self.convolutions:
            height, width = (height - KERNEL + 1) // POOL, (width - KERNEL + 1) // POOL
            sizes.append((height, width, channels))
        return sizes

    @property
    def matrices(self) -> list[tuple[int, int]]:
        """The shape (inputs, outputs) of the matrix of each layer."""
        sizes = self.image_sizes
        maps = [(KERNEL * KERNEL * before[2], after) for before, after in zip(sizes, self.convolutions, strict=False)]
        widths = [prod(sizes[-1]), *self.hidden, self.classes]
        return maps + list(pairwise(widths))

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of all parameters: each matrix followed by its biases."""
        return [shape for before, after in self.matrices for shape in ((before, after), (after,))]

    @property
    def layer_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes by name: of matrices (inputs, outputs), of convolutions (row, column, channel, outputs)."""
        names = [f"{kind}{depth}" for depth in range(1, len(self.matrices) + 1) for kind in ("weight", "bias")]
        maps = 2 * len(self.convolutions)
        shapes = [
            (KERNEL, KERNEL, shape[0] // KERNEL**2, shape[1]) if depth < maps and len(shape) == 2 else shape
            for depth, shape in enumerate(self.shapes)
        ]
        return dict(zip(names, shapes, strict=True))

    def initial_weights(self, seed: int) -> FloatArray:
        """Returns the initialisation that is torch's default: uniform within ± 1/√inputs, for biases too."""
        rng = round_rng(seed, "initial weights", 0)
        parts = [rng.uniform(-1.0, 1.0, (inputs + 1) * outputs) / np.sqrt(inputs) for inputs, outputs in self.matrices]
        return np.concatenate(parts)


def perceptron(dataset: Dataset, hidden: int = 32) -> Network:
    """Returns a network with one hidden layer; 0 hidden units give softmax regression."""
    as_count("hidden", hidden, SettingError, least=0)
    return Network(_image_shape(dataset), (), (hidden,) if hidden else (), len(dataset.classes))


def paper_network(dataset: Dataset) -> Network:
    """Returns the paper's convolutional network for this dataset."""
    if dataset.name not in CONVOLUTIONAL:
        raise SettingError(
            f"there is no convolutional network for {dataset.name!r}; there are networks for {', '.join(CONVOLUTIONAL)}"
        )
    return Network(_image_shape(dataset), *CONVOLUTIONAL[dataset.name], len(dataset.classes))


def _image_shape(dataset: Dataset) -> tuple[int, int, int]:
    height, width, channels = dataset.train_images.shape[1:]
    return int(height), int(width), int(channels)


class NumpyLearner(Learner):
    """Trains softmax regression (`hidden=0`) or a network with one hidden layer.

    All clients of a cohort are trained in one stacked computation, equivalent to training them one by one.
    """

    network: Network

    def __init__(self, dataset: Dataset, training: Training | None = None, *, hidden: int = 32) -> None:
        self.training = training or Training()
        self.network = perceptron(dataset, hidden)
        self._train_images = _scale(dataset.train_images, dataset.brightest)
        self._train_labels = dataset.train_labels.astype(np.int64)
        self._test_images = _scale(dataset.test_images, dataset.brightest)
        self._test_labels = dataset.test_labels.astype(np.int64)

    def initial_weights(self, seed: int) -> FloatArray:
        """Returns the weights of a newly initialised model."""
        return self.network.initial_weights(seed)

    def train(self, cohorts: Sequence[Cohort]) -> list[TrainingResult]:
        """Trains and averages the cohorts, one after the other."""
        results = []
        for cohort in cohorts:
            models, losses = self.train_clients(cohort.weights, cohort.orders)
            results.append(average_models(cohort.weights, models, losses, cohort.shares))
        return results

    def train_clients(self, weights: FloatArray, orders: IntArray) -> tuple[FloatArray, FloatArray]:
        """Returns the trained model of each client (one per row) and its mean training loss."""
        training = self.training
        if (orders < 0).any():
            raise SettingError("this learner needs a partition in which every client holds the same number of items")
        clients, epochs, items_per_client = orders.shape
        start = np.repeat(weights[None], clients, axis=0)
        models, momentum = start.copy(), np.zeros_like(start)
        total_loss, batches = np.zeros(clients), 0
        with np.errstate(over="ignore", invalid="ignore"):  # diverged models are detected by their weights
            for epoch in range(epochs):
                for first in range(0, items_per_client, training.batch_size):
                    items = orders[:, epoch, first : first + training.batch_size]
                    losses, gradients = self._gradients(models, self._train_images[items], self._train_labels[items])
                    gradients += training.weight_decay * models + training.proximal_mu * (models - start)
                    momentum = training.momentum * momentum + gradients
                    models = models - training.learning_rate * momentum
                    total_loss += losses
                    batches += 1
        return models, total_loss / max(batches, 1)

    def evaluate(self, models: Sequence[FloatArray]) -> list[float]:
        """Returns the accuracy of each model on the test set."""
        accuracies = []
        for weights in models:
            with np.errstate(over="ignore", invalid="ignore"):
                scores = self._forward(weights[None], self._test_images[None])[-1][0]
            accuracies.append(float((scores.argmax(axis=1) == self._test_labels).mean()))
        return accuracies

    def _forward(self, models: FloatArray, images: FloatArray) -> list[FloatArray]:
        """Returns the input of each layer, then the scores; all of shape (models, items, …)."""
        layers = self.network.split(models)
        values = [images]
        for depth in range(0, len(layers), 2):
            scores = values[-1] @ layers[depth] + layers[depth + 1][:, None, :]
            values.append(np.maximum(scores, 0.0) if depth + 2 < len(layers) else scores)
        return values

    def _gradients(self, models: FloatArray, images: FloatArray, labels: IntArray) -> tuple[FloatArray, FloatArray]:
        """Returns the mean cross-entropy of each model on its batch, and its flat gradient."""
        values = self._forward(models, images)
        scores = values[-1] - values[-1].max(axis=2, keepdims=True)
        probabilities = np.exp(scores)
        probabilities /= probabilities.sum(axis=2, keepdims=True)
        correct = np.take_along_axis(probabilities, labels[:, :, None], axis=2)[:, :, 0]
        losses = -np.log(np.maximum(correct, 1e-300)).mean(axis=1)
        losses = np.where(np.isnan(correct).any(axis=1), np.nan, losses)
        error = probabilities
        np.put_along_axis(error, labels[:, :, None], correct[:, :, None] - 1, axis=2)
        error /= labels.shape[1]
        layers = self.network.split(models)
        gradients: list[FloatArray] = []
        for depth in range(len(layers) - 2, -1, -2):
            inputs = values[depth // 2]
            gradients.insert(0, error.sum(axis=1))
            gradients.insert(0, inputs.transpose(0, 2, 1) @ error)
            if depth:
                error = (error @ layers[depth].transpose(0, 2, 1)) * (inputs > 0)
        flat = [gradient.reshape(len(models), prod(gradient.shape[1:])) for gradient in gradients]
        return losses, np.concatenate(flat, axis=1)


def _scale(images: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], brightest: int) -> FloatArray:
    """Flattens each image and scales its pixels to [0, 1]."""
    return images.reshape(len(images), -1) / brightest
