"""Trains models of one's own (TorchTask) for all clients at once, and in a plain loop over the clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from torch import nn

from benchmarks.harness import alternate
from examples.own_model_resnet import Block, make_resnet
from turnout.lab import Cohort, TorchTask, Training

CLASSES = 10
BATCH = 10
METHODS: tuple[Literal["plain", "stacked"], ...] = ("plain", "stacked")


@dataclass(frozen=True, slots=True)
class Case:
    """A model, the shape of its inputs, and how many items each client holds on a CPU and on a GPU."""

    name: str
    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    cpu_items: int
    gpu_items: int


def make_mlp() -> nn.Module:
    """Returns a perceptron with two hidden layers on 64 features."""
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, CLASSES))


def make_wide_resnet(width: int = 64) -> nn.Module:
    """Returns a ResNet with two blocks in each of its three stages."""
    widths = [1, width, width, 2 * width, 2 * width, 4 * width, 4 * width]
    blocks = map(Block, widths, widths[1:], [1, 1, 2, 1, 2, 1])
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, CLASSES))


CASES = (
    Case("MLP", make_mlp, (64,), 100, 500),
    Case("ResNet", partial(make_resnet, 16), (1, 28, 28), 20, 200),
    Case("ResNet, wide", make_wide_resnet, (1, 28, 28), 0, 100),  # on a GPU only
)


def compare_own_model(case: Case, device: str, clients: int, items: int, repeats: int) -> dict[str, Any]:
    """Measures one round both ways, alternately, on random data.

    Args:
        case: The model.
        device: The torch device.
        clients: The number of clients of the round.
        items: The number of items that each client holds.
        repeats: How often both are measured.
    """
    rng = np.random.default_rng(0)
    train, test = (
        (rng.normal(size=(count, *case.shape)), rng.integers(CLASSES, size=count)) for count in (clients * items, 100)
    )
    split = np.arange(clients * items).reshape(clients, items)
    how, loss = Training(batch_size=BATCH, learning_rate=0.05, momentum=0.9), nn.functional.cross_entropy
    plain, stacked = (
        TorchTask(case.model, loss, train, test, list(split), training=how, method=method).learner(device, workers=1)
        for method in METHODS
    )
    start, shares = plain.initial_weights(0), np.full(clients, float(items))
    cohort = Cohort(start, split[:, None], shares)
    stacked_cohort = Cohort(stacked.loaded(start), split[:, None], shares)
    tasks = {"plain": lambda: plain.train([cohort]), "stacked": lambda: stacked.train([stacked_cohort])}
    seconds = alternate(tasks, repeats)
    stacked.close()
    return {
        "model": case.name,
        "parameters": plain.network.parameters,
        "clients": clients,
        "items": items,
        "plain loop, ms": seconds["plain"] * 1e3,
        "stacked, ms": seconds["stacked"] * 1e3,
        "plain / stacked": seconds["plain"] / seconds["stacked"],
    }
