"""The paper's networks in torch: the forward pass of one model, and of many models in one computation.

Both take the layers of networks.Network, (inputs, outputs) matrices and biases, and give equal results. Images have the
shape (…, height, width, channels).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from turnout.lab.training.learners.base import Training
from turnout.lab.training.learners.networks import KERNEL, POOL, Network


class PaperCNN(nn.Module):
    """A network as a module, with the same flat weights; its inputs are images with pixel values.

    Args:
        network: The architecture.
        brightness: The mean and the standard deviation of the pixel values, by which they are scaled.
        precision: "float32" or "float64", for weights and products.
    """

    def __init__(self, network: Network, brightness: tuple[float, float], precision: str = "float32") -> None:
        super().__init__()
        self._network, self._brightness = network, brightness
        self._dtype: torch.dtype = getattr(torch, precision)
        for name, layer in network.layers(np.zeros(network.parameters, precision)).items():
            self.register_parameter(name, nn.Parameter(torch.from_numpy(layer)))

    def forward(self, images: Tensor) -> Tensor:
        """Returns one score per class, (items, classes)."""
        mean, deviation = self._brightness
        scaled = ((images.double() - mean) / deviation).to(self._dtype)
        matrices = [layer.flatten(0, -2) if layer.dim() > 1 else layer for layer in self.parameters()]
        return scores(self._network, matrices, scaled)


def scores(network: Network, layers: Sequence[Tensor], images: Tensor) -> Tensor:
    """Returns the scores of one model, (items, classes); torch's own convolution is the fastest on a CPU."""
    values = images.permute(0, 3, 1, 2)  # a view: the memory layout stays channels-last
    for depth in range(0, 2 * len(network.convolutions), 2):
        maps = layers[depth].reshape(KERNEL, KERNEL, -1, layers[depth].shape[-1]).permute(3, 2, 0, 1)
        values = functional.relu(functional.max_pool2d(functional.conv2d(values, maps, layers[depth + 1]), POOL))
    values = values.permute(0, 2, 3, 1).flatten(1)
    for depth in range(2 * len(network.convolutions), len(layers) - 2, 2):
        values = functional.relu(torch.addmm(layers[depth + 1], values, layers[depth]))
    return torch.addmm(layers[-1], values, layers[-2])


def stacked_scores(network: Network, layers: Sequence[Tensor], images: Tensor) -> Tensor:
    """Returns the scores of many models, (models, items, classes)."""
    values = images
    for depth in range(0, 2 * len(network.convolutions), 2):
        values = convolution_block(values, layers[depth], layers[depth + 1])
    values = values.flatten(2)
    for depth in range(2 * len(network.convolutions), len(layers) - 2, 2):
        values = functional.relu(torch.baddbmm(layers[depth + 1].unsqueeze(1), values, layers[depth]))
    return torch.baddbmm(layers[-1].unsqueeze(1), values, layers[-2])


def convolution_block(images: Tensor, kernels: Tensor, biases: Tensor) -> Tensor:
    """Applies a convolution, 2 × 2 max-pooling, biases and ReLU: (models, items, rows, columns, outputs).

    Args:
        images: (models, items, height, width, channels).
        kernels: (models, row · column · channel, outputs).
        biases: (models, outputs).
    """
    if images.is_cuda and images.dtype != torch.float64:
        images = images if images[0].is_contiguous() else images.contiguous()  # the kernels know the models' stride
        fused: Tensor = FusedBlock.apply(images, kernels.contiguous(), biases.contiguous())  # type: ignore[no-untyped-call]
        return fused
    # One grouped convolution. The order of dimensions is that of torch: outputs and channels of all models in one.
    # Biases are added after pooling, as by the kernels: in bfloat16, they would decide which value is the largest.
    models, items, height, width, channels = images.shape
    maps = (
        kernels.view(models, KERNEL, KERNEL, channels, -1).permute(0, 4, 3, 1, 2).reshape(-1, channels, KERNEL, KERNEL)
    )
    values = images.permute(1, 0, 4, 2, 3).reshape(items, -1, height, width)
    pooled = functional.max_pool2d(functional.conv2d(values, maps, groups=models), POOL) + biases.view(-1, 1, 1)
    return functional.relu(pooled).view(items, models, -1, *pooled.shape[2:]).permute(1, 0, 3, 4, 2)


def descend(
    training: Training,
    layers: Sequence[Tensor],
    start: Sequence[Tensor],
    gradients: Sequence[Tensor],
    momenta: Sequence[Tensor],
    copies: Sequence[Tensor] | None = None,
    active: Tensor | None = None,
) -> None:
    """Takes one step of gradient descent, in place.

    Args:
        training: Learning rate, momentum, weight decay and proximal term.
        layers: The current parameters, which are updated.
        start: The parameters before local training, for the proximal term.
        gradients: The gradient of the loss by layer.
        momenta: The momentum buffers, which are updated; empty without momentum.
        copies: The parameters in another type, which are updated too; None, or `layers` themselves, if there are none.
        active: Which of the stacked models take the step; by default all.
    """
    if copies is layers:
        copies = None
    plain = active is None and not training.momentum and not training.proximal_mu
    if plain and copies is not None and layers[0].is_cuda:
        from turnout.lab.training.learners import gpu_kernels

        for layer, gradient, copy in zip(layers, gradients, copies, strict=True):
            gpu_kernels.descend(layer, gradient.contiguous(), copy, training.learning_rate, training.weight_decay)
        return
    with torch.no_grad():
        for index, (layer, gradient) in enumerate(zip(layers, gradients, strict=True)):
            if training.weight_decay:
                gradient = gradient.add(layer, alpha=training.weight_decay)
            if training.proximal_mu:
                gradient = gradient.add(layer - start[index], alpha=training.proximal_mu)
            if training.momentum:
                gradient = momenta[index].mul_(training.momentum).add_(gradient)
            if active is not None:
                gradient = torch.where(active.view(-1, *[1] * (layer.dim() - 1)), gradient, 0.0)
            layer.sub_(gradient, alpha=training.learning_rate)
            if copies is not None:
                copies[index].copy_(layer)


class FusedBlock(torch.autograd.Function):
    """The convolution block on a GPU: one kernel for the forward pass, two or three for the backward pass."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, kernels: Tensor, biases: Tensor) -> Tensor:
        """Computes the block, and saves the position of each maximum if there will be a backward pass."""
        from turnout.lab.training.learners import gpu_kernels

        pooled, positions = gpu_kernels.convolve(
            images, kernels, biases, KERNEL, with_positions=any(ctx.needs_input_grad)
        )
        ctx.save_for_backward(images, kernels, positions)
        return pooled

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        """Passes the gradient to the first maximum of each 2 × 2 block if it is positive with its bias."""
        from turnout.lab.training.learners import gpu_kernels

        images, kernels, positions = ctx.saved_tensors
        slopes = gradients[0].contiguous()
        of_kernels, of_biases = gpu_kernels.kernel_gradients(slopes, positions, images, kernels, KERNEL)
        if not ctx.needs_input_grad[0]:
            return None, of_kernels, of_biases
        maps = gpu_kernels.spread(slopes, positions)
        of_images = gpu_kernels.image_gradients(maps, kernels, images, KERNEL)
        return of_images, of_kernels, of_biases
