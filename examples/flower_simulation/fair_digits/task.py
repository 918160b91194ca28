"""The learning task: a small network on the bundled digits, 40 items per phone."""

from functools import cache

import numpy as np
from flwr.app import Array, ArrayRecord

from turnout.lab import Dataset, NumpyLearner, Training, load_dataset, partition

PHONES = 40
ITEMS = {"digits": 40, "fashion-mnist": 200}


@cache
def data(name: str) -> Dataset:
    """Loads the images once per process."""
    return load_dataset(name)


@cache
def learner(name: str) -> NumpyLearner:
    """Returns a learner with one hidden layer that does not need torch."""
    return NumpyLearner(data(name), Training(batch_size=10, learning_rate=0.2), hidden=16)


@cache
def phone_items(name: str, seed: int) -> np.ndarray:
    """Returns the training items of each phone, with a skewed label distribution."""
    return partition(data(name).train_labels, clients=PHONES, items=ITEMS[name], gamma=1.0, seed=seed).items


def to_record(weights: np.ndarray) -> ArrayRecord:
    """Converts a model to a Flower record."""
    return ArrayRecord({"weights": Array(weights)})
