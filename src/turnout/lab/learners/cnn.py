"""The paper's networks in torch: one model at a time, and many models in one computation.

Both take the layers of networks.Network, (inputs, outputs) matrices and biases, and give the same numbers. Images are
(…, height, width, channels).
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
    """Of one model, (items, classes): torch's own convolution, which is the fastest on a CPU."""
    values = images.permute(0, 3, 1, 2)  # channels still lie last in memory
    for depth in range(0, 2 * len(network.convolutions), 2):
        maps = layers[depth].reshape(KERNEL, KERNEL, -1, layers[depth].shape[-1]).permute(3, 2, 0, 1)
        values = functional.relu(functional.max_pool2d(functional.conv2d(values, maps, layers[depth + 1]), POOL))
    values = values.permute(0, 2, 3, 1).flatten(1)
    for depth in range(2 * len(network.convolutions), len(layers) - 2, 2):
        values = functional.relu(torch.addmm(layers[depth + 1], values, layers[depth]))
    return torch.addmm(layers[-1], values, layers[-2])


def stacked_scores(network: Network, layers: Sequence[Tensor], images: Tensor) -> Tensor:
    """Of many models, (models, items, classes): a convolution is one matrix product a model over all its patches."""
    values, (models, items) = images, images.shape[:2]
    for depth in range(0, 2 * len(network.convolutions), 2):
        patches: Tensor = Patches.apply(values.flatten(0, 1).contiguous())  # type: ignore[no-untyped-call]
        _, height, width, size = patches.shape
        maps = torch.baddbmm(layers[depth + 1].unsqueeze(1), patches.view(models, -1, size), layers[depth])
        pooled: Tensor = PoolRelu.apply(maps.view(models * items, height, width, -1))  # type: ignore[no-untyped-call]
        values = pooled.view(models, items, *pooled.shape[1:])
    values = values.flatten(2)
    for depth in range(2 * len(network.convolutions), len(layers) - 2, 2):
        values = functional.relu(torch.baddbmm(layers[depth + 1].unsqueeze(1), values, layers[depth]))
    return torch.baddbmm(layers[-1].unsqueeze(1), values, layers[-2])


def descend(
    how: Training,
    layers: Sequence[Tensor],
    start: Sequence[Tensor],
    slopes: Sequence[Tensor],
    momenta: Sequence[Tensor],
) -> None:
    """One step down, in place; `momenta` are empty where there is no momentum."""
    with torch.no_grad():
        for place, (layer, slope) in enumerate(zip(layers, slopes, strict=True)):
            if how.weight_decay:
                slope = slope.add(layer, alpha=how.weight_decay)
            if how.proximal_mu:
                slope = slope.add(layer - start[place], alpha=how.proximal_mu)
            if how.momentum:
                slope = momenta[place].mul_(how.momentum).add_(slope)
            layer.sub_(slope, alpha=how.learning_rate)


class Patches(torch.autograd.Function):
    """What each place of a convolution sees: (items, rows, columns, row · column · channel)."""

    @staticmethod
    def forward(ctx: Any, images: Tensor) -> Tensor:
        """On a GPU by our kernel, elsewhere by torch's views."""
        ctx.height, ctx.width = images.shape[1:3]
        if images.is_cuda:
            from turnout.lab.learners import gpu_kernels

            return gpu_kernels.patches(images, KERNEL)
        return images.unfold(1, KERNEL, 1).unfold(2, KERNEL, 1).permute(0, 1, 2, 4, 5, 3).flatten(3)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Tensor:
        """Every pixel is in as many patches as there are places that see it."""
        slope = slopes[0].contiguous()
        if slope.is_cuda:
            from turnout.lab.learners import gpu_kernels

            return gpu_kernels.folded(slope, ctx.height, ctx.width, KERNEL)
        items, rows, columns, _ = slope.shape
        parts = slope.view(items, rows, columns, KERNEL, KERNEL, -1)
        images = slope.new_zeros(items, ctx.height, ctx.width, parts.shape[-1])
        for i in range(KERNEL):
            for j in range(KERNEL):
                images[:, i : i + rows, j : j + columns] += parts[:, :, :, i, j]
        return images


class PoolRelu(torch.autograd.Function):
    """2 × 2 max-pooling, then ReLU."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor) -> Tensor:
        """The largest of four, or 0; a NaN stays one."""
        ctx.save_for_backward(maps)
        if maps.is_cuda:
            from turnout.lab.learners import gpu_kernels

            return gpu_kernels.pooled(maps)
        return functional.relu(functional.max_pool2d(maps.permute(0, 3, 1, 2), POOL)).permute(0, 2, 3, 1)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Tensor:
        """To the first of the largest, if it is above 0."""
        (maps,) = ctx.saved_tensors
        slope = slopes[0].contiguous()
        if maps.is_cuda:
            from turnout.lab.learners import gpu_kernels

            return gpu_kernels.unpooled(slope, maps)
        with torch.enable_grad():
            again = maps.detach().requires_grad_()
            out = functional.relu(functional.max_pool2d(again.permute(0, 3, 1, 2), POOL)).permute(0, 2, 3, 1)
            back: Tensor = torch.autograd.grad(out, again, slope)[0]
            return back
