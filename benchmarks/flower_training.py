"""Training in Flower on forty virtual nodes that hold two or three digits each; their times are simulated."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from benchmarks.harness import memory_folder
from benchmarks.virtual_nodes import VirtualGrid
from turnout import Scheduler
from turnout.adapters.flower import FairSelection
from turnout.adapters.flower.client import with_status
from turnout.kernel.arrays import FloatArray, IntArray
from turnout.lab import NumpyLearner, PaperWorld, Training, load_dataset

CLIENTS, ITEMS = 40, 40
#: In simulated seconds; nobody takes as long.
DEADLINE = 600.0


def train(policy: str, settings: dict[str, Any], seed: int, rounds: int) -> tuple[list[float], list[float]]:
    """Trains FedAvg on the clients that a policy selects; returns the seconds of each round, and its accuracy."""
    accuracy: list[float] = []

    def evaluate(_: int, arrays: ArrayRecord) -> MetricRecord:
        accuracy.append(float(learner().evaluate([arrays["weights"].numpy()])[0]))
        return MetricRecord({"accuracy": accuracy[-1]})

    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
    with (
        memory_folder() as folder,
        Scheduler.open(folder / "fleet.turnout", policy=policy, settings=settings, deadline=DEADLINE) as scheduler,
    ):
        fair = FairSelection(strategy, scheduler, simulated=PaperWorld(seed, clients=CLIENTS))
        result = fair.start(
            VirtualGrid(digits_app(), CLIENTS, are_named=False),
            to_record(learner().initial_weights(seed)),
            num_rounds=rounds,
            train_config=ConfigRecord({"seed": seed}),
            evaluate_fn=evaluate,
        )
    metrics: dict[int, Any] = result.train_metrics_clientapp
    return [float(metrics[number]["turnout-round-seconds"]) for number in range(1, rounds + 1)], accuracy[1:]


def digits_app() -> ClientApp:
    """Returns an app that trains for one epoch on the digits of a client."""
    app = ClientApp()

    @app.train()
    def _train(message: Message, context: Context) -> Message:
        config: Mapping[str, Any] = message.content.config_records["config"]
        client = int(context.node_config["partition-id"])
        seed, number = int(config["seed"]), int(config["server-round"])
        order = np.random.default_rng([seed, number, client]).permutation(items_of(seed)[client])
        weights = message.content.array_records["arrays"]["weights"].numpy()
        models, losses = learner().train_clients(weights, order[None, None])
        metrics = MetricRecord({"num-examples": len(order), "train_loss": float(losses[0])})
        return Message(RecordDict({"arrays": to_record(models[0]), "metrics": metrics}), reply_to=message)

    return with_status(app)


@cache
def learner() -> NumpyLearner:
    """Returns the network of the example of a simulation, with one hidden layer."""
    return NumpyLearner(load_dataset("digits"), Training(batch_size=10, learning_rate=0.2), hidden=16)


@cache
def items_of(seed: int) -> list[IntArray]:
    """Returns the training items of each client, which holds two or three digits in equal parts."""
    rng, labels = np.random.default_rng(seed), load_dataset("digits").train_labels
    held = []
    for _ in range(CLIENTS):
        digits = rng.choice(10, rng.integers(2, 4), replace=False)
        counts = [len(part) for part in np.array_split(np.arange(ITEMS), len(digits))]
        parts = zip(digits, counts, strict=True)
        held.append(np.concatenate([rng.choice(np.flatnonzero(labels == d), n, replace=False) for d, n in parts]))
    return held


def to_record(weights: FloatArray) -> ArrayRecord:
    """Converts a model to a record of Flower."""
    return ArrayRecord({"weights": Array(weights)})
