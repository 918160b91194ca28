"""Logistic regression in NumPy on synthetic data, generated for each partition."""

import numpy as np


def load_data(partition_id: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns points of two Gaussian clusters and their labels."""
    rng = np.random.default_rng(partition_id)
    labels = rng.integers(0, 2, 200)
    points = rng.normal(0, 1, (200, 10)) + labels[:, None] * 0.8
    return np.column_stack([points, np.ones(200)]), labels


def train(weights: np.ndarray, data: tuple[np.ndarray, np.ndarray], learning_rate: float) -> tuple[np.ndarray, float]:
    """Runs ten steps of gradient descent; returns the new weights and the loss."""
    points, labels = data
    for _ in range(10):
        weights = weights - learning_rate * points.T @ (probabilities(weights, points) - labels) / len(labels)
    likelihoods = np.where(labels, probabilities(weights, points), 1 - probabilities(weights, points))
    return weights, float(-np.log(likelihoods).mean())


def test(weights: np.ndarray, data: tuple[np.ndarray, np.ndarray]) -> float:
    """Returns the accuracy."""
    points, labels = data
    return float(((probabilities(weights, points) > 0.5) == labels).mean())


def probabilities(weights: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Returns the predicted probability of label 1 for each point."""
    return 1 / (1 + np.exp(-points @ weights))
