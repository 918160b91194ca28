"""A learner for modules of torch that trains many clients in one computation (`torch.func.vmap`).

On a GPU one step of all clients is a CUDA graph, which is captured once and replayed.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from turnout.errors import SettingError, TrainingError
from turnout.kernel.arrays import IntArray, as_count
from turnout.lab.training.learners.base import Cohort, TrainingResult, held_items
from turnout.lab.training.learners.client_loop import TEST_ITEMS
from turnout.lab.training.learners.cnn import descend
from turnout.lab.training.learners.devices import usable_device
from turnout.lab.training.learners.module_learner import ModuleLearner, measure
from turnout.lab.training.learners.modules import ModuleLayout, ModuleSpec
from turnout.lab.training.learners.stacking import StackingLearner, stack_sizes
from turnout.log import get_log

LOG = get_log("turnout.lab")
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
    """Stacks the models of up to `stack` clients and trains them in one computation; more clients need several stacks.

    Clients with different numbers of items are trained on padded batches. The weights are tensors on the device.
    """

    def __init__(
        self,
        spec: ModuleSpec,
        *,
        device: str = "cpu",
        stack: int = STACK,
        graphs: bool = True,
    ) -> None:
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
        self._stacks: dict[int, _Stack] = {}

    def initial_weights(self, seed: int) -> Tensor:
        """Returns the weights of a new module; a module that was given, not built, is the same for every seed."""
        return self.loaded(self.spec.initial_weights(seed))

    def train(self, cohorts: Sequence[Cohort]) -> list[TrainingResult]:
        """Trains the clients of all cohorts in stacks, which may span several cohorts, and averages each cohort."""
        if not cohorts:
            return []
        previous = torch.stack([cohort.weights for cohort in cohorts])
        owner = np.repeat(np.arange(len(cohorts)), [len(cohort.orders) for cohort in cohorts])
        orders = [order for cohort in cohorts for order in cohort.orders]
        shares = np.concatenate([cohort.shares for cohort in cohorts])
        change, total = torch.zeros_like(previous), previous.new_zeros(len(cohorts), 1)
        losses, finite = np.full(len(orders), np.nan), np.zeros(len(orders), dtype=np.bool_)
        self.module.train()
        for first, slots in stack_sizes(len(orders), self.stack):
            clients = slice(first, first + slots)
            slots = slots if self.graphs else len(orders[clients])
            if slots not in self._stacks:
                self._stacks[slots] = _Stack(self, slots)
            models, measured = self._stacks[slots].train(previous, owner[clients], orders[clients])
            is_finite = models.isfinite().all(dim=1) & measured.isfinite()
            weights = torch.zeros(len(cohorts), len(models), dtype=self.weight_dtype)
            weights[owner[clients], np.arange(len(models))] = torch.from_numpy(shares[clients]).to(self.weight_dtype)
            weights = weights.to(self.device) * is_finite
            moved = models - previous[torch.from_numpy(owner[clients]).to(self.device)]
            change += weights @ torch.where(is_finite[:, None], moved, 0.0)
            total += weights.sum(dim=1, keepdim=True)
            # One transfer from the device for both.
            both = torch.stack([measured.double(), is_finite.double()]).cpu().numpy()
            finite[clients] = both[1] > 0
            losses[clients] = np.where(both[1] > 0, both[0], np.nan)
        averages = torch.where(total > 0, previous + change / total, previous)
        return [
            TrainingResult(averages[index], losses[owner == index], finite[owner == index])
            for index in range(len(cohorts))
        ]

    def evaluate(self, models: Sequence[Tensor]) -> list[float]:
        """Returns the metric of each model on the test set, one model after the other."""
        inputs, targets = self._test_set
        results = []
        for weights in models:
            self.layout.put(self.module, weights)
            if self.spec.metric is not None:
                results.append(measure(self.spec, self.module, inputs, targets))
                continue
            parts = zip(torch.split(inputs, TEST_ITEMS), torch.split(targets, TEST_ITEMS), strict=True)
            correct = sum(measure(self.spec, self.module, *part) for part in parts)
            results.append(correct / targets.numel())
        return results

    def _graphs(self) -> Iterable[torch.cuda.CUDAGraph]:
        return (graph for stack in self._stacks.values() for graph in stack.graphs.values())

    def gradients(
        self, layers: Sequence[Tensor], fixed: Sequence[Tensor], items: Tensor, *, padded: bool
    ) -> tuple[tuple[Tensor, ...], Tensor]:
        """Returns the gradient of each layer, (models, …), and the loss of each model on its batch.

        Args:
            layers: The trained parameters, stacked.
            fixed: Parameters and buffers that are not trained, stacked.
            items: The items of each model, (models, items).
            padded: Whether items below 0 do not count; the loss must be a mean over items then.
        """
        indices = items.clamp(min=0)  # unused slots have items below 0, too
        batch = self.inputs[indices], self.targets[indices]
        compute = vmap(grad_and_value(self._padded_loss if padded else self._loss), randomness="error")
        with sdpa_kernel(SDPBackend.MATH):  # the other kernels of attention cannot be stacked
            found: tuple[tuple[Tensor, ...], Tensor] = compute(
                tuple(layers), tuple(fixed), *batch, *([items >= 0] if padded else [])
            )
        return found

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


class _Stack:
    """A stack with a fixed number of slots; its tensors keep their addresses, as a CUDA graph requires."""

    def __init__(self, learner: StackedModuleLearner, slots: int) -> None:
        layout, device = learner.layout, learner.device
        self._learner, self._slots = learner, slots
        zeros = torch.zeros(slots, layout.parameters, dtype=learner.weight_dtype, device=device)
        parts = [part.contiguous() for part in layout.split(zeros)]
        self._layers, self._fixed = parts[: len(layout.trained)], parts[len(layout.trained) :]
        self._start = [layer.clone() for layer in self._layers]
        self._momenta = [layer.clone() for layer in self._layers] if learner.training.momentum else []
        self._total_loss = torch.zeros(slots, dtype=learner.weight_dtype, device=device)
        self._items: dict[tuple[int, bool], Tensor] = {}
        self.graphs: dict[tuple[int, bool], torch.cuda.CUDAGraph] = {}

    def train(self, previous: Tensor, owner: IntArray, orders: Sequence[IntArray]) -> tuple[Tensor, Tensor]:
        """Returns the trained model and the mean loss of each client.

        Args:
            previous: The start weights of each cohort, (cohorts, parameters).
            owner: The index of the cohort of each client.
            orders: The items of each client, (epochs, items).
        """
        learner, used = self._learner, len(orders)
        batches, padded = _batches(orders, learner.training.batch_size)
        try:
            self._prepare({(batch.shape[1], padded) for batch in batches})
            self._load(previous, owner)
            for length, items in self._on_device(batches):
                self._step((length, padded), items)
        except torch.OutOfMemoryError as error:
            raise TrainingError(
                f"the device has too little memory for {self._slots} models at once: set a smaller stack"
            ) from error
        steps = [sum(-(-len(epoch) // learner.training.batch_size) for epoch in held_items(order)) for order in orders]
        models = torch.cat([part.flatten(1) for part in (*self._layers, *self._fixed)], dim=1)
        counts = torch.tensor(steps, dtype=learner.weight_dtype, device=learner.device)
        return models[:used], self._total_loss[:used] / counts

    def _on_device(self, batches: Sequence[IntArray]) -> Iterator[tuple[int, Tensor]]:
        """Yields the length and the items of each step, after one transfer for each length; unused slots get −1."""
        by_length: dict[int, list[IntArray]] = {}
        for batch in batches:
            unused = ((0, self._slots - len(batch)), (0, 0))
            by_length.setdefault(batch.shape[1], []).append(np.pad(batch, unused, constant_values=-1))
        copied = {
            length: iter(torch.from_numpy(np.stack(steps)).to(self._learner.device))
            for length, steps in by_length.items()
        }
        for batch in batches:
            yield batch.shape[1], next(copied[batch.shape[1]])

    def _load(self, previous: Tensor, owner: IntArray) -> None:
        """Sets the models of all slots; unused slots get the weights of the first cohort."""
        rows = torch.from_numpy(np.pad(owner, (0, self._slots - len(owner)))).to(previous.device)
        parts = self._learner.layout.split(previous[rows])
        for target, part in zip((*self._layers, *self._fixed), parts, strict=True):
            target.copy_(part)
        for target, part in zip(self._start, parts, strict=False):
            target.copy_(part)
        for target in (*self._momenta, self._total_loss):
            target.zero_()

    def _prepare(self, shapes: set[tuple[int, bool]]) -> None:
        """Allocates the items of a step of each shape and captures its graph; both change the models."""
        for shape in sorted(shapes - set(self._items)):
            self._items[shape] = torch.zeros(self._slots, shape[0], dtype=torch.int64, device=self._learner.device)
            if not self._learner.graphs:
                continue
            try:
                self.graphs[shape] = self._learner.captured(partial(self._compute, shape))
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                self._learner.graphs = False
                LOG.warning(
                    "the model trains stacked, but without a CUDA graph, which is slower: %s", _first_line(error)
                )

    def _step(self, shape: tuple[int, bool], items: Tensor) -> None:
        self._items[shape].copy_(items)
        if shape in self.graphs:
            self.graphs[shape].replay()
        else:
            self._compute(shape)

    def _compute(self, shape: tuple[int, bool]) -> None:
        """Takes one step of gradient descent in every slot; slots without items stay as they are."""
        learner, items = self._learner, self._items[shape]
        gradients, losses = learner.gradients(self._layers, self._fixed, items, padded=shape[1])
        with torch.no_grad():
            self._total_loss += losses.detach()
        active = (items >= 0).any(dim=1) if shape[1] else None
        descend(learner.training, self._layers, self._start, gradients, self._momenta, active=active)


def _batches(orders: Sequence[IntArray], batch_size: int) -> tuple[list[IntArray], bool]:
    """Returns the items of each step, (clients, items), and whether they are padded with −1.

    Clients that hold equally many items need no padding. Otherwise every batch has the full size, and a client whose
    batches are used up has only −1.
    """
    split = [
        [epoch[first : first + batch_size] for epoch in held_items(order) for first in range(0, len(epoch), batch_size)]
        for order in orders
    ]
    lengths = {tuple(map(len, batches)) for batches in split}
    if len(lengths) == 1:
        return [np.stack(step) for step in zip(*split, strict=True)], False
    padded = np.full((max(map(len, split)), len(orders), batch_size), -1, dtype=np.int64)
    for client, batches in enumerate(split):
        for step, items in enumerate(batches):
            padded[step, client, : len(items)] = items
    return list(padded), True


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
        return known[0] if known else f"torch.func.vmap refuses it: {_first_line(error)}"
    moved, apart = np.linalg.norm(expected - start), np.linalg.norm(stacked.saved(result) - expected)
    if not apart <= MAX_DIFFERENCE * moved:
        kind = "padded batches, which clients with different numbers of items need," if padded else "one computation"
        return (
            f"{kind} would train other weights: the loss must be a mean over the items, and the model must compute the "
            "output of an item from this item alone"
        )
    return None


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
