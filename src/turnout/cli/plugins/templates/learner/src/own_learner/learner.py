"""The learner own-learner: a model of torch, its loss and its data."""

from __future__ import annotations

import numpy as np
from torch import nn

from turnout.lab import TorchTask, Training

FEATURES, CLASSES = 20, 4


def _rows(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns generated measurements and their classes; replace them by your data."""
    centres = np.random.default_rng(0).normal(size=(CLASSES, FEATURES))
    rng = np.random.default_rng(seed)
    labels = rng.integers(CLASSES, size=count)
    return centres[labels] + 0.8 * rng.normal(size=(count, FEATURES)), labels


def build_own_learner(*, hidden: int = 16, learning_rate: float = 0.1) -> TorchTask:
    """Returns a small network for rows of measurements, with the data of all clients.

    Args:
        hidden: The number of hidden units.
        learning_rate: The learning rate of local training.
    """

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES))

    return TorchTask(
        model,
        nn.functional.cross_entropy,
        train_set=_rows(1, 4000),
        test_set=_rows(2, 500),
        training=Training(learning_rate=learning_rate, batch_size=32),
    )
