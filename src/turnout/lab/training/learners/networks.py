"""The architecture of a model: the shapes of its layers, and its weights as one flat vector. Does not need torch."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod

import numpy as np

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray, as_count
from turnout.kernel.randomness import round_rng
from turnout.lab.training.datasets import Dataset
from turnout.lab.training.learners.base import Layout

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
        parts = [
            rng.uniform(-1.0, 1.0, inputs * outputs + outputs) / np.sqrt(inputs) for inputs, outputs in self.matrices
        ]
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
