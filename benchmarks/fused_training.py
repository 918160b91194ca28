"""Measures a candidate for the GPU learner: convolution blocks in one kernel each, against the kernels in use.

    PYTHONPATH=src:. python benchmarks/fused_training.py

Needs torch, triton and a GPU. Both ways train the same clients of the paper's two networks on random images, from the
same weights and in turns; the script prints the ratio of their times, and how far the trained weights differ relative
to the length of the step that training took. benchmarks/fused_convolution.py has the kernels.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from turnout.bench.timing import in_turns
from turnout.lab.datasets import Dataset
from turnout.lab.learners import stacked_learner
from turnout.lab.learners.base import Cohort, Training
from turnout.lab.learners.cnn import stacked_scores
from turnout.lab.learners.networks import KERNEL, Network, paper_network

CLIENTS = 8  # per cohort
ITEMS = 500  # per client
COHORTS = 58  # about half of the runs of the accuracy study
IMAGES = {"fashion-mnist": (28, 28, 1), "cifar-10": (32, 32, 3)}


class FusedBlock(torch.autograd.Function):
    """A convolution, pooling, biases and ReLU of many models in one kernel, and the backward pass in two.

    The images are (models, items, height, width, channels), the kernels (models, inputs, outputs), the biases (models,
    outputs).
    """

    @staticmethod
    def forward(ctx: Any, images: Tensor, kernels: Tensor, biases: Tensor) -> Tensor:
        from benchmarks import fused_convolution

        pooled, positions = fused_convolution.convolve(images, kernels, biases, KERNEL)
        ctx.save_for_backward(images, kernels, positions)
        return pooled

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        from benchmarks import fused_convolution

        images, kernels, positions = ctx.saved_tensors
        slopes = gradients[0].contiguous()
        of_kernels, of_biases = fused_convolution.kernel_gradients(slopes, positions, images, kernels, KERNEL)
        if not ctx.needs_input_grad[0]:
            return None, of_kernels, of_biases
        of_images = fused_convolution.image_gradients(slopes, positions, kernels, images, KERNEL)
        return of_images, of_kernels, of_biases


def fused_scores(network: Network, layers: Sequence[Tensor], images: Tensor) -> Tensor:
    """Returns what cnn.stacked_scores returns, (models, items, classes)."""
    values = images
    for depth in range(0, 2 * len(network.convolutions), 2):
        values = FusedBlock.apply(values, layers[depth], layers[depth + 1])  # type: ignore[no-untyped-call]
    values = values.flatten(2)
    for depth in range(2 * len(network.convolutions), len(layers) - 2, 2):
        values = functional.relu(torch.baddbmm(layers[depth + 1].unsqueeze(1), values, layers[depth]))
    return torch.baddbmm(layers[-1].unsqueeze(1), values, layers[-2])


def random_dataset(name: str) -> Dataset:
    """Returns random images with the names and shapes of a dataset."""
    rng = np.random.default_rng(0)

    def part(items: int) -> tuple[Any, Any]:
        images = rng.integers(0, 256, (items, *IMAGES[name]), dtype=np.uint8)
        return images, rng.integers(0, 10, items).astype(np.uint8)

    return Dataset(name, tuple("0123456789"), *part(40 * ITEMS), *part(10_000))


def measure(name: str, device: str) -> None:
    """Trains and evaluates with both kinds of kernels and prints the ratios."""
    dataset, rng = random_dataset(name), np.random.default_rng(1)
    training = Training(learning_rate=0.02, batch_size=10, weight_decay=0.003)
    orders = np.stack([rng.permutation(ITEMS)[None] + ITEMS * client for client in range(CLIENTS)])
    scores = {"in use": stacked_scores, "fused": fused_scores}
    trained: dict[str, Tensor] = {}
    learners: dict[str, stacked_learner.StackedLearner] = {}

    def train(kind: str) -> None:
        with mock.patch.object(stacked_learner, "stacked_scores", scores[kind]):
            cohorts = [Cohort(start, orders, np.full(CLIENTS, float(ITEMS)))] * COHORTS
            trained[kind] = learners[kind].train(cohorts)[0].weights
            torch.cuda.synchronize()

    def evaluate(kind: str) -> None:
        with mock.patch.object(stacked_learner, "stacked_scores", scores[kind]):
            learners[kind].evaluate([trained[kind]] * COHORTS)

    for kind in scores:
        learners[kind] = stacked_learner.StackedLearner(dataset, paper_network(dataset), training, device=device)
        start = learners[kind].initial_weights(0)
        train(kind)
        evaluate(kind)
    difference = float((trained["fused"] - trained["in use"]).norm() / (trained["in use"] - start).norm())
    for label, act in (("training", train), ("evaluation", evaluate)):
        in_use, fused = in_turns([partial(act, "in use"), partial(act, "fused")], repeats=5)
        print(f"{name}: {label} is {in_use / fused:.2f} times as fast ({in_use:.3f} s, fused {fused:.3f} s)")
    print(f"{name}: relative difference of the trained weights {difference:.4f}")


def main() -> None:
    """Measures both networks, if there is a GPU."""
    if not torch.cuda.is_available():
        sys.exit("This measurement needs a GPU.")
    for name in IMAGES:
        measure(name, "cuda")


if __name__ == "__main__":
    main()
