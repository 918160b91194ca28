"""Triton kernels for a stacked convolution with pooling: each model has kernels and images of its own.

A block is a 5 × 5 convolution, 2 × 2 max-pooling, biases and ReLU. The products of patches and kernels are computed
from the images themselves (implicit matrix products), and only pooled values leave the chip, with the position of each
maximum for the backward pass. A candidate for turnout.lab: benchmarks/fused_training.py measures it on a GPU.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

#: The position of the maximum in a 2 × 2 block, row by row, or this if the output is 0 and passes no gradient.
NOTHING = tl.constexpr(4)
POOLED_ROWS = 64  # pooled pixels of one program
INPUT_ROWS = 128  # input pixels of one program in the backward pass


@triton.jit
def _larger(one, other):
    return tl.maximum(one, other, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _corner(pixel, item_size, height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr, size: tl.constexpr):
    """Returns the offset of the first patch of each pooled pixel in the images of a model."""
    pooled_width: tl.constexpr = (width - size + 1) // 2
    pooled_height: tl.constexpr = (height - size + 1) // 2
    item = pixel // (pooled_height * pooled_width)
    place = pixel % (pooled_height * pooled_width)
    row, column = 2 * (place // pooled_width), 2 * (place % pooled_width)
    return item.to(tl.int64) * item_size + (row * width + column) * channels


@triton.jit
def _forward(
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
    wide: tl.constexpr,
):
    """pooled = ReLU(maximum of four products of a patch and the kernels + bias), and where the maximum is.

    The elements of a patch that belong to one row of the kernel are contiguous, and are processed in chunks.
    """
    model = tl.program_id(0).to(tl.int64)
    pixel = tl.program_id(1) * block + tl.arange(0, block)
    output = tl.arange(0, wide)
    run: tl.constexpr = size * channels
    chunks: tl.constexpr = (run + chunk - 1) // chunk
    step = tl.arange(0, chunk)
    inside = pixel < pixels
    corner = images + model * model_size + _corner(pixel, height * width * channels, height, width, channels, size)
    weights = kernels + model * (size * run * outputs)
    first = tl.zeros((block, wide), tl.float32)
    second = tl.zeros((block, wide), tl.float32)
    third = tl.zeros((block, wide), tl.float32)
    fourth = tl.zeros((block, wide), tl.float32)
    for part in range(size * chunks):
        row = part // chunks
        element = (part % chunks) * chunk + step
        valid = element < run
        factor = tl.load(
            weights + (row * run + element)[:, None] * outputs + output[None, :],
            mask=valid[:, None] & (output < outputs)[None, :],
            other=0.0,
        )
        here = inside[:, None] & valid[None, :]
        patch = corner[:, None] + (row * width * channels + element)[None, :]
        first = tl.dot(tl.load(patch, mask=here, other=0.0), factor, first)
        second = tl.dot(tl.load(patch + channels, mask=here, other=0.0), factor, second)
        third = tl.dot(tl.load(patch + width * channels, mask=here, other=0.0), factor, third)
        fourth = tl.dot(tl.load(patch + (width + 1) * channels, mask=here, other=0.0), factor, fourth)
    kind = pooled.dtype.element_ty
    first, second = first.to(kind).to(tl.float32), second.to(kind).to(tl.float32)
    third, fourth = third.to(kind).to(tl.float32), fourth.to(kind).to(tl.float32)
    largest = _larger(_larger(first, second), _larger(third, fourth))
    position = tl.where(first == largest, 0, tl.where(second == largest, 1, tl.where(third == largest, 2, 3)))
    bias = tl.load(biases + model * outputs + output, mask=output < outputs, other=0.0).to(tl.float32)
    value = largest + bias[None, :]
    target = (model * pixels + pixel)[:, None] * outputs + output[None, :]
    here = inside[:, None] & (output < outputs)[None, :]
    tl.store(pooled + target, tl.where(value <= 0.0, 0.0, value).to(kind), mask=here)
    tl.store(positions + target, tl.where(value <= 0.0, NOTHING, position).to(tl.uint8), mask=here)


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
    run: tl.constexpr = size * channels
    chunks: tl.constexpr = (run + chunk - 1) // chunk
    row = part // chunks
    element = (part % chunks) * chunk + tl.arange(0, chunk)
    output = tl.arange(0, wide)
    valid = element < run
    products = tl.zeros((chunk, wide), tl.float32)
    total = tl.zeros((wide,), tl.float32)
    for start in range(0, pixels, block):
        pixel = start + tl.arange(0, block)
        inside = pixel < pixels
        source = (model * pixels + pixel)[:, None] * outputs + output[None, :]
        here = inside[:, None] & (output < outputs)[None, :]
        slope = tl.load(slopes + source, mask=here, other=0.0)
        position = tl.load(positions + source, mask=here, other=4)
        corner = images + model * model_size + _corner(pixel, height * width * channels, height, width, channels, size)
        # Transposed: the elements of a patch are rows, and the patches columns.
        patch = corner[None, :] + (row * width * channels + element)[:, None]
        loaded = inside[None, :] & valid[:, None]
        for place in tl.static_range(4):
            values = tl.load(patch + (place // 2 * width + place % 2) * channels, mask=loaded, other=0.0)
            products = tl.dot(values, tl.where(position == place, slope, 0.0).to(values.dtype), products)
        total += tl.sum(tl.where(position < NOTHING, slope, 0.0).to(tl.float32), axis=0)
    target = kernels + model * (size * run * outputs) + (row * run + element)[:, None] * outputs + output[None, :]
    tl.store(target, products, mask=valid[:, None] & (output < outputs)[None, :])
    if part == 0:
        tl.store(biases + model * outputs + output, total, mask=output < outputs)


@triton.jit
def _image_gradients(
    slopes,
    positions,
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
    """gradients[y, x] = Σ kernel[i, j] · slope[y − i, x − j] over the patches that are the maximum of their block."""
    model = tl.program_id(0).to(tl.int64)
    pixel = tl.program_id(1) * block + tl.arange(0, block)
    rows: tl.constexpr = height - size + 1
    columns: tl.constexpr = width - size + 1
    pooled: tl.constexpr = (rows // 2) * (columns // 2)
    channel = tl.arange(0, wide_channels)
    output = tl.arange(0, wide)
    item = pixel // (height * width)
    y = pixel // width % height
    x = pixel % width
    items = pixels // (height * width)
    summed = tl.zeros((block, wide_channels), tl.float32)
    for shift in range(size * size):
        row, column = y - shift // size, x - shift % size
        inside = (pixel < pixels) & (row >= 0) & (row < rows) & (column >= 0) & (column < columns)
        place = (model * items + item) * pooled + row // 2 * (columns // 2) + column // 2
        source = place[:, None] * outputs + output[None, :]
        here = inside[:, None] & (output < outputs)[None, :]
        slope = tl.load(slopes + source, mask=here, other=0.0)
        position = tl.load(positions + source, mask=here, other=4)
        slope = tl.where(position == (row % 2 * 2 + column % 2)[:, None], slope, 0.0).to(slope.dtype)
        factor = tl.load(
            kernels + ((model * size * size + shift) * channels + channel)[None, :] * outputs + output[:, None],
            mask=(channel < channels)[None, :] & (output < outputs)[:, None],
            other=0.0,
        )
        summed = tl.dot(slope, factor, summed)
    target = (model * pixels + pixel)[:, None] * channels + channel[None, :]
    tl.store(gradients + target, summed, mask=(pixel < pixels)[:, None] & (channel < channels)[None, :])


def convolve(images: Tensor, kernels: Tensor, biases: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Returns the pooled values, (models, items, rows, columns, outputs), and the position of each maximum.

    Args:
        images: (models, items, height, width, channels); one set of images may be expanded over all models.
        kernels: (models, size · size · channels, outputs).
        biases: (models, outputs).
        size: The height and width of the kernels.
    """
    models, items, height, width, channels = images.shape
    outputs = kernels.shape[-1]
    shape = (models, items, (height - size + 1) // 2, (width - size + 1) // 2, outputs)
    pooled = images.new_empty(shape)
    positions = torch.empty(shape, dtype=torch.uint8, device=images.device)
    pixels = items * shape[2] * shape[3]
    chunk, wide = _chunk(size * channels), _padded(outputs)
    _forward[(models, triton.cdiv(pixels, POOLED_ROWS))](
        images, kernels, biases, pooled, positions, images.stride(0), pixels, outputs, height, width, channels, size,
        POOLED_ROWS, chunk, wide,
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
    chunk, wide = _chunk(size * channels), _padded(outputs)
    _kernel_gradients[(models, size * triton.cdiv(size * channels, chunk))](
        slopes, positions, images, gradients, sums, images.stride(0), pixels, outputs, height, width, channels, size,
        POOLED_ROWS, chunk, wide,
    )  # fmt: skip
    return gradients, sums


def image_gradients(slopes: Tensor, positions: Tensor, kernels: Tensor, images: Tensor, size: int) -> Tensor:
    """Returns the gradient of the images.

    Args:
        slopes: The gradient of the pooled values.
        positions: The position of each maximum.
        kernels: The kernels of the forward pass.
        images: The images, for the shape and type of their gradient.
        size: The height and width of the kernels.
    """
    models, items, height, width, channels = images.shape
    gradients = torch.empty_like(images, memory_format=torch.contiguous_format)
    pixels = items * height * width
    _image_gradients[(models, triton.cdiv(pixels, INPUT_ROWS))](
        slopes, positions, kernels, gradients, pixels, kernels.shape[-1], height, width, channels, size, INPUT_ROWS,
        _padded(kernels.shape[-1]), _padded(channels),
    )  # fmt: skip
    return gradients


def _chunk(run: int) -> int:
    """Returns the number of elements of a row of a patch in one product: at least 16, as tensor cores require."""
    return min(64, _padded(run)) if run % 64 == 0 or run <= 64 else 32


def _padded(count: int) -> int:
    return max(16, int(triton.next_power_of_2(count)))
