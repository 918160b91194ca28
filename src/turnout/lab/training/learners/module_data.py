"""Data of modules: arrays, tensors and torch datasets as pairs of tensors, checked against the model and its loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from turnout.errors import SettingError
from turnout.lab.training.learners.base import Training
from turnout.lab.training.learners.modules import Loss, Metric, ModuleLayout, ModuleSpec


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
    return inputs, targets.float() if targets.dtype == torch.float64 else _as_long(targets)


def _as_tensor(array: Any) -> Tensor:
    if isinstance(array, Tensor):
        return array.detach().cpu()
    return torch.from_numpy(np.array(array))  # a copy: the array may be read-only


def _as_long(targets: Tensor) -> Tensor:
    return targets if targets.is_floating_point() or targets.dtype == torch.bool else targets.long()


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
