"""Triton kernels for patch extraction, pooling and descent; each reads and writes its data once.

Images have the shape (items, height, width, channels). Every kernel has a reference implementation in plain torch, in
cnn.py, with equal results; this module is imported on a GPU only.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024  # elements that one program writes; the first grid axis is the item


@triton.jit
def _patches(
    images,
    patches,
    height: tl.constexpr,
    width: tl.constexpr,
    channels: tl.constexpr,
    size: tl.constexpr,
    padded: tl.constexpr,
    block: tl.constexpr,
):
    """patches[item, y, x, i, j, c] = images[item, y + i, x + j, c]; for each i, j and c are contiguous in both.

    A patch has `padded` elements, and zeros at its end.
    """
    item = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    rows, columns = height - size + 1, width - size + 1
    element = at % padded
    run = element % (size * channels)
    i = element // (size * channels)
    place = at // padded
    source = images + item * (height * width * channels) + ((place // columns + i) * width + place % columns) * channels
    total = rows * columns * padded
    here = at < total
    values = tl.load(source + run, mask=here & (element < size * size * channels), other=0)
    tl.store(patches + item * total + at, values, mask=here)


@triton.jit
def _folded(
    slopes,
    images,
    height: tl.constexpr,
    width: tl.constexpr,
    channels: tl.constexpr,
    size: tl.constexpr,
    padded: tl.constexpr,
    block: tl.constexpr,
):
    """Backward pass: images[item, y, x, c] = sum of slopes[item, y − i, x − j, i, j, c] over all i and j."""
    item = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    rows, columns = height - size + 1, width - size + 1
    c = at % channels
    x = at // channels % width
    y = at // channels // width
    here = at < height * width * channels
    wide: tl.constexpr = tl.float64 if slopes.dtype.element_ty == tl.float64 else tl.float32
    summed = tl.zeros((block,), wide)
    source = slopes + item * (rows * columns * padded) + c
    for i in tl.static_range(size):
        for j in tl.static_range(size):
            inside = here & (y >= i) & (y - i < rows) & (x >= j) & (x - j < columns)
            place = ((y - i) * columns + x - j) * padded + (i * size + j) * channels
            summed += _load(source + place, inside)
    tl.store(images + item * (height * width * channels) + at, summed, mask=here)


@triton.jit
def _four(maps, item, at, height, width, channels: tl.constexpr):
    """Returns pointers to the four elements that are pooled into output element `at`."""
    half = width // 2
    place = at // channels
    corner = (2 * (place // half) * width + 2 * (place % half)) * channels + at % channels
    first = maps + item * (height * width * channels) + corner
    return first, first + channels, first + width * channels, first + (width + 1) * channels


@triton.jit
def _larger(one, other):
    return tl.maximum(one, other, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _load(place, here):
    """Loads with at least float32 precision; masked elements are 0."""
    wide: tl.constexpr = tl.float64 if place.dtype.element_ty == tl.float64 else tl.float32
    return tl.load(place, mask=here, other=0.0).to(wide)


@triton.jit
def _pooled(maps, biases, pooled, height, width, items, channels: tl.constexpr, block: tl.constexpr):
    """Maximum of each 2 × 2 block, plus the bias, and 0; NaN is propagated. `items` are those of one model."""
    item = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    total = height // 2 * (width // 2) * channels
    here = at < total
    a, b, c, d = _four(maps, item, at, height, width, channels)
    above = _larger(_load(a, here), _load(b, here))
    largest = _larger(above, _larger(_load(c, here), _load(d, here)))
    largest += _load(biases + item // items * channels + at % channels, here)
    tl.store(pooled + item * total + at, tl.where(largest <= 0.0, 0.0, largest), mask=here)


@triton.jit
def _unpooled(slopes, maps, biases, back, height, width, items, channels: tl.constexpr, block: tl.constexpr):
    """Backward pass: the gradient goes to the first maximum of each block if it is positive with its bias."""
    item = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    total = height // 2 * (width // 2) * channels
    here = at < total
    a, b, c, d = _four(maps, item, at, height, width, channels)
    first = _load(a, here)
    second = _load(b, here)
    third = _load(c, here)
    largest = _larger(_larger(first, second), _larger(third, _load(d, here)))
    slope = _load(slopes + item * total + at, here)
    bias = _load(biases + item // items * channels + at % channels, here)
    slope = tl.where(largest + bias <= 0.0, 0.0, slope)
    one = first == largest
    two = (second == largest) & ~one
    three = (third == largest) & ~one & ~two
    a, b, c, d = _four(back, item, at, height, width, channels)
    tl.store(a, tl.where(one, slope, 0.0), mask=here)
    tl.store(b, tl.where(two, slope, 0.0), mask=here)
    tl.store(c, tl.where(three, slope, 0.0), mask=here)
    tl.store(d, tl.where(one | two | three, 0.0, slope), mask=here)


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


def descend(layer: Tensor, gradient: Tensor, copy: Tensor, rate: float, decay: float) -> None:
    """Takes one step of gradient descent with weight decay, in place, and writes the result to `copy` too."""
    total = layer.numel()
    _descend[(triton.cdiv(total, BLOCK),)](layer, gradient, copy, total, rate, decay, BLOCK)


def patches(images: Tensor, size: int, multiple: int = 1) -> Tensor:
    """Extracts patches: (items, height, width, channels) → (items, rows, columns, size · size · channels).

    The length of a patch is rounded up to a multiple, with zeros: matrix products are faster with multiples of 8.
    """
    items, height, width, channels = images.shape
    padded = triton.cdiv(size * size * channels, multiple) * multiple
    out = images.new_empty(items, height - size + 1, width - size + 1, padded)
    # The kernel only copies: where channels fill whole words, it copies words.
    per_word = torch.int64.itemsize // images.element_size()
    if channels % per_word == 0 and padded == size * size * channels:
        _copy_patches(images.view(torch.int64), out.view(torch.int64), size)
    else:
        _copy_patches(images, out, size)
    return out


def _copy_patches(images: Tensor, out: Tensor, size: int) -> None:
    _, height, width, channels = images.shape
    _patches[_programs(out)](images, out, height, width, channels, size, out.shape[-1], BLOCK)


def folded(slopes: Tensor, height: int, width: int, channels: int, size: int) -> Tensor:
    """Backward pass of `patches`: returns the gradient of the images; what follows a padded patch is ignored."""
    out = slopes.new_empty(slopes.shape[0], height, width, channels)
    _folded[_programs(out)](slopes, out, height, width, channels, size, slopes.shape[-1], BLOCK)
    return out


def pooled(maps: Tensor, biases: Tensor) -> Tensor:
    """Applies 2 × 2 max-pooling, adds the biases (models, channels) and applies ReLU; each model has as many items."""
    items, height, width, channels = maps.shape
    out = maps.new_empty(items, height // 2, width // 2, channels)
    _pooled[_programs(out)](maps, biases, out, height, width, items // len(biases), channels, BLOCK)
    return out


def unpooled(slopes: Tensor, maps: Tensor, biases: Tensor) -> Tensor:
    """Backward pass of `pooled`: returns the gradient of the maps."""
    items, height, width, channels = maps.shape
    out = torch.empty_like(maps)
    _unpooled[_programs(slopes)](slopes, maps, biases, out, height, width, items // len(biases), channels, BLOCK)
    return out


def _programs(out: Tensor) -> tuple[int, int]:
    return out.shape[0], triton.cdiv(out[0].numel(), BLOCK)
