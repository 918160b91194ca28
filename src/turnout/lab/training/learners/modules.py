"""Modules of torch as models of a federation: their weights as one flat vector, their data, loss and metric."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from turnout.errors import SettingError
from turnout.kernel.randomness import round_rng
from turnout.lab.training.learners.base import Layout, Training

Loss = Callable[[Tensor, Tensor], Tensor]
Metric = Callable[[Tensor, Tensor], "float | Tensor"]


@dataclass(frozen=True, slots=True, eq=False)
class ModuleSpec:
    """What a learner of modules needs: the model, its loss and metric, the data and the settings of local training.

    `model` is a module, or a function that builds one. The sets are pairs (inputs, targets) of tensors in main memory.
    Without a `metric`, the share of correct predictions is measured. `initial` returns the flat weights of a new model
    for a seed; without it, they are those of a new module.
    """

    model: nn.Module | Callable[[], nn.Module]
    loss: Loss
    train_set: tuple[Tensor, Tensor]
    test_set: tuple[Tensor, Tensor]
    training: Training
    metric: Metric | None = None
    initial: Callable[[int], npt.NDArray[np.floating]] | None = None

    def initial_weights(self, seed: int) -> npt.NDArray[np.floating]:
        """Returns the flat weights of a new model; those of a given module are the same for every seed."""
        if self.initial is not None:
            return self.initial(seed)
        built = self.build(seed)
        return ModuleLayout(built).get(built).numpy()

    def build(self, seed: int) -> nn.Module:
        """Returns a new module in main memory: a copy of the given one, or one whose weights depend on the seed."""
        if isinstance(self.model, nn.Module):
            return copy.deepcopy(self.model).cpu()
        with seeded(int(round_rng(seed, "initial weights", 0).integers(2**63)), torch.device("cpu")):
            built = self.model()
        if not isinstance(built, nn.Module):
            raise SettingError(f"model must be a torch module, or a function that returns one, not {type(built)}")
        return built.cpu()


class ModuleLayout(Layout):
    """The arrays of a module in its flat weights: its trained parameters, then what is not trained.

    The second part holds parameters that need no gradient, and floating-point buffers that the module saves, such as
    the running statistics of a BatchNorm. Everything else in the module keeps the value that it has when it is built.
    """

    def __init__(self, module: nn.Module) -> None:
        saved = module.state_dict()
        parameters = dict(module.named_parameters())
        buffers = {name: value for name, value in module.named_buffers() if name in saved and value.is_floating_point()}
        trained = {name: value for name, value in parameters.items() if value.requires_grad}
        fixed = {name: value for name, value in parameters.items() if not value.requires_grad} | buffers
        if not trained:
            raise SettingError("the model has no parameters that need a gradient: there is nothing to train")
        self.trained, self.fixed = tuple(trained), tuple(fixed)
        self._shapes = {name: tuple(value.shape) for name, value in (trained | fixed).items()}
        double = any(value.dtype == torch.float64 for value in trained.values())
        self.dtype: Literal["float64", "float32"] = "float64" if double else "float32"
        self._constants = {
            name: value.clone() for name, value in module.named_buffers() if name not in buffers and value is not None
        }

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shape of each array."""
        return list(self._shapes.values())

    @property
    def layer_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each parameter and buffer, by its name in the module."""
        return self._shapes

    def put(self, module: nn.Module, weights: Tensor) -> None:
        """Copies flat weights into a module, and resets the buffers that they do not contain."""
        values = dict(zip(self._shapes, self.split(weights), strict=True)) | self._constants
        with torch.no_grad():
            for name, target in (*module.named_parameters(), *module.named_buffers()):
                target.copy_(values[name])

    def get(self, module: nn.Module) -> Tensor:
        """Returns the flat weights of a module, in main memory."""
        values = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        parts = [values[name].detach().flatten() for name in self._shapes]
        return torch.cat([part.to(getattr(torch, self.dtype)) for part in parts]).cpu()


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seeds torch's random numbers on the CPU and on this device, and restores their states afterwards."""
    state = torch.get_rng_state()
    device_state = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    torch.default_generator.manual_seed(seed)
    if device_state is not None:
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(state)
        if device_state is not None:
            torch.cuda.set_rng_state(device_state, device)
