"""Modules of torch as models of a federation: their flat weights, and their data, loss and metric, which are tried."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

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
        self.dtype = "float64" if double else "float32"
        self._constants = {
            name: value.clone() for name, value in module.named_buffers() if name not in buffers and value is not None
        }

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


def checked_spec(
    model: nn.Module | Callable[[], nn.Module],
    loss: Loss,
    train_set: Any,
    test_set: Any,
    training: Training,
    metric: Metric | None,
) -> ModuleSpec:
    """Returns the specification of a model after a trial of its model, loss and metric on a few items.

    Args:
        model: A module, or a function that builds one.
        loss: The loss of outputs and targets.
        train_set: The training inputs and targets.
        test_set: The test inputs and targets.
        training: The settings of local training.
        metric: The metric of outputs and targets, or None for the share of correct predictions.
    """
    for name, value in (("model", model), ("loss", loss), *([] if metric is None else [("metric", metric)])):
        if not callable(value):
            raise SettingError(f"{name} must be a function or a module, not {value!r}")
    if not isinstance(training, Training):
        raise SettingError(f"training must be a Training, not {training!r}")
    pairs = [as_pair(name, given) for name, given in (("train_set", train_set), ("test_set", test_set))]
    module = ModuleSpec(model, loss, pairs[0], pairs[1], training, metric).build(0)
    dtype = getattr(torch, ModuleLayout(module).dtype)
    converted = [(inputs.to(dtype) if inputs.is_floating_point() else inputs, targets) for inputs, targets in pairs]
    spec = ModuleSpec(model, loss, converted[0], converted[1], training, metric)
    module.train(False)
    for name, (inputs, targets) in zip(("train_set", "test_set"), converted, strict=True):
        _try(spec, module, name, inputs, targets)
    return spec


def as_pair(name: str, given: Any) -> tuple[Tensor, Tensor]:
    """Returns inputs and targets as tensors; integer targets become int64, floating-point targets float32.

    A pair of arrays or tensors is converted; the items of a torch dataset are read once and stacked.
    """
    if isinstance(given, IterableDataset) or (isinstance(given, Dataset) and not hasattr(given, "__len__")):
        raise SettingError(f"{name} must be a dataset with a length and items by index, not {type(given).__name__}")
    if isinstance(given, TensorDataset) and len(given.tensors) == 2:
        given = given.tensors
    elif isinstance(given, Dataset):
        items = [given[index] for index in range(len(given))]  # type: ignore[arg-type]
        if any(not isinstance(item, tuple | list) or len(item) != 2 for item in items):
            raise SettingError(f"the items of {name} must be pairs of an input and a target")
        try:
            given = tuple(torch.stack([torch.as_tensor(item[part]) for item in items]) for part in (0, 1))
        except (RuntimeError, TypeError, ValueError) as error:
            raise SettingError(f"the items of {name} cannot be stacked: {error}") from error
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise SettingError(f"{name} must be a pair (inputs, targets) or a torch dataset, not {type(given).__name__}")
    try:
        inputs, targets = (_as_tensor(part) for part in given)
    except (RuntimeError, TypeError, ValueError) as error:
        raise SettingError(f"{name} must hold arrays of numbers: {error}") from error
    if not inputs.dim() or not targets.dim() or len(inputs) != len(targets) or not len(inputs):
        raise SettingError(
            f"{name} must hold one target for each input and at least one item: its inputs have the shape "
            f"{tuple(inputs.shape)}, its targets {tuple(targets.shape)}"
        )
    if not inputs.is_floating_point():
        inputs = inputs.long()
    if targets.dtype == torch.float64:
        return inputs, targets.float()
    return inputs, targets if targets.is_floating_point() or targets.dtype == torch.bool else targets.long()


def _as_tensor(array: Any) -> Tensor:
    if isinstance(array, Tensor):
        return array.detach().cpu()
    return torch.from_numpy(np.array(array))  # a copy: the array may be read-only


def _try(spec: ModuleSpec, module: nn.Module, name: str, inputs: Tensor, targets: Tensor) -> None:
    """Raises SettingError if the model, its loss or its metric cannot be computed on a few items of a set."""
    flat = targets.reshape(len(targets), -1)
    rows = torch.unique(torch.stack([flat.amin(dim=1).argmin(), flat.amax(dim=1).argmax(), torch.tensor(0)]))
    batch, expected = inputs[rows], targets[rows]
    shapes = f"inputs of shape {tuple(batch.shape)} ({batch.dtype})"
    with torch.no_grad():
        outputs = _attempt(lambda: module(batch), f"the model fails on {shapes} of {name}")
        if not isinstance(outputs, Tensor):
            raise SettingError(f"the model must return a tensor, not {type(outputs).__name__}")
        if spec.metric is None:
            _check_classes(name, outputs, targets)
        loss = _attempt(
            lambda: spec.loss(outputs, expected),
            f"the output of the model, {outputs.dtype} of shape {tuple(outputs.shape)}, and the targets of {name}, "
            f"{expected.dtype} of shape {tuple(expected.shape)}, do not fit the loss",
        )
        if not isinstance(loss, Tensor) or loss.numel() != 1 or loss.dim():
            shape = f"of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
            raise SettingError(f"the loss must be a tensor with one number, the mean over the batch, not {shape}")
        if (metric := spec.metric) is not None:
            _attempt(lambda: float(metric(outputs, expected)), f"the metric fails on outputs and targets of {name}")


def _attempt(compute: Callable[[], Any], failure: str) -> Any:
    """Returns what a function of the user returns; its errors become a SettingError."""
    try:
        return compute()
    except Exception as error:
        raise SettingError(f"{failure}: {' '.join(str(error).split()) or type(error).__name__}") from error


def _check_classes(name: str, outputs: Tensor, targets: Tensor) -> None:
    shape = (*outputs.shape[:1], *outputs.shape[2:])
    if outputs.dim() < 2 or targets.is_floating_point() or tuple(targets.shape[1:]) != shape[1:]:
        raise SettingError(
            f"the accuracy needs one score per class and targets that are classes, but the outputs have the shape "
            f"{tuple(outputs.shape)} and the targets of {name} are {targets.dtype} of shape {tuple(targets.shape)}: "
            "give a metric"
        )
    classes = outputs.shape[1]
    if targets.min() < 0 or targets.max() >= classes:
        wrong = int(targets.min() if targets.min() < 0 else targets.max())
        raise SettingError(
            f"{name} has the label {wrong}, but the model has {classes} classes: labels must be 0 to {classes - 1}"
        )
