"""The architecture of a model: the shapes of its layers, and its weights as one flat vector. Does not need torch."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError, StateError
from turnout.kernel.arrays import FloatArray, as_count
from turnout.kernel.randomness import round_rng
from turnout.lab.training.datasets import Dataset

KERNEL = 5
POOL = 2
#: (convolutions, hidden layers): the paper's two networks, and one for the small digits.
CONVOLUTIONAL = {
    "digits": ((16,), (32,)),
    "fashion-mnist": ((20, 50), (500,)),
    "cifar-10": ((64, 64), (384, 192)),
}


@dataclass(frozen=True, slots=True)
class Network:
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
    def parameters(self) -> int:
        """The number of parameters."""
        return sum(prod(shape) for shape in self.shapes)

    @property
    def slices(self) -> list[slice]:
        """The slice of the flat weights of each parameter array."""
        ends = np.cumsum([0, *(prod(shape) for shape in self.shapes)]).tolist()
        return [slice(first, last) for first, last in pairwise(ends)]

    def initial_weights(self, seed: int) -> FloatArray:
        """Returns the initialisation that is torch's default: uniform within ± 1/√inputs, for biases too."""
        rng = round_rng(seed, "initial weights", 0)
        parts = [
            rng.uniform(-1.0, 1.0, inputs * outputs + outputs) / np.sqrt(inputs) for inputs, outputs in self.matrices
        ]
        return np.concatenate(parts)

    def check_weights(self, array: npt.ArrayLike) -> npt.NDArray[np.floating]:
        """Returns the weights as an array; raises StateError if their shape or type does not fit this network."""
        weights = np.asarray(array)
        if weights.shape != (self.parameters,) or weights.dtype.kind != "f":
            raise StateError(
                f"the saved weights are {weights.dtype} of shape {weights.shape}, this network has {self.parameters} "
                "floating-point parameters: they belong to another model"
            )
        return weights

    def split(self, weights: Any) -> list[Any]:
        """Returns views of the parameter arrays in flat weights: (parameters,) or (models, parameters), any library."""
        parts = zip(self.slices, self.shapes, strict=True)
        return [weights[..., span].reshape(*weights.shape[:-1], *shape) for span, shape in parts]

    def layers(self, weights: npt.NDArray[np.floating]) -> dict[str, npt.NDArray[np.floating]]:
        """Returns the parameter arrays of a model by name, for use outside this package.

        Matrices have the shape (inputs, outputs), those of a convolution (row, column, channel, outputs).
        """
        names = [f"{kind}{depth}" for depth in range(1, len(self.matrices) + 1) for kind in ("weight", "bias")]
        maps = 2 * len(self.convolutions)
        shapes = [
            (KERNEL, KERNEL, shape[0] // KERNEL**2, shape[1]) if depth < maps and len(shape) == 2 else shape
            for depth, shape in enumerate(self.shapes)
        ]
        parts = zip(names, self.slices, shapes, strict=True)
        return {name: weights[span].reshape(shape) for name, span, shape in parts}


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
