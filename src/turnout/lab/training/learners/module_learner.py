"""A learner for any module of torch: a plain loop over the clients, on a GPU or over forked processes on a CPU."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from turnout.errors import SettingError, TrainingError
from turnout.kernel.arrays import FloatArray, IntArray, as_count
from turnout.kernel.backend import available_cores
from turnout.lab.training.datasets import Dataset
from turnout.lab.training.learners.base import Cohort, Learner, Training, TrainingResult, average_models, held_items
from turnout.lab.training.learners.client_loop import Task, WorkerPool, can_fork, forkable
from turnout.lab.training.learners.cnn import PaperCNN, descend
from turnout.lab.training.learners.devices import usable_device
from turnout.lab.training.learners.modules import ModuleLayout, ModuleSpec, seeded
from turnout.lab.training.learners.networks import Network
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
        self._layout = ModuleLayout(self._module)
        self.network = self._layout
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
        with seeded(_noise_seed(order), self.device):
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


def _noise_seed(order: IntArray) -> int:
    """Returns a seed for the random numbers of a client: its order depends on the seed, the client and the round."""
    digest = hashlib.blake2b(np.ascontiguousarray(order).tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
