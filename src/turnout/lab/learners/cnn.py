"""The paper's networks in torch: the forward pass of one model, and of many models in one computation.

Both take the layers of networks.Network, (inputs, outputs) matrices and biases, and give equal results. Images have the
shape (…, height, width, channels).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from turnout.lab.learners.base import Training
from turnout.lab.learners.networks import KERNEL, POOL, Network


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
    """Returns the scores of many models, (models, items, classes).

    A convolution is one batched matrix product over the patches of all models. Its biases are added after pooling,
    which gives the same maxima and needs less memory.
    """
    values, (models, items) = images, images.shape[:2]
    for depth in range(0, 2 * len(network.convolutions), 2):
        patches: Tensor = Patches.apply(values.flatten(0, 1).contiguous())  # type: ignore[no-untyped-call]
        _, height, width, size = patches.shape
        kernels, missing = layers[depth], size - layers[depth].shape[1]
        if missing:
            kernels = functional.pad(kernels, (0, 0, 0, missing))
        maps = torch.bmm(patches.view(models, -1, size), kernels).view(models * items, height, width, -1)
        pooled: Tensor = PoolRelu.apply(maps, layers[depth + 1])  # type: ignore[no-untyped-call]
        values = pooled.view(models, items, *pooled.shape[1:])
    values = values.flatten(2)
    for depth in range(2 * len(network.convolutions), len(layers) - 2, 2):
        values = functional.relu(torch.baddbmm(layers[depth + 1].unsqueeze(1), values, layers[depth]))
    return torch.baddbmm(layers[-1].unsqueeze(1), values, layers[-2])


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
    if copies is not None and layers[0].is_cuda and not training.momentum and not training.proximal_mu:
        from turnout.lab.learners import gpu_kernels

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


#: Patches have a multiple of this many elements on a GPU.
PATCH_MULTIPLE = 8


class Patches(torch.autograd.Function):
    """Extracts the patches of a convolution (im2col): (items, rows, columns, row · column · channel)."""

    @staticmethod
    def forward(ctx: Any, images: Tensor) -> Tensor:
        """Uses the Triton kernel on a GPU and torch's unfold elsewhere."""
        ctx.height, ctx.width, ctx.channels = images.shape[1:]
        if images.is_cuda:
            from turnout.lab.learners import gpu_kernels

            return gpu_kernels.patches(images, KERNEL, PATCH_MULTIPLE)
        return images.unfold(1, KERNEL, 1).unfold(2, KERNEL, 1).permute(0, 1, 2, 4, 5, 3).flatten(3)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        """Sums, for every pixel, the gradients of all patches that contain it."""
        gradient = gradients[0].contiguous()
        if gradient.is_cuda:
            from turnout.lab.learners import gpu_kernels

            return gpu_kernels.folded(gradient, ctx.height, ctx.width, ctx.channels, KERNEL)
        items, rows, columns, _ = gradient.shape
        parts = gradient.view(items, rows, columns, KERNEL, KERNEL, -1)
        images = gradient.new_zeros(items, ctx.height, ctx.width, parts.shape[-1])
        for i in range(KERNEL):
            for j in range(KERNEL):
                images[:, i : i + rows, j : j + columns] += parts[:, :, :, i, j]
        return images


class PoolRelu(torch.autograd.Function):
    """2 × 2 max-pooling, followed by biases and ReLU.

    The maps are (models · items, height, width, channels), the biases (models, channels).
    """

    @staticmethod
    def forward(ctx: Any, maps: Tensor, biases: Tensor) -> Tensor:
        """Returns the maximum of each 2 × 2 block plus its bias, at least 0; NaN is propagated."""
        ctx.save_for_backward(maps, biases)
        if maps.is_cuda:
            from turnout.lab.learners import gpu_kernels

            return gpu_kernels.pooled(maps, biases)
        return _pooled(maps, biases)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Passes the gradient to the first maximum of each block if it is positive with its bias."""
        maps, biases = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        if maps.is_cuda:
            from turnout.lab.learners import gpu_kernels

            back = gpu_kernels.unpooled(gradient, maps, biases)
        else:
            with torch.enable_grad():
                leaf = maps.detach().requires_grad_()
                back = torch.autograd.grad(_pooled(leaf, biases.detach()), leaf, gradient)[0]
        return back, back.view(len(biases), -1, maps.shape[-1]).sum(dim=1)


def _pooled(maps: Tensor, biases: Tensor) -> Tensor:
    pooled = functional.max_pool2d(maps.permute(0, 3, 1, 2), POOL).permute(0, 2, 3, 1)
    added = pooled.reshape(len(biases), -1, maps.shape[-1]) + biases.unsqueeze(1)
    return functional.relu(added).view(pooled.shape)
