"""Learners that train many models in one computation, which on a GPU is a CUDA graph: captured once, and replayed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from turnout.errors import TrainingError, first_line
from turnout.kernel.arrays import IntArray
from turnout.lab.training.learners.base import Cohort, FinishTraining, Learner, Training, TrainingResult, held_items
from turnout.log import get_log

LOG = get_log("turnout.lab")


class StackingLearner(Learner):
    """Stacks the models of up to `stack` clients and trains them in one computation; more clients need several stacks.

    Clients with different numbers of items are trained on padded batches. The weights are tensors on the device.

    Attributes:
        device: The device of the data and the weights.
        weight_dtype: The type of weights, losses and averages.
        trained: The number of layers that are trained; those after them in the layout are fixed.
        stack: The largest number of clients in one computation.
        graphs: Whether a step is captured as a CUDA graph.
    """

    device: torch.device
    weight_dtype: torch.dtype
    trained: int
    stack: int
    graphs: bool
    _stacks: dict[int, Stack]

    @abstractmethod
    def gradients(
        self, layers: Sequence[Tensor], fixed: Sequence[Tensor], items: Tensor, *, padded: bool
    ) -> tuple[Sequence[Tensor], Tensor]:
        """Returns the gradient of each layer, (models, …), and the loss of each model on its batch.

        Args:
            layers: The trained parameters, stacked, as `rounded` returned them.
            fixed: Parameters and buffers that are not trained, stacked.
            items: The items of each model, (models, items); unused slots have items below 0.
            padded: Whether items below 0 do not count; the loss must be a mean over items then.
        """

    def rounded(self, layers: Sequence[Tensor]) -> Sequence[Tensor]:
        """Returns the layers in the type of matrix products; the same layers if that is their type."""
        return layers

    def begin_evaluation(self, models: Sequence[Tensor]) -> Callable[[], list[float]]:
        """Begins to evaluate models; a learner that does not overlap evaluates them when it is finished."""
        return lambda: self.evaluate(models)

    def train(self, cohorts: Sequence[Cohort]) -> list[TrainingResult]:
        """Trains the clients of all cohorts in stacks, which may span several cohorts, and averages each cohort."""
        return self.begin(cohorts)()[0]

    def begin(self, cohorts: Sequence[Cohort], evaluated: Sequence[int] = ()) -> FinishTraining:
        """Begins to train all cohorts, and then to evaluate the averages of the cohorts with these indices.

        On a GPU, everything is queued and this process goes on; work that was begun later is done later.
        """
        if not cohorts:
            return lambda: ([], [])
        previous = torch.stack([cohort.weights for cohort in cohorts])
        owner = np.repeat(np.arange(len(cohorts)), [len(cohort.orders) for cohort in cohorts])
        orders = [order for cohort in cohorts for order in cohort.orders]
        shares = np.concatenate([cohort.shares for cohort in cohorts])
        change, total = torch.zeros_like(previous), previous.new_zeros(len(cohorts), 1)
        outputs = [torch.empty(2, 0, dtype=torch.float64, device=self.device)]
        for first in range(0, len(orders), self.stack):
            clients = slice(first, first + self.stack)
            models, losses = self._stack_for(len(orders[clients])).train(previous, owner[clients], orders[clients])
            finite = models.isfinite().all(dim=1) & losses.isfinite()
            own_shares = np.zeros((len(cohorts), len(models)))
            own_shares[owner[clients], np.arange(len(models))] = shares[clients]
            weights = self.upload(own_shares).to(self.weight_dtype) * finite
            moved = models - previous[self.upload(owner[clients])]
            change += weights @ torch.where(finite[:, None], moved, 0.0)
            total += weights.sum(dim=1, keepdim=True)
            outputs.append(torch.stack([losses.double(), finite.double()]))
        averages = torch.where(total > 0, previous + change / total, previous)
        measured = Transfer(torch.cat(outputs, dim=1))
        finish_evaluation = self.begin_evaluation([averages[index] for index in evaluated])

        def finish() -> tuple[list[TrainingResult], list[float]]:
            means, flags = measured.wait().numpy()
            finite = flags > 0
            losses = np.where(finite, means, np.nan)
            results = [
                TrainingResult(average, losses[owner == index], finite[owner == index])
                for index, average in enumerate(averages)
            ]
            return results, finish_evaluation()

        return finish

    def saved(self, weights: Tensor) -> npt.NDArray[np.floating]:
        """Returns the weights as an array in main memory."""
        return weights.cpu().numpy().copy()

    def loaded(self, array: npt.ArrayLike) -> Tensor:
        """Copies saved weights to the device; raises StateError if they do not fit this model."""
        return torch.tensor(self.network.check_weights(array), dtype=self.weight_dtype, device=self.device)

    def close(self) -> None:
        """Releases the captured graphs and their memory."""
        self._stacks.clear()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def upload(self, array: npt.NDArray[Any]) -> Tensor:
        """Returns an array on the device; a GPU copies it when it gets there, from memory of its own."""
        source = torch.from_numpy(np.ascontiguousarray(array))
        return source.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else source

    def captured(self, compute: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """Captures a computation after a warm-up on a side stream, in which libraries allocate their workspaces.

        All graphs of a learner share their memory. Torch releases it with the last graph, and refuses to use it after
        that.
        """
        known = (graph for stack in self._stacks.values() for graph in stack.graphs.values())
        with torch.cuda.device(self.device):
            side_stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side_stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side_stream):
                compute()
            torch.cuda.current_stream().wait_stream(side_stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=next((other.pool() for other in known), None)):
                compute()
        return graph

    def _stack_for(self, clients: int) -> Stack:
        """Returns a stack with enough slots; with graphs, their number is a power of two, so that few are captured."""
        slots = min(1 << (clients - 1).bit_length(), self.stack) if self.graphs else clients
        if slots not in self._stacks:
            self._stacks[slots] = Stack(self, slots)
        return self._stacks[slots]


class Transfer:
    """A copy of a tensor in main memory, which a GPU makes when it gets there."""

    def __init__(self, source: Tensor) -> None:
        self._arrived: torch.cuda.Event | None = None
        self._copy = source
        if source.is_cuda:
            self._copy = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
            self._copy.copy_(source, non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record(torch.cuda.current_stream(source.device))

    def wait(self) -> Tensor:
        """Returns the copy once it is complete."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._copy


class Stack:
    """A stack with a fixed number of slots; its tensors keep their addresses, as a CUDA graph requires."""

    def __init__(self, learner: StackingLearner, slots: int) -> None:
        self._learner, self._slots = learner, slots
        zeros = torch.zeros(slots, learner.network.parameters, dtype=learner.weight_dtype, device=learner.device)
        parts = [part.contiguous() for part in learner.network.split(zeros)]
        self._layers, self._fixed = parts[: learner.trained], parts[learner.trained :]
        self._copies = learner.rounded(self._layers)
        self._start = [layer.clone() for layer in self._layers]
        self._momenta = [layer.clone() for layer in self._layers] if learner.training.momentum else []
        self._total_loss = torch.zeros(slots, dtype=learner.weight_dtype, device=learner.device)
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
        batches, steps, padded = split_batches(orders, learner.training.batch_size)
        try:
            self._prepare({(batch.shape[1], padded) for batch in batches})
            self._load(previous, owner)
            for length, items in self._on_device(batches):
                self._step((length, padded), items)
        except torch.OutOfMemoryError as error:
            raise TrainingError(
                f"the device has too little memory for {self._slots} models at once: set a smaller stack"
            ) from error
        models = torch.cat([part.flatten(1) for part in (*self._layers, *self._fixed)], dim=1)
        return models[:used], self._total_loss[:used] / learner.upload(steps).to(learner.weight_dtype)

    def _on_device(self, batches: Sequence[IntArray]) -> Iterator[tuple[int, Tensor]]:
        """Yields the length and the items of each step, after one transfer for each length; unused slots get −1."""
        by_length: dict[int, list[IntArray]] = {}
        for batch in batches:
            unused = ((0, self._slots - len(batch)), (0, 0))
            by_length.setdefault(batch.shape[1], []).append(np.pad(batch, unused, constant_values=-1))
        copied = {length: iter(self._learner.upload(np.stack(steps))) for length, steps in by_length.items()}
        for batch in batches:
            yield batch.shape[1], next(copied[batch.shape[1]])

    def _load(self, previous: Tensor, owner: IntArray) -> None:
        """Sets the models of all slots; unused slots get the weights of the first cohort."""
        rows = self._learner.upload(np.pad(owner, (0, self._slots - len(owner))))
        parts = self._learner.network.split(previous[rows])
        copies = [] if self._copies is self._layers else self._copies
        for targets in ((*self._layers, *self._fixed), self._start, copies):
            for target, part in zip(targets, parts, strict=False):
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
                    "the model trains stacked, but without a CUDA graph, which is slower: %s", first_line(error)
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
        gradients, losses = learner.gradients(self._copies, self._fixed, items, padded=shape[1])
        with torch.no_grad():
            self._total_loss += losses.detach()
        active = (items >= 0).any(dim=1) if shape[1] else None
        descend(learner.training, self._layers, self._start, gradients, self._momenta, self._copies, active)


def descend(
    training: Training,
    layers: Sequence[Tensor],
    start: Sequence[Tensor],
    gradients: Sequence[Tensor],
    momenta: Sequence[Tensor],
    copies: Sequence[Tensor] | None = None,
    active: Tensor | None = None,
) -> None:
    """Takes one step of gradient descent, in place.

    Args:
        training: Learning rate, momentum, weight decay and proximal term.
        layers: The current parameters, which are updated.
        start: The parameters before local training, for the proximal term.
        gradients: The gradient of the loss by layer.
        momenta: The momentum buffers, which are updated; empty without momentum.
        copies: The parameters in another type, which are updated too; None, or `layers` themselves, if there are none.
        active: Which of the stacked models take the step; by default all.
    """
    if copies is layers:
        copies = None
    plain = active is None and not training.momentum and not training.proximal_mu
    if plain and copies is not None and layers[0].is_cuda:
        from turnout.lab.training.learners import gpu_kernels

        for layer, gradient, copy in zip(layers, gradients, copies, strict=True):
            gpu_kernels.descend(layer, gradient.contiguous(), copy, training.learning_rate, training.weight_decay)
        return
    with torch.no_grad():
        for index, (layer, gradient) in enumerate(zip(layers, gradients, strict=True)):
            if training.weight_decay:
                gradient = gradient.add(layer, alpha=training.weight_decay)
            if training.proximal_mu:
                gradient = gradient.add(layer - start[index], alpha=training.proximal_mu)
            if training.momentum:
                gradient = momenta[index].mul_(training.momentum).add_(gradient)
            if active is not None:
                gradient = torch.where(active.view(-1, *[1] * (layer.dim() - 1)), gradient, 0.0)
            layer.sub_(gradient, alpha=training.learning_rate)
            if copies is not None:
                copies[index].copy_(layer)


def split_batches(orders: Sequence[IntArray], batch_size: int) -> tuple[list[IntArray], IntArray, bool]:
    """Returns the items of each step, (clients, items), the number of steps of each client, and whether it is padded.

    Clients that hold equally many items need no padding. Otherwise every batch has the full size and is padded with −1,
    and a client whose batches are used up has only −1.
    """
    held = [held_items(order) for order in orders]
    lengths = {tuple(map(len, epochs)) for epochs in held}
    if len(lengths) == 1:
        epochs = [np.stack(clients) for clients in zip(*held, strict=True)]
        batches = [
            items[:, first : first + batch_size] for items in epochs for first in range(0, items.shape[1], batch_size)
        ]
        return batches, np.full(len(orders), len(batches)), False
    split = [
        [epoch[first : first + batch_size] for epoch in epochs for first in range(0, len(epoch), batch_size)]
        for epochs in held
    ]
    steps = np.array([len(own) for own in split])
    padded = np.full((steps.max(), len(orders), batch_size), -1, dtype=np.int64)
    for client, own in enumerate(split):
        for step, items in enumerate(own):
            padded[step, client, : len(items)] = items
    return list(padded), steps, True
