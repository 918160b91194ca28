"""The base class of learners and its values: training settings, cohorts and training results.

Weights are a flat vector of parameters. Each learner chooses its own representation: a NumPy array, or a tensor on its
device, where it may stack several models into one computation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError, StateError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray, as_count, as_number

Weights = Any


@dataclass(frozen=True, slots=True)
class Training:
    """Settings of the local training of a client: stochastic gradient descent on its own items.

    A positive `proximal_mu` enables FedProx, which adds the term proximal_mu/2 · ‖w − w₀‖² to the loss; w₀ are the
    weights that the client received.
    """

    epochs: int = 1
    batch_size: int = 32
    learning_rate: float = 0.05
    momentum: float = 0.0
    weight_decay: float = 0.0
    proximal_mu: float = 0.0

    def __post_init__(self) -> None:
        as_count("epochs", self.epochs, SettingError)
        as_count("batch_size", self.batch_size, SettingError)
        as_number("learning_rate", self.learning_rate, SettingError, above=0)
        as_number("momentum", self.momentum, SettingError, least=0, most=1)
        as_number("weight_decay", self.weight_decay, SettingError, least=0)
        as_number("proximal_mu", self.proximal_mu, SettingError, least=0)


@dataclass(frozen=True, slots=True, eq=False)
class Cohort:
    """Clients that train from the same weights.

    `orders` (clients, epochs, items): indices of each client's training items, in the order in which it visits them.
    Rows of clients with fewer items than others end with −1 (`held_items` removes them).
    `shares` (clients,): the weight of each client's model in the average, proportional to its number of items.
    """

    weights: Weights
    orders: IntArray
    shares: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class TrainingResult:
    """The averaged weights of a cohort, and the mean training loss of each client.

    `finite` is False for a client whose model or loss is not finite. Such a model is excluded from the average; if
    every model is excluded, `weights` are those from which the cohort started.
    """

    weights: Weights
    losses: FloatArray
    finite: BoolArray


class Layout(ABC):
    """The arrays of a model, and how they lie in its flat weights, one after the other.

    Attributes:
        shapes: The shape of each array.
        parameters: The length of the flat weights.
        dtype: Their type.
    """

    __slots__ = ()
    dtype: Literal["float64", "float32"] = "float64"

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shape of each array."""
        return list(self.layer_shapes.values())

    @property
    @abstractmethod
    def layer_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each array outside this package, by name."""

    @property
    def parameters(self) -> int:
        """The length of the flat weights."""
        return sum(prod(shape) for shape in self.shapes)

    def check_weights(self, array: npt.ArrayLike) -> npt.NDArray[np.floating]:
        """Returns the weights as an array; raises StateError if their shape or type does not fit this model."""
        weights = np.asarray(array)
        if weights.shape != (self.parameters,) or weights.dtype.kind != "f":
            raise StateError(
                f"the saved weights are {weights.dtype} of shape {weights.shape}, this model has {self.parameters} "
                "floating-point parameters: they belong to another model"
            )
        return weights

    def split(self, weights: Any) -> list[Any]:
        """Returns views of the arrays in flat weights: (parameters,) or (models, parameters), any library."""
        ends = accumulate(map(prod, self.shapes), initial=0)
        parts = zip(pairwise(ends), self.shapes, strict=True)
        return [weights[..., first:last].reshape(*weights.shape[:-1], *shape) for (first, last), shape in parts]

    def layers(self, weights: npt.NDArray[np.floating]) -> dict[str, npt.NDArray[np.floating]]:
        """Returns the arrays of a model by name, for use outside this package."""
        parts = zip(self.layer_shapes.items(), self.split(weights), strict=True)
        return {name: array.reshape(shape) for (name, shape), array in parts}


#: Waits for the end of training; returns the results, and the accuracies of the models that were to be evaluated.
FinishTraining = Callable[[], tuple[list[TrainingResult], list[float]]]


class Learner(ABC):
    """Trains and averages cohorts, and evaluates models.

    Attributes:
        overlaps: Whether its device trains what was begun while this process does something else.
        training: The settings of local training.
        network: The layout of the flat weights.
    """

    overlaps: ClassVar[bool] = False
    training: Training
    network: Layout

    @abstractmethod
    def initial_weights(self, seed: int) -> Weights:
        """Returns the weights of a newly initialised model."""

    @abstractmethod
    def train(self, cohorts: Sequence[Cohort]) -> list[TrainingResult]:
        """Trains every client of every cohort and averages each cohort.

        The result of a cohort does not depend on the other cohorts.
        """

    @abstractmethod
    def evaluate(self, models: Sequence[Weights]) -> list[float]:
        """Returns the accuracy of each model on the test set."""

    def begin(self, cohorts: Sequence[Cohort], evaluated: Sequence[int] = ()) -> FinishTraining:
        """Begins to train all cohorts, and then to evaluate the averages of the cohorts with these indices.

        A learner that does not overlap does all of it when the training is finished.
        """

        def finish() -> tuple[list[TrainingResult], list[float]]:
            results = self.train(cohorts)
            return results, self.evaluate([results[index].weights for index in evaluated])

        return finish

    def saved(self, weights: Weights) -> npt.NDArray[np.floating]:
        """Returns a copy of the weights as a flat array, for a checkpoint."""
        array: npt.NDArray[np.floating] = weights.copy()
        return array

    def loaded(self, array: npt.ArrayLike) -> Weights:
        """Returns a copy of the weights that `saved` returned; raises StateError if they do not fit this model."""
        return self.network.check_weights(array).astype(self.network.dtype)

    def close(self) -> None:  # noqa: B027  # most learners hold no resources
        """Releases processes and memory; the learner can be used again afterwards."""


def held_items(order: IntArray) -> list[IntArray]:
    """Returns the items of a client in each epoch, (epochs, items) without the −1 at the end of the rows."""
    return [epoch[epoch >= 0] for epoch in order]


def average_models(previous: FloatArray, models: FloatArray, losses: FloatArray, shares: FloatArray) -> TrainingResult:
    """Averages the finite models, weighted by their shares.

    `models` holds one model per row. Without any finite model the result holds the `previous` weights.
    """
    finite: BoolArray = np.isfinite(models).all(axis=1) & np.isfinite(losses)
    total = float(shares[finite].sum())
    mean = (shares[finite] / total).astype(models.dtype) @ models[finite] if total > 0 else previous
    return TrainingResult(mean, np.where(finite, losses, np.nan), finite)
