"""Triton kernels for many models at once: convolution blocks, and gradient descent.

A block is a 5 × 5 convolution, 2 × 2 max-pooling, biases and ReLU. Each model has kernels and images of its own. The
products of patches and kernels are computed from the images themselves (implicit matrix products), and only pooled
values are stored, with the position of each maximum for the backward pass. cnn.py has a reference implementation in
plain torch; this module is imported on a GPU only.

The sizes of the tiles were measured on an H200, with 128 models and ten images each.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

#: The position of the maximum in a 2 × 2 block, row by row, or this if the output is 0 and passes no gradient.
NOTHING = tl.constexpr(4)
BLOCK = 1024  # elements of one program of `_spread` and `_descend`
IMAGE_PIXELS = 128  # of one program of `_image_gradients`
FEW = 16  # with fewer channels, a patch is too short to be loaded row by row


@triton.jit
def _larger(one, other):
    return tl.maximum(one, other, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _elements(
    part, channels: tl.constexpr, width: tl.constexpr, size: tl.constexpr, chunk: tl.constexpr, flat: tl.constexpr
):
    """Returns the elements of a patch in one chunk, which of them exist, and their offsets in the image.

    With `flat`, chunks follow each other without a gap. Otherwise a chunk is within one row of the kernel, whose
    elements are contiguous in the image.
    """
    run: tl.constexpr = size * channels
    step = tl.arange(0, chunk)
    if flat:
        element = part * chunk + step
        valid = element < size * run
        offset = element // run * (width * channels) + element % run
    else:
        chunks: tl.constexpr = (run + chunk - 1) // chunk
        row = part // chunks
        within = (part % chunks) * chunk + step
        valid = within < run
        element = row * run + within
        offset = row * (width * channels) + within
    return element, valid, offset


@triton.jit
def _corner(pixel, height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr, size: tl.constexpr):
    """Returns the offset of the first patch of each pooled pixel in the images of a model."""
    rows: tl.constexpr = (height - size + 1) // 2
    columns: tl.constexpr = (width - size + 1) // 2
    item = (pixel // (rows * columns)).to(tl.int64)
    place = pixel % (rows * columns)
    return ((item * height + 2 * (place // columns)) * width + 2 * (place % columns)) * channels


@triton.jit
def _convolve(
    images,
    kernels,
    biases,
    pooled,
    positions,
    model_size,
    pixels,
    outputs: tl.constexpr,
    height: tl.constexpr,
    width: tl.constexpr,
    channels: tl.constexpr,
    size: tl.constexpr,
    block: tl.constexpr,
    chunk: tl.constexpr,
    flat: tl.constexpr,
    parts: tl.constexpr,
    wide: tl.constexpr,
    with_positions: tl.constexpr,
):
    """pooled = ReLU(maximum of four products of a patch and the kernels + bias), and where the maximum is."""
    model = tl.program_id(0).to(tl.int64)
    pixel = tl.program_id(1) * block + tl.arange(0, block)
    output = tl.arange(0, wide)
    inside = pixel < pixels
    patches = images + model * model_size + _corner(pixel, height, width, channels, size)
    weights = kernels + model * (size * size * channels * outputs)
    first = tl.zeros((block, wide), tl.float32)
    second = tl.zeros((block, wide), tl.float32)
    third = tl.zeros((block, wide), tl.float32)
    fourth = tl.zeros((block, wide), tl.float32)
    for part in range(parts):
        element, valid, offset = _elements(part, channels, width, size, chunk, flat)
        factor = tl.load(
            weights + element[:, None] * outputs + output[None, :],
            mask=valid[:, None] & (output < outputs)[None, :],
            other=0.0,
        )
        here = inside[:, None] & valid[None, :]
        patch = patches[:, None] + offset[None, :]
        first = _added(patch, here, factor, first)
        second = _added(patch + channels, here, factor, second)
        third = _added(patch + width * channels, here, factor, third)
        fourth = _added(patch + (width + 1) * channels, here, factor, fourth)
    kind = pooled.dtype.element_ty
    first, second = first.to(kind).to(tl.float32), second.to(kind).to(tl.float32)
    third, fourth = third.to(kind).to(tl.float32), fourth.to(kind).to(tl.float32)
    largest = _larger(_larger(first, second), _larger(third, fourth))
    bias = tl.load(biases + model * outputs + output, mask=output < outputs, other=0.0).to(tl.float32)
    value = largest + bias[None, :]
    target = (model * pixels + pixel)[:, None] * outputs + output[None, :]
    here = inside[:, None] & (output < outputs)[None, :]
    tl.store(pooled + target, tl.where(value <= 0.0, 0.0, value).to(kind), mask=here)
    if with_positions:
        position = tl.where(first == largest, 0, tl.where(second == largest, 1, tl.where(third == largest, 2, 3)))
        tl.store(positions + target, tl.where(value <= 0.0, NOTHING, position).to(tl.uint8), mask=here)


@triton.jit
def _added(patch, here, factor, summed):
    """Returns the sum and the product of a patch and its kernels; float32 is not rounded to TensorFloat-32."""
    return tl.dot(tl.load(patch, mask=here, other=0.0), factor, summed, input_precision="ieee")


@triton.jit
def _kernel_gradients(
    slopes,
    positions,
    images,
    kernels,
    biases,
    model_size,
    pixels,
    outputs: tl.constexpr,
    height: tl.constexpr,
    width: tl.constexpr,
    channels: tl.constexpr,
    size: tl.constexpr,
    block: tl.constexpr,
    chunk: tl.constexpr,
    wide: tl.constexpr,
):
    """kernels = Σ patch · slope over all patches that are the maximum of their block, biases = Σ slope."""
    model = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    output = tl.arange(0, wide)
    element, valid, offset = _elements(part, channels, width, size, chunk, True)
    products = tl.zeros((chunk, wide), tl.float32)
    total = tl.zeros((wide,), tl.float32)
    for start in range(0, pixels, block):
        pixel = start + tl.arange(0, block)
        inside = pixel < pixels
        source = (model * pixels + pixel)[:, None] * outputs + output[None, :]
        here = inside[:, None] & (output < outputs)[None, :]
        slope = tl.load(slopes + source, mask=here, other=0.0)
        position = tl.load(positions + source, mask=here, other=4)
        corner = _corner(pixel, height, width, channels, size)
        patch = (images + model * model_size + corner)[:, None] + offset[None, :]
        loaded = inside[:, None] & valid[None, :]
        for place in tl.static_range(4):
            values = tl.load(patch + (place // 2 * width + place % 2) * channels, mask=loaded, other=0.0)
            chosen = tl.where(position == place, slope, 0.0).to(values.dtype)
            products = tl.dot(tl.trans(values), chosen, products, input_precision="ieee")
        total += tl.sum(tl.where(position < NOTHING, slope, 0.0).to(tl.float32), axis=0)
    target = kernels + model * (size * size * channels * outputs) + element[:, None] * outputs + output[None, :]
    tl.store(target, products, mask=valid[:, None] & (output < outputs)[None, :])
    if part == 0:
        tl.store(biases + model * outputs + output, total, mask=output < outputs)


@triton.jit
def _spread(slopes, positions, maps, total, outputs, padded, half, block: tl.constexpr):
    """maps[2 · y + a, 2 · x + b] = slope[y, x] where (a, b) is the position of the maximum, otherwise 0."""
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    here = at < total
    output = at % padded
    pixel = at // padded
    known = here & (output < outputs)
    slope = tl.load(slopes + pixel * outputs + output, mask=known, other=0.0)
    position = tl.load(positions + pixel * outputs + output, mask=known, other=4)
    first = maps + (pixel // half * (4 * half) + pixel % half * 2) * padded + output
    tl.store(first, tl.where(position == 0, slope, 0.0), mask=here)
    tl.store(first + padded, tl.where(position == 1, slope, 0.0), mask=here)
    tl.store(first + 2 * half * padded, tl.where(position == 2, slope, 0.0), mask=here)
    tl.store(first + (2 * half + 1) * padded, tl.where(position == 3, slope, 0.0), mask=here)


@triton.jit
def _image_gradients(
    maps,
    kernels,
    gradients,
    pixels,
    outputs: tl.constexpr,
    height: tl.constexpr,
    width: tl.constexpr,
    channels: tl.constexpr,
    size: tl.constexpr,
    block: tl.constexpr,
    wide: tl.constexpr,
    wide_channels: tl.constexpr,
):
    """gradients[y, x] = Σ kernel[i, j] · map[y − i, x − j] over all i and j."""
    model = tl.program_id(0).to(tl.int64)
    pixel = tl.program_id(1) * block + tl.arange(0, block)
    rows: tl.constexpr = height - size + 1
    columns: tl.constexpr = width - size + 1
    channel = tl.arange(0, wide_channels)
    output = tl.arange(0, wide)
    item = pixel // (height * width)
    y = pixel // width % height
    x = pixel % width
    items = pixels // (height * width)
    source = maps + ((model * items + item) * (rows * columns) + y * columns + x)[:, None] * wide + output[None, :]
    factors = kernels + model * (size * size * channels * outputs) + channel[None, :] * outputs + output[:, None]
    exists = (channel < channels)[None, :] & (output < outputs)[:, None]
    summed = tl.zeros((block, wide_channels), tl.float32)
    for shift in range(size * size):
        i, j = shift // size, shift % size
        inside = (pixel < pixels) & (y >= i) & (y - i < rows) & (x >= j) & (x - j < columns)
        factor = tl.load(factors + shift * (channels * outputs), mask=exists, other=0.0)
        summed = _added(source - (i * columns + j) * wide, inside[:, None], factor, summed)
    target = (model * pixels + pixel)[:, None] * channels + channel[None, :]
    tl.store(gradients + target, summed, mask=(pixel < pixels)[:, None] & (channel < channels)[None, :])


@triton.jit
def _descend(layer, gradient, copy, total, rate, decay, block: tl.constexpr):
    """layer −= rate · (gradient + decay · layer), and a copy of the result in another type."""
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    here = at < total
    weight = tl.load(layer + at, mask=here, other=0.0)
    slope = tl.load(gradient + at, mask=here, other=0.0).to(weight.dtype) + decay * weight
    weight -= rate * slope
    tl.store(layer + at, weight, mask=here)
    tl.store(copy + at, weight, mask=here)


def convolve(
    images: Tensor, kernels: Tensor, biases: Tensor, size: int, *, with_positions: bool = True
) -> tuple[Tensor, Tensor | None]:
    """Returns the pooled values, (models, items, rows, columns, outputs), and the position of each maximum.

    Args:
        images: (models, items, height, width, channels); one set of images may be expanded over all models.
        kernels: (models, size · size · channels, outputs).
        biases: (models, outputs).
        size: The height and width of the kernels.
        with_positions: Whether the positions are needed; otherwise they are None.
    """
    models, items, height, width, channels = images.shape
    outputs = kernels.shape[-1]
    shape = (models, items, (height - size + 1) // 2, (width - size + 1) // 2, outputs)
    pooled = images.new_empty(shape)
    positions = torch.empty(shape, dtype=torch.uint8, device=images.device) if with_positions else None
    pixels = items * shape[2] * shape[3]
    flat = channels < FEW
    chunk = _padded(size * size * channels) if flat else 32 if channels % 32 == 0 else 16
    parts = 1 if flat else size * triton.cdiv(size * channels, chunk)
    block = 32 if chunk == 16 else 64
    _convolve[(models, triton.cdiv(pixels, block))](
        images, kernels, biases, pooled, positions, images.stride(0), pixels, outputs, height, width, channels, size,
        block, chunk, flat, parts, _padded(outputs), with_positions, num_warps=4, num_stages=3,
    )  # fmt: skip
    return pooled, positions


def kernel_gradients(
    slopes: Tensor, positions: Tensor, images: Tensor, kernels: Tensor, size: int
) -> tuple[Tensor, Tensor]:
    """Returns the gradients of kernels and biases.

    Args:
        slopes: The gradient of the pooled values.
        positions: The position of each maximum.
        images: The images of the forward pass.
        kernels: The kernels, for the shape and type of their gradients.
        size: The height and width of the kernels.
    """
    models, items, height, width, channels = images.shape
    outputs = kernels.shape[-1]
    gradients, sums = torch.empty_like(kernels), kernels.new_empty(models, outputs)
    pixels = items * slopes.shape[2] * slopes.shape[3]
    length = size * size * channels
    block, chunk, stages = (64, max(16, _padded(length) // 2), 1) if channels < FEW else (32, 128, 2)
    _kernel_gradients[(models, triton.cdiv(length, chunk))](
        slopes, positions, images, gradients, sums, images.stride(0), pixels, outputs, height, width, channels, size,
        block, chunk, _padded(outputs), num_warps=4, num_stages=stages,
    )  # fmt: skip
    return gradients, sums


def spread(slopes: Tensor, positions: Tensor) -> Tensor:
    """Returns the gradient of the maps before pooling; zeros fill up the outputs to a power of two.

    Args:
        slopes: The gradient of the pooled values.
        positions: The position of each maximum.
    """
    models, items, rows, columns, outputs = slopes.shape
    maps = slopes.new_empty(models, items, 2 * rows, 2 * columns, _padded(outputs))
    total = maps.numel() // 4
    _spread[(triton.cdiv(total, BLOCK),)](slopes, positions, maps, total, outputs, maps.shape[-1], columns, BLOCK)
    return maps


def image_gradients(maps: Tensor, kernels: Tensor, images: Tensor, size: int) -> Tensor:
    """Returns the gradient of the images.

    Args:
        maps: The gradient of the maps, from `spread`.
        kernels: The kernels of the forward pass.
        images: The images, for the shape and type of their gradient.
        size: The height and width of the kernels.
    """
    models, items, height, width, channels = images.shape
    gradients = torch.empty_like(images, memory_format=torch.contiguous_format)
    pixels = items * height * width
    _image_gradients[(models, triton.cdiv(pixels, IMAGE_PIXELS))](
        maps, kernels, gradients, pixels, kernels.shape[-1], height, width, channels, size, IMAGE_PIXELS,
        maps.shape[-1], _padded(channels), num_warps=4, num_stages=3,
    )  # fmt: skip
    return gradients


def descend(layer: Tensor, gradient: Tensor, copy: Tensor, rate: float, decay: float) -> None:
    """Takes one step of gradient descent with weight decay, in place, and writes the result to `copy` too."""
    total = layer.numel()
    _descend[(triton.cdiv(total, BLOCK),)](layer, gradient, copy, total, rate, decay, BLOCK)


def _padded(count: int) -> int:
    """Returns the power of two that tensor cores need for this many rows or columns."""
    return max(16, int(triton.next_power_of_2(count)))
