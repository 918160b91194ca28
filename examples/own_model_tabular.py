"""A model of your own on tabular data: a perceptron learns to classify rows of twenty measurements, and each of forty
clients holds its own rows, some five times as many as others. Three policies train it in the paper's simulated world,
with two seeds each, and the table shows which one reaches 80 % accuracy first, and how small the smallest share of the
rounds is that a client takes part in. It needs torch (pip install '.[lab]') and takes seconds on a CPU.

    python examples/own_model_tabular.py [--rounds 40] [--device cuda]
"""

import argparse

import numpy as np
from torch import nn

from turnout.lab import TorchTask, Training, train_policies

CLIENTS, CLASSES, FEATURES = 40, 5, 20


def make_rows(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns measurements and their classes: two clusters per class, which no straight line separates."""
    centres = np.random.default_rng(0).normal(size=(2 * CLASSES, FEATURES))
    cluster = rng.integers(2 * CLASSES, size=rows)
    return centres[cluster] + 0.9 * rng.normal(size=(rows, FEATURES)), cluster % CLASSES


def make_model() -> nn.Module:
    """Builds the model; the seed of the run determines its initial weights."""
    return nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, CLASSES))


def make_task() -> TorchTask:
    """Returns the model with its loss, its data, and the rows of each client."""
    rng = np.random.default_rng(1)
    train_set, test_set = make_rows(rng, 3000), make_rows(rng, 500)
    sizes = rng.integers(20, 100, size=CLIENTS)
    rows_of_clients = np.split(rng.permutation(3000), np.cumsum(sizes))[:CLIENTS]
    training = Training(learning_rate=0.1, batch_size=16, momentum=0.5)
    return TorchTask(make_model, nn.functional.cross_entropy, train_set, test_set, rows_of_clients, training=training)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    runs = train_policies(
        make_task(),
        ["fair-pace", "random", "fedcs"],
        rounds=options.rounds,
        seeds=range(2),
        device=options.device,
        workers=1,
    )
    print("policy      seed  accuracy  minutes to 80 %  least share")
    for run in runs:
        minutes = run.seconds_to(0.8) / 60
        print(f"{run.policy:<12}{run.seed:4}{run.score:10.3f}{minutes:17.2f}{run.least_share:13.3f}")
