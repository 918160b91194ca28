"""The learning task: softmax regression on the bundled digits."""

import numpy as np
from flwr.app import Array, ArrayRecord

from turnout.lab import NumpyLearner, Training, load_dataset, partition

DIGITS = load_dataset("digits")
LEARNER = NumpyLearner(DIGITS, Training(batch_size=10, learning_rate=0.5), hidden=0)
HELD = partition(DIGITS.train_labels, clients=5, items=150).items


def to_record(weights: np.ndarray) -> ArrayRecord:
    """Converts a model to a Flower record."""
    return ArrayRecord({"weights": Array(weights)})
