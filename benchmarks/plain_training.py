"""A federated round as a plain loop over the clients, with torch modules and an optimiser: a reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.harness import alternate
from benchmarks.training import ITEMS, noise
from turnout.kernel.arrays import IntArray
from turnout.lab.training.learners.base import Cohort, Learner, Training
from turnout.lab.training.learners.devices import device_name, usable_device
from turnout.lab.training.learners.module_learner import cnn_learner
from turnout.lab.training.learners.numpy_learner import KERNEL, POOL, Network, paper_network
from turnout.lab.training.learners.stacked_learner import StackedLearner

CLIENTS, HELD = 8, 500
RUNS = 16  # stacked on a GPU


def compare_training(dataset: str, device: str, batch: int, repeats: int) -> dict[str, Any]:
    """Measures a round of training, and the same round as a plain loop, alternately."""
    is_gpu = usable_device(device) == "cuda"
    data, how = noise(dataset), Training(batch_size=batch, learning_rate=0.001)
    network = paper_network(data)
    learner: Learner = StackedLearner(data, network, how, device=device) if is_gpu else cnn_learner(data, network, how)
    rng = np.random.default_rng(0)
    orders = np.stack([rng.permutation(ITEMS)[None, :HELD] for _ in range(CLIENTS)])
    start = network.initial_weights(0)
    cohort = Cohort(learner.loaded(start), orders, np.ones(CLIENTS))
    learner.train([cohort])  # the learner must fork before the plain loop has run in this process
    middle, width = data.brightness
    images = (torch.tensor(data.train_images, device=device).float() - middle) / width
    plain = PlainRound(network, how, images, torch.tensor(data.train_labels, device=device).long())
    sent = torch.tensor(start, device=device).float()
    tasks: dict[str, Callable[[], object]] = {
        "plain": lambda: plain.train(sent, orders),
        "round": lambda: learner.train([cohort]),
        **({"runs": lambda: learner.train([cohort] * RUNS)} if is_gpu else {}),
    }
    seconds = alternate(tasks, repeats)
    learner.close()
    return {
        "dataset": dataset,
        "device": device_name(device),
        "plain loop, ms": seconds["plain"] * 1e3,
        "round, ms": seconds["round"] * 1e3,
        "plain / round": seconds["plain"] / seconds["round"],
        **({f"ms per run, {RUNS} runs at once": seconds["runs"] / RUNS * 1e3} if is_gpu else {}),
    }


class PlainRound:
    """Trains one client after the other, on images that are on the device, and averages the weights."""

    def __init__(self, network: Network, training: Training, images: Tensor, labels: Tensor) -> None:
        self.network, self.training = network, training
        self.images = images.permute(0, 3, 1, 2).contiguous()
        self.labels = labels
        self.model = plain_module(network).to(images)

    def train(self, weights: Tensor, orders: IntArray) -> tuple[Tensor, list[float]]:
        """Returns the mean of the clients' weights, and the mean loss of each client."""
        how = self.training
        total, means = torch.zeros_like(weights), []
        for order in torch.from_numpy(orders).to(self.images.device):
            put_weights(self.model, self.network, weights)
            start = [parameter.detach().clone() for parameter in self.model.parameters()]
            descent = torch.optim.SGD(
                self.model.parameters(), lr=how.learning_rate, momentum=how.momentum, weight_decay=how.weight_decay
            )
            losses = []
            for items in (items for epoch in order for items in epoch.split(how.batch_size)):
                descent.zero_grad()
                loss = functional.cross_entropy(self.model(self.images[items]), self.labels[items])
                losses.append(loss.detach())
                if how.proximal_mu:
                    pairs = zip(self.model.parameters(), start, strict=True)
                    loss = loss + how.proximal_mu / 2 * sum(((now - then) ** 2).sum() for now, then in pairs)
                loss.backward()  # type: ignore[no-untyped-call]
                descent.step()
            total += got_weights(self.model, self.network)
            means.append(float(torch.stack(losses).mean()))
        return total / len(orders), means


def plain_module(network: Network) -> nn.Sequential:
    """Returns the network as torch modules."""
    layers: list[nn.Module] = []
    for (_, _, before), after in zip(network.image_sizes, network.convolutions, strict=False):
        layers += [nn.Conv2d(before, after, KERNEL), nn.MaxPool2d(POOL), nn.ReLU()]
    layers.append(nn.Flatten())
    for before, after in network.matrices[len(network.convolutions) :]:
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def put_weights(model: nn.Sequential, network: Network, weights: Tensor) -> None:
    """Copies flat weights into the modules, which have another order of dimensions."""
    with torch.no_grad():
        for parameter, view in zip(model.parameters(), _module_views(network, weights), strict=True):
            parameter.copy_(view.reshape(parameter.shape))


def got_weights(model: nn.Sequential, network: Network) -> Tensor:
    """Returns the weights of the modules in flat order."""
    weights = torch.empty(
        network.parameters, dtype=next(model.parameters()).dtype, device=next(model.parameters()).device
    )
    with torch.no_grad():
        for parameter, view in zip(model.parameters(), _module_views(network, weights), strict=True):
            view.copy_(parameter.reshape(view.shape))
    return weights


def _module_views(network: Network, weights: Tensor) -> list[Tensor]:
    """Returns views of flat weights in the order of torch modules: outputs first, channels before rows and columns."""
    height, width, channels = network.image_sizes[-1]
    views = []
    for depth, layer in enumerate(network.split(weights)):
        if layer.dim() == 1:
            views.append(layer)
        elif depth < 2 * len(network.convolutions):
            views.append(layer.view(KERNEL, KERNEL, -1, layer.shape[1]).permute(3, 2, 0, 1))
        elif depth == 2 * len(network.convolutions):
            views.append(layer.view(height, width, channels, layer.shape[1]).permute(3, 2, 0, 1))
        else:
            views.append(layer.T)
    return views
