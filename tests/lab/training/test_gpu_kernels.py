"""Compares every GPU kernel with its reference implementation in plain torch.

The kernels run on a GPU if there is one, otherwise in triton's interpreter on the CPU, if triton is installed. The
interpreter must be enabled before triton is imported and therefore runs in a separate process; it computes in float32,
because it cannot multiply bfloat16.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from turnout.lab.training.learners.stacked_learner import FusedBlock, convolution_block

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"

needs_kernels = pytest.mark.skipif(
    not (INTERPRETED or torch.cuda.is_available()),
    reason="this machine has no GPU; triton's interpreter runs these tests",
)

#: (models, items, height, width, channels, outputs): the digits, a non-square image, both blocks of both networks.
SHAPES = [
    (2, 3, 8, 8, 1, 16),
    (1, 2, 12, 10, 5, 20),
    (2, 1, 28, 28, 1, 20),
    (2, 1, 12, 12, 20, 50),
    (1, 1, 32, 32, 3, 64),
    (2, 1, 14, 14, 64, 64),
]
TOLERANCES = {torch.float32: 1e-6} if INTERPRETED else {torch.float32: 1e-6, torch.bfloat16: 0.02}

every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
every_dtype = pytest.mark.parametrize("dtype", TOLERANCES, ids=str)


def random_tensors(shape: tuple[int, ...], *, shared: bool = False) -> list[Tensor]:
    """Returns images, kernels, biases and the gradient of the output, in float64 on the CPU."""
    models, items, height, width, channels, outputs = shape
    generator = torch.Generator().manual_seed(0)
    sizes = [
        (1 if shared else models, items, height, width, channels),
        (models, 25 * channels, outputs),
        (models, outputs),
        (models, items, (height - 4) // 2, (width - 4) // 2, outputs),
    ]
    images, kernels, biases, slopes = (torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes)
    return [images.expand(models, -1, -1, -1, -1), kernels / (25 * channels) ** 0.5, biases / 5, slopes]


def with_gradients(tensors: list[Tensor], *, fused: bool) -> list[Tensor]:
    """Returns the output of a block and the gradients of images, kernels and biases."""
    *inputs, slopes = tensors
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    block = FusedBlock.apply if fused else convolution_block
    output = block(*leaves)
    return [output.detach(), *torch.autograd.grad(output, leaves, slopes)]


@needs_kernels
@every_dtype
@every_shape
@pytest.mark.parametrize("shared", [False, True], ids=["own images", "shared images"])
def test_a_block_equals_the_reference(shape: tuple[int, ...], dtype: torch.dtype, shared: bool) -> None:
    tensors = [tensor.to(dtype).to(DEVICE) for tensor in random_tensors(shape, shared=shared)]
    # Rounding to bfloat16 makes values equal, and decides which of them is the first maximum: the reference rounds too.
    exact = torch.float64 if dtype == torch.float32 else dtype
    expected = with_gradients([tensor.to(exact).cpu() for tensor in tensors], fused=False)
    for actual, exactly in zip(with_gradients(tensors, fused=True), expected, strict=True):
        assert actual.dtype == dtype
        assert actual.shape == exactly.shape
        assert (actual.cpu().double() - exactly.double()).norm() <= TOLERANCES[dtype] * exactly.double().norm()
    assert (expected[0] == 0).any()
    assert (expected[0] > 0).any()


@needs_kernels
@every_dtype
@every_shape
def test_the_gradient_goes_to_the_first_of_several_maxima(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Small integers give many ties and zeros, and are exact in every type."""
    images, kernels, biases, slopes = random_tensors(shape)
    if shape[4] > 5:  # so that no sum is beyond what bfloat16 represents
        images = images * (torch.arange(shape[4]) < 5)
    kernels = kernels * (25 * shape[4]) ** 0.5
    integers = [tensor.round().clamp(-1, 1) for tensor in (images, kernels, biases, slopes)]
    expected = with_gradients(integers, fused=False)
    output, of_images, of_kernels, of_biases = with_gradients(
        [tensor.to(dtype).to(DEVICE) for tensor in integers], fused=True
    )
    assert torch.equal(output.double().cpu(), expected[0])
    for actual, exactly in zip((of_images, of_kernels, of_biases), expected[1:], strict=True):
        assert torch.equal(actual.cpu(), exactly.to(dtype))
    assert (expected[0] == 0).any()


@needs_kernels
@every_dtype
@pytest.mark.parametrize("pixel", [(0, 0), (7, 0), (0, 7), (7, 7)], ids=str)
def test_nan_is_propagated(dtype: torch.dtype, pixel: tuple[int, int]) -> None:
    """Otherwise a diverged model would not be detected."""
    images, kernels, biases, _ = (tensor.to(dtype) for tensor in random_tensors((2, 2, 8, 8, 3, 16)))
    images = images.clone()
    images[1, 0, pixel[0], pixel[1], 1] = float("nan")
    actual = FusedBlock.apply(*(tensor.to(DEVICE) for tensor in (images, kernels, biases)))  # type: ignore[no-untyped-call]
    expected = convolution_block(images.double(), kernels.double(), biases.double())
    assert torch.equal(actual.isnan().cpu(), expected.isnan())
    assert actual.isnan().sum() == 16  # one place of one item


@needs_kernels
@pytest.mark.parametrize("copied", [torch.bfloat16, torch.float32], ids=str)
def test_a_step_of_descent_equals_the_reference(copied: torch.dtype) -> None:
    from turnout.lab.training.learners import gpu_kernels

    generator = torch.Generator().manual_seed(0)
    layer = torch.randn(7, 300, generator=generator).to(DEVICE)
    gradient = torch.randn(7, 300, generator=generator).to(copied).to(DEVICE)
    copy, expected = layer.to(copied), layer - 0.02 * (gradient.float() + 0.003 * layer)
    gpu_kernels.descend(layer, gradient, copy, 0.02, 0.003)
    assert (layer - expected).abs().max() <= 1e-6
    rounding = 2**-7 if INTERPRETED and copied == torch.bfloat16 else 0  # the interpreter truncates
    assert ((copy.float() - layer.to(copied).float()).abs() <= rounding * layer.abs()).all()


@pytest.mark.skipif(
    INTERPRETED or torch.cuda.is_available() or importlib.util.find_spec("triton") is None,
    reason="the kernels run in this process already, or triton is not installed",
)
def test_all_kernels_pass_in_the_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    environment.pop("PYTEST_ADDOPTS", None)
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout
    assert " passed, 1 skipped" in completed.stdout
