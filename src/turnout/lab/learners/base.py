"""What trains: a Learner.

Weights are flat, one number after the other. What holds them is the learner's own choice: an array, or a tensor on its
device, where it may stack as many models as it likes into one computation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray, as_count, as_number
from turnout.lab.learners.networks import Network

Weights = Any


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
class Cohort:
    """Clients that train from the same weights.

    `orders` (clients, epochs, items): the training items of each client, in the order in which it goes through them.
    `shares` (clients,): the weight of each client's model in the average, in proportion to its items.
    """

    weights: Weights
    orders: IntArray
    shares: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class TrainingResult:
    """What a cohort brought back: the averaged weights, and a client each its mean training loss.

    Whose weights are not all finite is not `sound`, and is not in the average; if nobody is, the weights are the old.
    """

    weights: Weights
    losses: FloatArray
    finite: BoolArray


class Learner(Protocol):
    """Trains cohorts, averages them, and tells how good a model is."""

    training: Training
    network: Network

    def initial_weights(self, seed: int) -> Weights:
        """A fresh model."""

    def train(self, cohorts: Sequence[Cohort]) -> list[TrainingResult]:
        """Let every client of every cohort train, and average each cohort. Who else trains changes nothing."""

    def evaluate(self, models: Sequence[Weights]) -> list[float]:
        """Accuracy of each on the test set."""

    def saved(self, weights: Weights) -> npt.NDArray[np.floating]:
        """The weights as a flat array, for a checkpoint."""

    def loaded(self, array: npt.ArrayLike) -> Weights:
        """The weights again."""

    def close(self) -> None:
        """Let go of processes and memory; a learner may be used again after."""


def averaged(before: FloatArray, models: FloatArray, losses: FloatArray, shares: FloatArray) -> TrainingResult:
    """The mean of the sound models (one a row), each weighted by its share."""
    finite: BoolArray = np.isfinite(models).all(axis=1) & np.isfinite(losses)
    total = float(shares[finite].sum())
    mean = (shares[finite] / total).astype(models.dtype) @ models[finite] if total > 0 else before
    return TrainingResult(mean, np.where(finite, losses, np.nan), finite)
