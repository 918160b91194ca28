"""Compares every GPU kernel with its reference implementation in plain torch.

The kernels run on a GPU if there is one, otherwise in triton's interpreter on the CPU, if triton is installed. The
interpreter must be enabled before triton is imported and therefore runs in a separate process.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from turnout.lab.learners.cnn import Patches, PoolRelu
from turnout.lab.learners.networks import KERNEL

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"

needs_kernels = pytest.mark.skipif(
    not (INTERPRETED or torch.cuda.is_available()),
    reason="this machine has no GPU; triton's interpreter runs these tests",
)

#: (items, height, width, channels) of the digits, of both layers for CIFAR-10, and a non-square image.
IMAGES = [(3, 8, 8, 1), (1, 32, 32, 3), (1, 14, 14, 64), (2, 6, 10, 5)]
TOLERANCES = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 2**-7}

every_shape = pytest.mark.parametrize("shape", IMAGES, ids=str)
every_dtype = pytest.mark.parametrize("dtype", TOLERANCES, ids=str)


def random_tensor(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return numbers.to(dtype).to(DEVICE)


def context(*saved: Tensor, **known: int) -> Any:
    """Returns a stand-in for the autograd context."""
    stand_in = SimpleNamespace(saved_tensors=saved, **known)
    stand_in.save_for_backward = lambda *tensors: setattr(stand_in, "saved_tensors", tensors)
    return stand_in


def reference_patches(images: Tensor) -> Tensor:
    return Patches.forward(context(), images.cpu())


def reference_pooled(maps: Tensor, biases: Tensor) -> Tensor:
    return PoolRelu.forward(context(), maps.cpu(), biases.cpu())


def random_biases(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Returns biases of as many models as there are items, which are exact in every type."""
    return random_tensor((shape[0], shape[3]), dtype, seed=2).round()


def same(actual: Tensor, expected: Tensor) -> bool:
    """Returns whether two tensors are equal; the interpreter truncates to bfloat16 instead of rounding."""
    if INTERPRETED and actual.dtype == torch.bfloat16:
        return bool(((actual.float() - expected.float()).abs() <= 2**-7 * expected.float().abs()).all())
    return torch.equal(actual, expected)


@needs_kernels
@every_dtype
@every_shape
def test_patches_equal_the_reference(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    from turnout.lab.learners import gpu_kernels

    images = random_tensor(shape, dtype)
    actual = gpu_kernels.patches(images, KERNEL).cpu()
    assert torch.equal(actual, reference_patches(images))
    _, _, width, channels = shape
    assert actual.shape == (shape[0], shape[1] - 4, width - 4, 25 * channels)
    assert torch.equal(actual[0, 1, 0, 7 * channels : 8 * channels], images[0, 2, 2].cpu())
    padded = gpu_kernels.patches(images, KERNEL, 8).cpu()
    assert padded.shape[-1] % 8 == 0
    assert torch.equal(padded[..., : 25 * channels], actual)
    assert (padded[..., 25 * channels :] == 0).all()


@needs_kernels
@every_dtype
@every_shape
def test_folding_sums_all_patches_that_contain_a_pixel(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    from turnout.lab.learners import gpu_kernels

    _, height, width, channels = shape
    gradients = random_tensor(tuple(reference_patches(random_tensor(shape, dtype)).shape), dtype)
    actual = gpu_kernels.folded(gradients, height, width, channels, KERNEL).cpu()
    padded = torch.nn.functional.pad(gradients, (0, 3), value=1.0)
    assert torch.equal(gpu_kernels.folded(padded, height, width, channels, KERNEL).cpu(), actual)
    expected = Patches.backward(context(height=height, width=width, channels=channels), gradients.cpu().double())
    assert actual.dtype == dtype
    assert actual.shape == shape
    assert (actual.double() - expected).abs().max() <= TOLERANCES[dtype] * expected.abs().max()


@needs_kernels
@every_dtype
@every_shape
def test_pooling_takes_the_maximum_of_each_block_or_zero(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    from turnout.lab.learners import gpu_kernels

    maps, biases = random_tensor(shape, dtype) - 1, random_biases(shape, dtype)
    actual = gpu_kernels.pooled(maps, biases).cpu()
    assert same(actual, reference_pooled(maps, biases))
    assert (actual == 0).any()
    assert (actual > 0).any()
    assert (actual >= 0).all()


@needs_kernels
@every_dtype
def test_pooling_propagates_nan(dtype: torch.dtype) -> None:
    """Otherwise a diverged model would not be detected."""
    from turnout.lab.learners import gpu_kernels

    maps = random_tensor((4, 8, 8, 3), dtype)
    for item, (row, column) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)]):
        maps[item, row, column, 1] = float("nan")
    biases = torch.zeros(2, 3, dtype=dtype, device=DEVICE)
    actual = gpu_kernels.pooled(maps, biases).cpu()
    assert actual.isnan().sum() == 4
    assert actual[:, 0, 0, 1].isnan().all()
    assert torch.equal(actual.nan_to_num(7), reference_pooled(maps, biases).nan_to_num(7))


@needs_kernels
@every_dtype
@every_shape
def test_the_gradient_of_pooling_goes_to_the_first_maximum(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    from turnout.lab.learners import gpu_kernels

    maps = random_tensor(shape, dtype).round()  # gives many ties and zeros
    gradients = random_tensor((shape[0], shape[1] // 2, shape[2] // 2, shape[3]), dtype, seed=1)
    biases = random_biases(shape, dtype)
    actual = gpu_kernels.unpooled(gradients, maps, biases).cpu()
    assert torch.equal(actual, PoolRelu.backward(context(maps.cpu(), biases.cpu()), gradients.cpu())[0])
    assert (actual != 0).sum() == (reference_pooled(maps, biases) > 0).sum()


@needs_kernels
@pytest.mark.parametrize("copied", [torch.bfloat16, torch.float32], ids=str)
def test_a_step_of_descent_equals_the_reference(copied: torch.dtype) -> None:
    from turnout.lab.learners import gpu_kernels

    layer, gradient = random_tensor((7, 300), torch.float32), random_tensor((7, 300), copied, seed=1)
    copy, expected = layer.to(copied), layer - 0.02 * (gradient.float() + 0.003 * layer)
    gpu_kernels.descend(layer, gradient, copy, 0.02, 0.003)
    assert (layer - expected).abs().max() <= 1e-6
    assert same(copy, layer.to(copied))


@pytest.mark.skipif(
    INTERPRETED or torch.cuda.is_available() or importlib.util.find_spec("triton") is None,
    reason="the kernels run in this process already, or triton is not installed",
)
def test_all_kernels_pass_in_the_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:benchmark", "-p", "no:cacheprovider", __file__]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    environment.pop("PYTEST_ADDOPTS", None)
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout
    assert " passed, 1 skipped" in completed.stdout
