"""A federated round as most write it: one client after the other, modules and an optimiser; to compare with."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from turnout.kernel.arrays import IntArray
from turnout.lab.learners.base import Training
from turnout.lab.learners.networks import KERNEL, POOL, Network


class PlainRound:
    """Trains each client on its own, on images that lie on the device already, and averages."""

    def __init__(self, network: Network, training: Training, images: Tensor, labels: Tensor) -> None:
        self.network, self.training = network, training
        self.images = images.permute(0, 3, 1, 2).contiguous()
        self.labels = labels
        self.model = plain_module(network).to(images)

    def train(self, weights: Tensor, orders: IntArray) -> tuple[Tensor, list[float]]:
        """The mean of all clients' models, and each one's mean loss."""
        how = self.training
        total, means = torch.zeros_like(weights), []
        for order in torch.from_numpy(orders).to(self.images.device):
            put_weights(self.model, self.network, weights)
            start = [parameter.detach().clone() for parameter in self.model.parameters()]
            descent = torch.optim.SGD(
                self.model.parameters(), lr=how.rate, momentum=how.momentum, weight_decay=how.weight_decay
            )
            losses = []
            for items in (items for epoch in order for items in epoch.split(how.batch)):
                descent.zero_grad()
                loss = functional.cross_entropy(self.model(self.images[items]), self.labels[items])
                losses.append(loss.detach())
                if how.proximal:
                    pairs = zip(self.model.parameters(), start, strict=True)
                    loss = loss + how.proximal / 2 * sum(((now - then) ** 2).sum() for now, then in pairs)
                loss.backward()  # type: ignore[no-untyped-call]
                descent.step()
            total += got_weights(self.model, self.network)
            means.append(float(torch.stack(losses).mean()))
        return total / len(orders), means


def plain_module(network: Network) -> nn.Sequential:
    """The network of torch's own modules."""
    layers: list[nn.Module] = []
    for (_, _, before), after in zip(network.image_sizes, network.convolutions, strict=False):
        layers += [nn.Conv2d(before, after, KERNEL), nn.MaxPool2d(POOL), nn.ReLU()]
    layers.append(nn.Flatten())
    for before, after in network.matrices[len(network.convolutions) :]:
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def put_weights(model: nn.Sequential, network: Network, weights: Tensor) -> None:
    """Flat weights into the modules, which order them otherwise."""
    with torch.no_grad():
        for parameter, ours in zip(model.parameters(), _theirs(network, weights), strict=True):
            parameter.copy_(ours.reshape(parameter.shape))


def got_weights(model: nn.Sequential, network: Network) -> Tensor:
    """The way back."""
    weights = torch.empty(
        network.parameters, dtype=next(model.parameters()).dtype, device=next(model.parameters()).device
    )
    with torch.no_grad():
        for parameter, ours in zip(model.parameters(), _theirs(network, weights), strict=True):
            ours.copy_(parameter.reshape(ours.shape))
    return weights


def _theirs(network: Network, weights: Tensor) -> list[Tensor]:
    """Views of flat weights as torch's modules shape them: outputs first, channels before rows and columns."""
    height, width, channels = network.image_sizes[-1]
    views = []
    for depth, (place, shape) in enumerate(zip(network.slices, network.shapes, strict=True)):
        layer = weights[place]
        if len(shape) == 1:
            views.append(layer)
        elif depth < 2 * len(network.convolutions):
            views.append(layer.view(KERNEL, KERNEL, -1, shape[1]).permute(3, 2, 0, 1))
        elif depth == 2 * len(network.convolutions):
            views.append(layer.view(height, width, channels, shape[1]).permute(3, 2, 0, 1))
        else:
            views.append(layer.view(shape).T)
    return views
