"""What a model looks like: layers as shapes, weights as one flat vector. Nothing here needs torch."""

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
from turnout.lab.datasets import Dataset

KERNEL = 5
POOL = 2
#: Convolutions and hidden layers: the paper's two, and one that fits the small digits.
CONVOLUTIONAL = {
    "digits": ((16,), (32,)),
    "fashion-mnist": ((20, 50), (500,)),
    "cifar-10": ((64, 64), (384, 192)),
}


@dataclass(frozen=True, slots=True)
class Network:
    """Convolutions (5 × 5, no padding, then 2 × 2 max-pooling and ReLU), hidden layers (ReLU), and one score a class.

    `image` is (height, width, channels). Weights lie one layer after the other, each as a matrix (inputs, outputs) and
    its biases; the inputs of a convolution are ordered (row, column, channel).
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
                raise SettingError(f"a {KERNEL} × {KERNEL} convolution and pooling do not fit on {height} × {width}")

    @property
    def image_sizes(self) -> list[tuple[int, int, int]]:
        """What goes into each convolution, and what comes out of the last."""
        height, width, channels = self.image
        sizes = [self.image]
        for channels in self.convolutions:
            height, width = (height - KERNEL + 1) // POOL, (width - KERNEL + 1) // POOL
            sizes.append((height, width, channels))
        return sizes

    @property
    def matrices(self) -> list[tuple[int, int]]:
        """(inputs, outputs) of each layer."""
        sizes = self.image_sizes
        maps = [(KERNEL * KERNEL * before[2], after) for before, after in zip(sizes, self.convolutions, strict=False)]
        widths = [prod(sizes[-1]), *self.hidden, self.classes]
        return maps + list(pairwise(widths))

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Of all layers, each matrix followed by its biases."""
        return [shape for before, after in self.matrices for shape in ((before, after), (after,))]

    @property
    def parameters(self) -> int:
        """How many numbers a model is."""
        return sum(prod(shape) for shape in self.shapes)

    @property
    def slices(self) -> list[slice]:
        """Where each layer lies in the flat weights."""
        ends = np.cumsum([0, *(prod(shape) for shape in self.shapes)]).tolist()
        return [slice(first, last) for first, last in pairwise(ends)]

    def initial_weights(self, seed: int) -> FloatArray:
        """As torch begins: uniform within ± 1/√inputs of the layer, biases too."""
        rng = round_rng(seed, "initial weights", 0)
        parts = [
            rng.uniform(-1.0, 1.0, inputs * outputs + outputs) / np.sqrt(inputs) for inputs, outputs in self.matrices
        ]
        return np.concatenate(parts)

    def check_weights(self, array: npt.ArrayLike) -> npt.NDArray[np.floating]:
        """Saved weights, if they are of this network."""
        weights = np.asarray(array)
        if weights.shape != (self.parameters,) or weights.dtype.kind != "f":
            raise StateError(
                f"the saved weights are {weights.dtype} of shape {weights.shape}, this network has {self.parameters} "
                "numbers: they are of another model"
            )
        return weights

    def split(self, weights: Any) -> list[Any]:
        """Views of flat weights by layers, of one model or of one a row: an array's, or a tensor's."""
        parts = zip(self.slices, self.shapes, strict=True)
        return [weights[..., place].reshape(*weights.shape[:-1], *shape) for place, shape in parts]

    def layers(self, weights: npt.NDArray[np.floating]) -> dict[str, npt.NDArray[np.floating]]:
        """A model by layers, each with its name, for those who take it elsewhere.

        Matrices are (inputs, outputs), those of a convolution (row, column, channel, outputs).
        """
        names = [f"{kind}{depth}" for depth in range(1, len(self.matrices) + 1) for kind in ("weight", "bias")]
        maps = 2 * len(self.convolutions)
        shapes = [
            (KERNEL, KERNEL, shape[0] // KERNEL**2, shape[1]) if depth < maps and len(shape) == 2 else shape
            for depth, shape in enumerate(self.shapes)
        ]
        parts = zip(names, self.slices, shapes, strict=True)
        return {name: weights[place].reshape(shape) for name, place, shape in parts}


def perceptron(dataset: Dataset, hidden: int = 32) -> Network:
    """One hidden layer; without hidden units it is softmax regression."""
    as_count("hidden", hidden, SettingError, least=0)
    return Network(_image(dataset), (), (hidden,) if hidden else (), len(dataset.classes))


def paper_network(dataset: Dataset) -> Network:
    """The paper's convolutional network for this dataset."""
    if dataset.name not in CONVOLUTIONAL:
        raise SettingError(
            f"there is no convolutional network for {dataset.name!r}, only for {', '.join(CONVOLUTIONAL)}"
        )
    return Network(_image(dataset), *CONVOLUTIONAL[dataset.name], len(dataset.classes))


def _image(dataset: Dataset) -> tuple[int, int, int]:
    height, width, channels = dataset.train_images.shape[1:]
    return int(height), int(width), int(channels)
