"""Compares the candidate for the GPU learner (benchmarks/fused_convolution.py) with torch's own operations.

The kernels run on a GPU if there is one, otherwise in triton's interpreter in a process of its own, if triton is
installed. The interpreter cannot multiply bfloat16, so it computes in float32.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor
from torch.nn import functional

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE, DTYPE, TOLERANCE = ("cpu", torch.float32, 1e-6) if INTERPRETED else ("cuda", torch.bfloat16, 0.02)

#: (models, items, height, width, channels, outputs), among them the second blocks of both networks.
SHAPES = [(2, 3, 8, 8, 1, 16), (2, 1, 12, 12, 20, 50), (1, 2, 12, 10, 3, 20), (2, 1, 14, 14, 64, 64)]


def reference(images: Tensor, kernels: Tensor, biases: Tensor) -> Tensor:
    """Returns what the block computes, model by model."""
    outputs = []
    for image, kernel, bias in zip(images, kernels, biases, strict=True):
        maps = functional.conv2d(
            image.permute(0, 3, 1, 2), kernel.view(5, 5, image.shape[-1], -1).permute(3, 2, 0, 1), bias
        )
        outputs.append(functional.relu(functional.max_pool2d(maps, 2)).permute(0, 2, 3, 1))
    return torch.stack(outputs)


@pytest.mark.skipif(
    not (INTERPRETED or torch.cuda.is_available()),
    reason="this machine has no GPU; triton's interpreter runs these tests",
)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("shared", [False, True], ids=["own images", "shared images"])
def test_the_fused_block_equals_torch(shape: tuple[int, ...], shared: bool) -> None:
    from benchmarks.fused_training import FusedBlock

    models, items, height, width, channels, outputs = shape
    generator = torch.Generator().manual_seed(0)

    def numbers(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=generator).to(DEVICE, DTYPE)

    images = numbers(1 if shared else models, items, height, width, channels).expand(models, -1, -1, -1, -1)
    inputs = [images, numbers(models, 25 * channels, outputs) / (25 * channels) ** 0.5, numbers(models, outputs) / 5]
    exact = [tensor.double().requires_grad_() for tensor in inputs]
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    expected = reference(*exact)
    actual = FusedBlock.apply(*leaves)  # type: ignore[no-untyped-call]
    slopes = numbers(*expected.shape)
    pairs = zip(
        [actual, *torch.autograd.grad(actual, leaves, slopes)],
        [expected, *torch.autograd.grad(expected, exact, slopes.double())],
        strict=True,
    )
    for value, exactly in pairs:
        assert (value.double() - exactly).norm() <= TOLERANCE * exactly.norm()


@pytest.mark.skipif(
    INTERPRETED or torch.cuda.is_available() or importlib.util.find_spec("triton") is None,
    reason="the kernels run in this process already, or triton is not installed",
)
def test_the_fused_block_passes_in_the_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:benchmark", "-p", "no:cacheprovider", __file__]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    environment.pop("PYTEST_ADDOPTS", None)
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout
    assert " passed, 1 skipped" in completed.stdout
