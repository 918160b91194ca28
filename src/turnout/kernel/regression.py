"""The fleet's own ridge regression, the prior that it gives, and matrices of many regressions as columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from turnout.kernel.arrays import FloatArray

# A feature with a smaller mean square has the ridge of a feature that is always 0; its own could not be inverted.
MIN_SQUARE = 1e-200


class Prior(NamedTuple):
    """What a client's regression expects of its coefficients before the client has a time: a mean and a covariance.

    In units of the variance of a time, the covariance is diag(1/ridges) + spread · mean · meanᵀ: each coefficient
    differs from the mean on its own, and all of them differ by a common factor, because clients differ in speed.

    Attributes:
        mean: The mean of the coefficients.
        ridges: The ridge of each coefficient.
        spread: How much the speeds of clients differ.
    """

    mean: FloatArray
    ridges: FloatArray
    spread: float = 0.0

    @property
    def weighted(self) -> FloatArray:
        """The mean times the ridges."""
        return self.ridges * self.mean

    @property
    def relief(self) -> float:
        """How much the common factor reduces the ridge: its matrix is diag(ridges) − relief · weighted · weightedᵀ."""
        return float(self.spread / (1 + self.spread * (self.mean @ self.weighted)))

    def covariance(self) -> FloatArray:
        """Returns the covariance: H⁻¹ of a client without history."""
        covariance: FloatArray = np.diag(1 / self.ridges) + self.spread * np.outer(self.mean, self.mean)
        return covariance

    def precision(self) -> FloatArray:
        """Returns the inverse covariance: H of a client without history."""
        precision: FloatArray = np.diag(self.ridges) - self.relief * np.outer(self.weighted, self.weighted)
        return precision

    def pull(self) -> FloatArray:
        """Returns the inverse covariance times the mean."""
        pull: FloatArray = self.weighted / (1 + self.spread * (self.mean @ self.weighted))
        return pull


class FleetRegression:
    """One regression over the times of all clients, and the prior that was last computed from it.

    `spread` is 0 if clients are not expected to differ in all coefficients together.
    """

    def __init__(self, features: int, ridge: float) -> None:
        self.squares = ridge * np.eye(features)
        self.sums = np.zeros(features)
        self.prior: FloatArray = np.zeros(features)
        self.spread = 0.0
        #: The number of times that were learned.
        self.samples = 0
        self._samples_in_prior = 0

    def learn(self, contexts: FloatArray, times: FloatArray) -> bool:
        """Adds these times; returns whether so many are new that the prior should be recomputed."""
        self.squares += contexts.T @ contexts
        self.sums += contexts.T @ times
        self.samples += len(times)
        if self.samples * 10 < self._samples_in_prior * 11 or not len(times):
            return False
        self._samples_in_prior = self.samples
        return True

    def mean_squares_with(self, contexts: FloatArray) -> FloatArray:
        """Returns the mean square of each feature over the learned contexts and these."""
        total: FloatArray = np.diagonal(self.squares) + (contexts**2).sum(axis=0)
        return total / max(self.samples + len(contexts), 1)

    def remove(self, squares: FloatArray, sums: FloatArray, samples: int) -> None:
        """Subtracts the contribution of clients that are forgotten."""
        self.samples = self._samples_in_prior = max(self.samples - samples, 0)  # the caller recomputes the prior
        self.squares = self.squares - squares if self.samples else np.zeros_like(squares)
        self.sums = self.sums - sums if self.samples else np.zeros_like(sums)

    def solve(self, ridges: FloatArray | None) -> FloatArray:
        """Returns the coefficients theta0 of all times so far; `ridges` is added if `squares` has no ridge."""
        squares = self.squares if ridges is None else self.squares + np.diag(ridges)
        theta: FloatArray = np.linalg.solve(squares, self.sums).astype(np.float64)
        return theta

    def speed_spread(self, theta: FloatArray) -> float:
        """Returns the spread of speeds for which the fleet's speed counts as much as one typical time of the client."""
        total = float(theta @ self.squares @ theta)
        return self.samples / total if total > MIN_SQUARE else 0.0

    def to_array(self) -> FloatArray:
        """Returns the whole state in one array."""
        return np.concatenate(
            [self.squares.ravel(), self.sums, self.prior, [self.spread, self.samples, self._samples_in_prior]]
        )

    def load(self, array: FloatArray) -> None:
        """Restores the state that `to_array` returned."""
        features = len(self.sums)
        squares, self.sums, self.prior, counts = np.split(array, np.cumsum([features**2, features, features]))
        self.squares = squares.reshape(features, features)
        self.spread = float(counts[0])
        self.samples, self._samples_in_prior = (int(count) for count in counts[1:])


def inverse_matrices(columns: FloatArray, pairs: Sequence[tuple[int, int]], features: int) -> FloatArray:
    """Returns H⁻¹ of each column as a full matrix, (clients, features, features).

    Args:
        columns: The columns; their first rows are the entries of H⁻¹ at these pairs of features.
        pairs: The pairs of features.
        features: The number of features.
    """
    inverse = np.empty((columns.shape[1], features, features))
    for index, (a, b) in enumerate(pairs):
        inverse[:, a, b] = inverse[:, b, a] = columns[index]
    return inverse


def as_columns(squares: npt.NDArray[Any], sums: FloatArray, pairs: Sequence[tuple[int, int]]) -> FloatArray:
    """Returns the columns for these H and H·theta-hat: H⁻¹ at the pairs of features, and theta-hat."""
    inverse = np.linalg.inv(squares)
    columns = np.empty((len(pairs) + sums.shape[1], len(squares)))
    for index, (a, b) in enumerate(pairs):
        columns[index] = (inverse[:, a, b] + inverse[:, b, a]) / 2
    columns[len(pairs) :] = np.einsum("nab,nb->an", inverse, sums)
    return columns
