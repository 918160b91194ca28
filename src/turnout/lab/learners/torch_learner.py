"""The paper's networks on a CPU: one client a task, and a process a core."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from mmap import mmap
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from turnout.errors import SettingError, TrainingError
from turnout.kernel.arrays import FloatArray, IntArray, as_count
from turnout.lab.datasets import Dataset
from turnout.lab.learners.base import Cohort, Training, TrainingResult, average_models
from turnout.lab.learners.cnn import descend, scores
from turnout.lab.learners.networks import Network

TEST_ITEMS = 500  # at once
SMALLEST_ROOM = 64  # models that come back

Task = tuple[int, int, IntArray | None]  # the model to start from; a place and a client's items, or the first test item


class TorchLearner:
    """Trains clients one by one, each on one core; `workers` processes share them (1 trains here, without any).

    Processes are forked: they see the images without copying them, and hand models over in shared memory. Every client
    is trained on one thread, so that the result does not depend on how many workers there are. On a machine with a GPU,
    torch refuses gradients in processes forked after the parent has taken some: train before, or with one worker.
    """

    def __init__(
        self,
        dataset: Dataset,
        network: Network,
        training: Training | None = None,
        *,
        workers: int | None = None,
        precision: str = "float32",
    ) -> None:
        self.training = training or Training()
        self.network = network
        self.dataset = dataset
        if precision not in ("float32", "float64"):
            raise SettingError(f"precision on a CPU must be float32 or float64, not {precision!r}")
        self._numbers = np.dtype(precision)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.workers = as_count("workers", cores if workers is None else workers, SettingError)
        if "fork" not in multiprocessing.get_all_start_methods():
            self.workers = 1
        self._middle, self._width = dataset.brightness
        self._team: _Team | None = None

    def initial_weights(self, seed: int) -> npt.NDArray[np.floating]:
        """A fresh model."""
        return self.loaded(self.network.initial_weights(seed))

    def train(self, cohorts: Sequence[Cohort]) -> list[TrainingResult]:
        """All clients of all cohorts, spread over the workers."""
        if not cohorts:
            return []
        clients = sum(len(cohort.orders) for cohort in cohorts)
        jobs = [(run, order) for run, cohort in enumerate(cohorts) for order in cohort.orders]
        with self._shared(len(cohorts), clients) as (sent, back):
            for run, cohort in enumerate(cohorts):
                sent[run] = cohort.weights
            tasks = [(run, place, order) for place, (run, order) in enumerate(jobs)]
            losses = np.array(self._all_done(tasks, sent, back))
            taught, first = [], 0
            for cohort in cohorts:
                own = slice(first, first + len(cohort.orders))
                taught.append(average_models(cohort.weights, back[own], losses[own], cohort.shares))
                first = own.stop
            return taught

    def evaluate(self, models: Sequence[npt.NDArray[np.floating]]) -> list[float]:
        """The share of test images whose likeliest class is theirs."""
        if not models:
            return []
        items = len(self.dataset.test_images)
        with self._shared(len(models), 0) as (sent, back):
            for run, weights in enumerate(models):
                sent[run] = weights
            tasks = [(run, first, None) for run in range(len(models)) for first in range(0, items, TEST_ITEMS)]
            right = np.array(self._all_done(tasks, sent, back)).reshape(len(models), -1).sum(axis=1)
        return (right / items).tolist()  # type: ignore[no-any-return]

    def saved(self, weights: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
        """A copy."""
        return weights.copy()

    def loaded(self, array: npt.ArrayLike) -> npt.NDArray[np.floating]:
        """A copy, if it is of this network."""
        return self.network.check_weights(array).astype(self._numbers)

    def close(self) -> None:
        """Send the workers home."""
        if self._team is not None:
            self._team.close()
            self._team = None

    def shared_array(self, rows: int) -> Any:
        """Room for so many models, which forked processes see too."""
        size = rows * self.network.parameters
        return np.frombuffer(mmap(-1, size * self._numbers.itemsize), self._numbers).reshape(rows, -1)

    def do(self, task: Task, sent: FloatArray, back: FloatArray) -> float:
        """One client's training, its model left in `back`; or one part of a test. Its loss, or how many were right."""
        run, place, order = task
        weights = torch.from_numpy(sent[run])
        if order is None:
            return float(self._right(weights, slice(place, place + TEST_ITEMS)))
        model, loss = self._trained(weights, order)
        back[place] = model.numpy()
        return loss

    def _trained(self, weights: Tensor, order: IntArray) -> tuple[Tensor, float]:
        how, data = self.training, self.dataset
        start = [layer.clone() for layer in self.network.split(weights)]
        layers = [layer.clone().requires_grad_() for layer in start]
        momenta = [torch.zeros_like(layer) for layer in layers] if how.momentum else []
        losses = []
        for items in (
            epoch[first : first + how.batch_size] for epoch in order for first in range(0, len(epoch), how.batch_size)
        ):
            labels = torch.from_numpy(data.train_labels[items].astype(np.int64))
            loss = functional.cross_entropy(
                scores(self.network, layers, self._scaled(data.train_images[items])), labels
            )
            losses.append(float(loss.detach()))
            slopes = torch.autograd.grad(loss, layers)
            descend(how, layers, start, slopes, momenta)
        return torch.cat([layer.detach().flatten() for layer in layers]), float(np.mean(losses))

    def _right(self, weights: Tensor, items: slice) -> int:
        with torch.no_grad():
            likeliest = scores(self.network, self.network.split(weights), self._scaled(self.dataset.test_images[items]))
        labels = torch.from_numpy(self.dataset.test_labels[items].astype(np.int64))
        return int((likeliest.argmax(dim=1) == labels).sum())

    def _scaled(self, images: npt.NDArray[np.uint8]) -> Tensor:
        return torch.from_numpy(((images - self._middle) / self._width).astype(self._numbers))

    @contextmanager
    def _shared(self, models: int, clients: int) -> Iterator[tuple[Any, Any]]:
        """Room for the models that are sent and those that come back."""
        size = self.network.parameters
        if self.workers == 1:
            yield np.empty((models, size), self._numbers), np.empty((clients, size), self._numbers)
            return
        if self._team is not None and not self._team.has_room(models, clients):
            self.close()
        if self._team is None:
            self._team = _Team(self, 2 * models, max(2 * clients, SMALLEST_ROOM))
        yield self._team.sent[:models], self._team.back[:clients]

    def _all_done(self, tasks: Sequence[Any], sent: Any, back: Any) -> list[float]:
        if self._team is not None:
            return self._team.do(tasks)
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return [self.do(task, sent, back) for task in tasks]
        finally:
            torch.set_num_threads(before)


class _Team:
    """Forked workers, and memory that they share with us."""

    def __init__(self, learner: TorchLearner, models: int, clients: int) -> None:
        self.sent, self.back = learner.shared_array(models), learner.shared_array(clients)
        self._pool = ProcessPoolExecutor(
            learner.workers,
            multiprocessing.get_context("fork"),
            initializer=_start,
            # Inherited, not sent; and the learner weakly, or the pool would keep itself alive through it.
            initargs=(os.getpid(), weakref.ref(learner), self.sent, self.back),
        )
        self._end = weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)

    def has_room(self, models: int, clients: int) -> bool:
        """For so many models to send, and to bring back."""
        return models <= len(self.sent) and clients <= len(self.back)

    def do(self, tasks: Sequence[Task]) -> list[float]:
        """All tasks, in any order; their answers in order."""
        try:
            return list(self._pool.map(_do, tasks))
        except BrokenProcessPool as lost:
            raise TrainingError(
                "a training process ended abruptly (out of memory, or killed): start again with fewer workers; "
                "a saved run goes on where it was"
            ) from lost
        except RuntimeError as refused:
            if "fork" not in str(refused):
                raise
            raise TrainingError(
                "torch cannot train in forked processes any more: on a machine with a GPU, once this process has taken "
                "gradients itself; give workers=1, or train in a process of its own"
            ) from refused

    def close(self) -> None:
        """Wait for the workers to leave."""
        self._end.detach()
        self._pool.shutdown(wait=True, cancel_futures=True)


_AT_WORK: list[Any] = []  # in a worker: the learner, and the shared memory


def _start(parent: int, learner: weakref.ref[TorchLearner], sent: Any, back: Any) -> None:
    """One thread a worker; Ctrl-C is for the parent; and nobody stays when the parent was killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    _AT_WORK[:] = learner(), sent, back

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _do(task: Task) -> float:
    learner, sent, back = _AT_WORK
    return float(learner.do(task, sent, back))
