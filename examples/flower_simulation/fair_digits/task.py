"""What is learned, by whom: a small network on the bundled digits, forty items a phone."""

from functools import cache

import numpy as np
from flwr.app import Array, ArrayRecord

from turnout.lab import Dataset, NumpyLearner, Training, load_dataset, partition

PHONES = 40
ITEMS = {"digits": 40, "fashion-mnist": 200}


@cache
def data(name: str) -> Dataset:
    """The images; loaded once a process."""
    return load_dataset(name)


@cache
def learner(name: str) -> NumpyLearner:
    """One hidden layer, trained without torch."""
    return NumpyLearner(data(name), Training(batch_size=10, learning_rate=0.2), hidden=16)


@cache
def held(name: str, seed: int) -> np.ndarray:
    """Which items each phone holds, unevenly over the classes."""
    return partition(data(name).train_labels, clients=PHONES, items=ITEMS[name], gamma=1.0, seed=seed).items


def to_record(weights: np.ndarray) -> ArrayRecord:
    """A model as Flower sends it."""
    return ArrayRecord({"weights": Array(weights)})
