"""Every GPU kernel gives what its twin in plain torch gives.

On a machine with a GPU they run on it; elsewhere, where triton is installed, its interpreter runs them on the CPU. It
must be asked for before triton is imported, and so has a process of its own.
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

here = pytest.mark.skipif(
    not (INTERPRETED or torch.cuda.is_available()), reason="there is no GPU here; triton's interpreter runs them apart"
)

#: Items, height, width, channels: of the digits, of CIFAR-10 and its second layer, and no square.
IMAGES = [(3, 8, 8, 1), (1, 32, 32, 3), (1, 14, 14, 64), (2, 6, 10, 5)]
NUMBERS = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 2**-7}

every_shape = pytest.mark.parametrize("shape", IMAGES, ids=str)
every_kind = pytest.mark.parametrize("kind", NUMBERS, ids=str)


def drawn(shape: tuple[int, ...], kind: torch.dtype, seed: int = 0) -> Tensor:
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return numbers.to(kind).to(DEVICE)


def context(*saved: Tensor, **known: int) -> Any:
    """What autograd carries from the way there to the way back."""
    one = SimpleNamespace(saved_tensors=saved, **known)
    one.save_for_backward = lambda *tensors: setattr(one, "saved_tensors", tensors)
    return one


def twin_patches(images: Tensor) -> Tensor:
    return Patches.forward(context(), images.cpu())


def twin_pooled(maps: Tensor) -> Tensor:
    return PoolRelu.forward(context(), maps.cpu())


@here
@every_kind
@every_shape
def test_patches_are_what_each_place_sees(shape: tuple[int, ...], kind: torch.dtype) -> None:
    from turnout.lab.learners import gpu_kernels

    images = drawn(shape, kind)
    given = gpu_kernels.patches(images, KERNEL).cpu()
    assert torch.equal(given, twin_patches(images))
    _, _, width, channels = shape
    assert given.shape == (shape[0], shape[1] - 4, width - 4, 25 * channels)
    assert torch.equal(given[0, 1, 0, 7 * channels : 8 * channels], images[0, 2, 2].cpu())


@here
@every_kind
@every_shape
def test_folding_adds_up_all_patches_that_see_a_pixel(shape: tuple[int, ...], kind: torch.dtype) -> None:
    from turnout.lab.learners import gpu_kernels

    _, height, width, _ = shape
    slopes = drawn(tuple(twin_patches(drawn(shape, kind)).shape), kind)
    given = gpu_kernels.folded(slopes, height, width, KERNEL).cpu()
    expected = Patches.backward(context(height=height, width=width), slopes.cpu().double())
    assert given.dtype == kind
    assert given.shape == shape
    assert (given.double() - expected).abs().max() <= NUMBERS[kind] * expected.abs().max()


@here
@every_kind
@every_shape
def test_pooling_takes_the_largest_of_four_or_nothing(shape: tuple[int, ...], kind: torch.dtype) -> None:
    from turnout.lab.learners import gpu_kernels

    maps = drawn(shape, kind) - 1
    given = gpu_kernels.pooled(maps).cpu()
    assert torch.equal(given, twin_pooled(maps))
    assert (given == 0).any()
    assert (given > 0).any()
    assert (given >= 0).all()


@here
@every_kind
def test_what_is_not_a_number_stays_one(kind: torch.dtype) -> None:
    """A model that diverged must be seen to have."""
    from turnout.lab.learners import gpu_kernels

    maps = drawn((4, 8, 8, 3), kind)
    for item, (row, column) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)]):
        maps[item, row, column, 1] = float("nan")
    given = gpu_kernels.pooled(maps).cpu()
    assert given.isnan().sum() == 4
    assert given[:, 0, 0, 1].isnan().all()
    assert torch.equal(given.nan_to_num(7), twin_pooled(maps).nan_to_num(7))


@here
@every_kind
@every_shape
def test_the_way_back_goes_to_the_first_of_the_largest(shape: tuple[int, ...], kind: torch.dtype) -> None:
    from turnout.lab.learners import gpu_kernels

    maps = drawn(shape, kind).round()  # so that there are many equals, and zeros
    slopes = drawn((shape[0], shape[1] // 2, shape[2] // 2, shape[3]), kind, seed=1)
    given = gpu_kernels.unpooled(slopes, maps).cpu()
    assert torch.equal(given, PoolRelu.backward(context(maps.cpu()), slopes.cpu()))
    assert (given != 0).sum() == (twin_pooled(maps) > 0).sum()


@pytest.mark.skipif(
    INTERPRETED or torch.cuda.is_available() or importlib.util.find_spec("triton") is None,
    reason="they run here already, or triton is not installed, without which there are no kernels",
)
def test_the_interpreter_finds_all_kernels_right() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:benchmark", "-p", "no:cacheprovider", __file__]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    environment.pop("PYTEST_ADDOPTS", None)
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout
    assert " passed, 1 skipped" in ended.stdout
