"""A learner for modules of torch that trains many clients in one computation (`torch.func.vmap`).

On a GPU one step of all clients is a CUDA graph, which is captured once and replayed.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from turnout.errors import SettingError, first_line
from turnout.kernel.arrays import as_count
from turnout.lab.training.learners.base import Cohort
from turnout.lab.training.learners.devices import usable_device
from turnout.lab.training.learners.module_learner import TEST_ITEMS, ModuleLearner, measure
from turnout.lab.training.learners.modules import ModuleLayout, ModuleSpec
from turnout.lab.training.learners.stacking import StackingLearner

STACK = 64
MAX_DIFFERENCE = 0.02  # of a trial, relative to how far training moved the weights
TRIAL_ITEMS = 6

#: What torch says if vmap cannot stack a model, and what the message of turnout says then.
REASONS = {
    "randomness": "it draws random numbers in training, as dropout does",
    "data-dependent control flow": "its Python code branches on the values of tensors",
    ".item()": "its Python code reads the values of tensors",
}


class StackedModuleLearner(StackingLearner):
    """Stacks the models of clients, which may be any module that `torch.func.vmap` supports."""

    def __init__(self, spec: ModuleSpec, *, device: str = "cpu", stack: int = STACK, graphs: bool = True) -> None:
        """Copies the data to the device.

        Args:
            spec: The model, the data and the settings of local training.
            device: A torch device: "cpu", "cuda", or "cuda:1" for the second GPU.
            stack: The largest number of clients in one computation.
            graphs: Whether a step is captured as a CUDA graph; without effect on a CPU.
        """
        usable_device(device)
        self.spec, self.training, self.device = spec, spec.training, torch.device(device)
        self.stack = as_count("stack", stack, SettingError)
        self.graphs = graphs and self.device.type == "cuda"
        self.module = spec.build(0)
        self.network = self.layout = ModuleLayout(self.module)
        self.module.to(self.device)
        self.weight_dtype = getattr(torch, self.layout.dtype)
        self.inputs, self.targets = (tensor.to(self.device) for tensor in spec.train_set)
        self._test_set = tuple(tensor.to(self.device) for tensor in spec.test_set)
        self.trained, self._stacks = len(self.layout.trained), {}

    def initial_weights(self, seed: int) -> Tensor:
        """Returns the weights of a new module; a module that was given, not built, is the same for every seed."""
        return self.loaded(self.spec.initial_weights(seed))

    def evaluate(self, models: Sequence[Tensor]) -> list[float]:
        """Returns the metric of each model on the test set, one model after the other."""
        inputs, targets = self._test_set
        has_metric = self.spec.metric is not None
        length, count = (len(inputs), 1) if has_metric else (TEST_ITEMS, targets.numel())  # a metric needs all items
        parts = list(zip(torch.split(inputs, length), torch.split(targets, length), strict=True))
        results = []
        for weights in models:
            self.layout.put(self.module, weights)
            results.append(sum(measure(self.spec, self.module, *part) for part in parts) / count)
        return results

    def gradients(
        self, layers: Sequence[Tensor], fixed: Sequence[Tensor], items: Tensor, *, padded: bool
    ) -> tuple[tuple[Tensor, ...], Tensor]:
        """Returns the gradient of each layer and the loss of each model, by `vmap` over the models."""
        self.module.train()
        indices = items.clamp(min=0)  # unused slots have items below 0, too
        batch = self.inputs[indices], self.targets[indices]
        compute = vmap(grad_and_value(self._padded_loss if padded else self._loss), randomness="error")
        with sdpa_kernel(SDPBackend.MATH):  # the other kernels of attention cannot be stacked
            result: tuple[tuple[Tensor, ...], Tensor] = compute(
                tuple(layers), tuple(fixed), *batch, *([items >= 0] if padded else [])
            )
        return result

    def _forward(self, layers: Sequence[Tensor], fixed: Sequence[Tensor], inputs: Tensor) -> Tensor:
        names = (*self.layout.trained, *self.layout.fixed)
        outputs: Tensor = functional_call(self.module, dict(zip(names, (*layers, *fixed), strict=True)), (inputs,))
        return outputs

    def _loss(self, layers: Sequence[Tensor], fixed: Sequence[Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        return self.spec.loss(self._forward(layers, fixed, inputs), targets)

    def _padded_loss(
        self, layers: Sequence[Tensor], fixed: Sequence[Tensor], inputs: Tensor, targets: Tensor, held: Tensor
    ) -> Tensor:
        outputs = self._forward(layers, fixed, inputs)
        losses = vmap(lambda output, target: self.spec.loss(output[None], target[None]))(outputs, targets)
        return torch.where(held, losses, 0.0).sum() / held.sum().clamp(min=1)


def stacking_obstacle(spec: ModuleSpec, *, device: str, padded: bool) -> str | None:
    """Returns why the clients of this model cannot be trained in one computation, or None if they can.

    Two clients are trained for a few steps by the plain loop and stacked, and the weights are compared.

    Args:
        spec: The model, the data and the settings of local training.
        device: The device of the trial.
        padded: Whether clients hold different numbers of items.
    """
    for module in spec.build(0).modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats:
            return "its BatchNorm changes running statistics in training (GroupNorm and LayerNorm do not)"
    items = min(TRIAL_ITEMS, len(spec.train_set[0]))
    orders: Any = np.stack([np.arange(items), np.arange(items)[::-1]])[:, None]
    if padded:
        orders[1, 0, (items + 1) // 2 :] = -1
    plain = ModuleLearner(spec, device=device, workers=1)
    stacked = StackedModuleLearner(spec, device=device, graphs=False)
    start = plain.initial_weights(0)
    expected = plain.train([Cohort(start, orders, np.ones(2))])[0].weights
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="There is a performance drop")  # vmap would loop over the models
            result = stacked.train([Cohort(stacked.loaded(start), orders, np.ones(2))])[0].weights
    except (RuntimeError, UserWarning) as error:
        known = [reason for text, reason in REASONS.items() if text in str(error)]
        return known[0] if known else f"torch.func.vmap refuses it: {first_line(error)}"
    moved, apart = np.linalg.norm(expected - start), np.linalg.norm(stacked.saved(result) - expected)
    if not apart <= MAX_DIFFERENCE * moved:
        kind = "padded batches, which clients with different numbers of items need," if padded else "one computation"
        return (
            f"{kind} would train other weights: the loss must be a mean over the items, and the model must compute the "
            "output of an item from this item alone"
        )
    return None
