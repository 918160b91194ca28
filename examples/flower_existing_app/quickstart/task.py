"""Logistic regression in NumPy, on points that each partition draws for itself."""

import numpy as np


def load_data(partition_id: int) -> tuple[np.ndarray, np.ndarray]:
    """Two clouds of points, and which of them each is in."""
    rng = np.random.default_rng(partition_id)
    labels = rng.integers(0, 2, 200)
    points = rng.normal(0, 1, (200, 10)) + labels[:, None] * 0.8
    return np.column_stack([points, np.ones(200)]), labels


def train(weights: np.ndarray, data: tuple[np.ndarray, np.ndarray], rate: float) -> tuple[np.ndarray, float]:
    """A few steps of gradient descent; the new weights and the loss."""
    points, labels = data
    for _ in range(10):
        weights = weights - rate * points.T @ (chances(weights, points) - labels) / len(labels)
    sure = np.where(labels, chances(weights, points), 1 - chances(weights, points))
    return weights, float(-np.log(sure).mean())


def test(weights: np.ndarray, data: tuple[np.ndarray, np.ndarray]) -> float:
    """The share of points that are told right."""
    points, labels = data
    return float(((chances(weights, points) > 0.5) == labels).mean())


def chances(weights: np.ndarray, points: np.ndarray) -> np.ndarray:
    """How likely each point is in the second cloud."""
    return 1 / (1 + np.exp(-points @ weights))
