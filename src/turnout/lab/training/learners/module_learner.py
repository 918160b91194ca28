"""Learners for any module of torch: a plain loop over the clients, or many clients in one computation."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy

from turnout.errors import SettingError, TrainingError, first_line
from turnout.kernel.arrays import FloatArray, IntArray, as_count
from turnout.kernel.backend import available_cores
from turnout.lab.training.datasets import Dataset
from turnout.lab.training.learners.base import Cohort, Learner, Training, TrainingResult, average_models, held_items
from turnout.lab.training.learners.devices import Task, WorkerPool, can_fork, forkable, usable_device
from turnout.lab.training.learners.modules import ModuleLayout, ModuleSpec, seeded
from turnout.lab.training.learners.numpy_learner import Network
from turnout.lab.training.learners.stacked_learner import PaperCNN
from turnout.lab.training.learners.stacking import StackingLearner, descend
from turnout.log import get_log

LOG = get_log("turnout.lab")
TEST_ITEMS = 500  # test items in one task


class ModuleLearner(Learner):
    """Trains one client after the other; on a CPU `workers` processes share the clients (1 trains in this process).

    Workers are forked: they read the data without a copy. Every client is trained on one thread, so the result does not
    depend on the number of workers. On a machine with a GPU, torch refuses to compute gradients in processes that were
    forked after the parent computed some: train before that, or with one worker.

    Random numbers that a module draws in training (dropout) depend on the seed of the federation, the round and the
    client only. Buffers that training changes, such as the running statistics of a BatchNorm, are averaged as
    parameters are.
    """

    def __init__(self, spec: ModuleSpec, *, device: str = "cpu", workers: int | None = None) -> None:
        """Copies the data to the device; starts no process before the first training or evaluation.

        Args:
            spec: The model, the data and the settings of local training.
            device: A torch device: "cpu", "cuda", or "cuda:1" for the second GPU.
            workers: The number of processes on a CPU, by default one per core.
        """
        kind = usable_device(device)
        self.spec, self.training, self.device = spec, spec.training, torch.device(device)
        self._module = spec.build(0)
        self.network = self._layout = ModuleLayout(self._module)
        self._module.to(self.device)
        self.workers = as_count("workers", available_cores() if workers is None else workers, SettingError)
        if kind != "cpu":
            self.workers = 1
        elif self.workers > 1 and not can_fork():
            LOG.info("clients are trained one after the other: on this system, workers cannot share the data")
            self.workers = 1
        self._pool: WorkerPool | None = None
        self._train_set = tuple(tensor.to(self.device) for tensor in spec.train_set)
        self._test_set = tuple(tensor.to(self.device) for tensor in spec.test_set)

    def initial_weights(self, seed: int) -> npt.NDArray[np.floating]:
        """Returns the weights of a new module; a module that was given, not built, is the same for every seed."""
        weights: npt.NDArray[np.floating] = self.loaded(self.spec.initial_weights(seed))
        return weights

    def train(self, cohorts: Sequence[Cohort]) -> list[TrainingResult]:
        """Distributes the clients of all cohorts over the workers and averages each cohort."""
        trained = iter(self._run_tasks([(cohort.weights, order, 0) for cohort in cohorts for order in cohort.orders]))
        results = []
        for cohort in cohorts:
            own = list(islice(trained, len(cohort.orders)))
            models = np.array([model for model, _ in own], self.network.dtype).reshape(
                len(own), self.network.parameters
            )
            results.append(self._average(cohort, models, np.array([loss for _, loss in own])))
        return results

    def evaluate(self, models: Sequence[npt.NDArray[np.floating]]) -> list[float]:
        """Returns the accuracy or the metric of each model on the test set."""
        inputs, targets = self._test_set
        starts = range(0, len(inputs), self._test_chunk)
        measured = self._run_tasks([(weights, None, first) for weights in models for first in starts])
        sums = np.array([value for _, value in measured]).reshape(len(models), len(starts)).sum(axis=1)
        return (sums / (targets.numel() if self.spec.metric is None else 1)).tolist()  # type: ignore[no-any-return]

    def close(self) -> None:
        """Ends the worker processes."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def run_task(self, task: Task) -> tuple[Any, float]:
        """Returns the trained model of a client and its loss; or nothing, and the measurement of a model."""
        weights, order, first = task
        start = torch.from_numpy(np.array(weights, self.network.dtype))
        with forkable():
            if order is not None:
                trained, loss = self._train_client(start, order)
                return trained.numpy(), loss
            items = slice(first, first + self._test_chunk)
            self._layout.put(self._module, start)
            return None, measure(self.spec, self._module, self._test_set[0][items], self._test_set[1][items])

    def _run_tasks(self, tasks: Sequence[Task]) -> list[tuple[Any, float]]:
        if self.workers > 1 and tasks:
            self._pool = self._pool or WorkerPool(self)
            return self._pool.run(tasks)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return [self.run_task(task) for task in tasks]
        finally:
            torch.set_num_threads(threads)

    @property
    def _test_chunk(self) -> int:
        """The number of test items in one task; a metric needs all of them."""
        return TEST_ITEMS if self.spec.metric is None else len(self._test_set[0])

    def _average(self, cohort: Cohort, models: FloatArray, losses: FloatArray) -> TrainingResult:
        """Averages the changes of the weights: what no client changed stays exactly the same."""
        with np.errstate(invalid="ignore", over="ignore"):
            changes = models - cohort.weights
        mean = average_models(np.zeros_like(cohort.weights), changes, losses, cohort.shares)
        return TrainingResult(cohort.weights + mean.weights, mean.losses, mean.finite)

    def _train_client(self, weights: Tensor, order: IntArray) -> tuple[Tensor, float]:
        """Returns the trained weights of a client and its mean training loss."""
        layout, training = self._layout, self.training
        inputs, targets = self._train_set
        layout.put(self._module, weights)
        self._module.train()
        layers = [value for value in self._module.parameters() if value.requires_grad]
        start = [layer.detach().clone() for layer in layers]
        momenta = [torch.zeros_like(layer) for layer in start] if training.momentum else []
        losses = []
        # The order depends on the seed, the client and the round; so do the random numbers.
        digest = hashlib.blake2b(np.ascontiguousarray(order).tobytes(), digest_size=8).digest()
        with seeded(int.from_bytes(digest, "little") >> 1, self.device):
            for epoch in held_items(order):
                for items in torch.split(torch.from_numpy(epoch).to(self.device), training.batch_size):
                    try:
                        loss = self.spec.loss(self._module(inputs[items]), targets[items])
                        gradients = torch.autograd.grad(loss, layers, materialize_grads=True)
                    except (RuntimeError, ValueError, IndexError) as error:
                        if "fork" in str(error):  # explained by the pool of workers
                            raise
                        raise TrainingError(
                            f"the model cannot train on a batch of {len(items)} items: {error}"
                        ) from error
                    losses.append(loss.detach())
                    descend(training, layers, start, gradients, momenta)
        return layout.get(self._module), float(torch.stack(losses).double().mean())


def cnn_learner(
    dataset: Dataset,
    network: Network,
    training: Training | None = None,
    *,
    workers: int | None = None,
    precision: str = "float32",
) -> ModuleLearner:
    """Returns the learner that trains the paper's networks on a CPU.

    Args:
        dataset: The training and test images.
        network: The architecture of the model.
        training: The settings of local training.
        workers: The number of processes, by default one per core.
        precision: "float32" or "float64", for weights and products.
    """
    if precision not in ("float32", "float64"):
        raise SettingError(f"precision on a CPU must be float32 or float64, not {precision!r}")
    # NumPy copies arrays: torch would copy them on several threads, and wait for ever in a forked process.
    train_set = torch.from_numpy(dataset.train_images.copy()), torch.from_numpy(dataset.train_labels.astype(np.int64))
    test_set = torch.from_numpy(dataset.test_images.copy()), torch.from_numpy(dataset.test_labels.astype(np.int64))
    model = partial(PaperCNN, network, dataset.brightness, precision)
    how, initial = training or Training(), network.initial_weights
    return ModuleLearner(ModuleSpec(model, cross_entropy, train_set, test_set, how, initial=initial), workers=workers)


def measure(spec: ModuleSpec, module: torch.nn.Module, inputs: Tensor, targets: Tensor) -> float:
    """Returns the metric of a module on these items, or without a metric its number of correct predictions."""
    module.train(False)
    with torch.no_grad():
        if spec.metric is None:
            return float((module(inputs).argmax(dim=1) == targets).sum())
        outputs = torch.cat([module(part) for part in torch.split(inputs, TEST_ITEMS)])
        return float(spec.metric(outputs, targets))


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
