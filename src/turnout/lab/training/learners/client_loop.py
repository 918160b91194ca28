"""Training on a CPU: one task per client or per part of the test set, distributed over forked processes."""

from __future__ import annotations

import multiprocessing
import os
import platform
import signal
import sys
import threading
import time
import weakref
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from turnout.errors import SettingError, TrainingError
from turnout.kernel.arrays import FloatArray, IntArray, as_count
from turnout.lab.training.learners.base import Cohort, Learner, TrainingResult, average_models
from turnout.log import get_log

log = get_log("turnout.lab")

TEST_ITEMS = 500  # test items in one task

#: (weights, items of a client, 0) for training, (weights, None, first test item) for evaluation.
Task = tuple[npt.NDArray[np.floating], IntArray | None, int]
ON_ARM = platform.machine().lower() in ("aarch64", "arm64")


class ClientLoop(Learner):
    """Trains one client after the other; `workers` processes share the clients (1 trains in this process).

    Workers are forked: they read the data without a copy. Every client is trained
    on one thread, so the result does not depend on the number of workers. On a machine with a GPU, torch refuses to
    compute gradients in processes that were forked after the parent computed some: train before that, or with one
    worker. A subclass trains one client, and measures one model on a part of the test set.
    """

    def __init__(
        self, dtype: npt.DTypeLike, workers: int | None, *, test_items: int, test_chunk: int, test_total: int
    ) -> None:
        """Starts no process yet; workers are started by the first training or evaluation.

        Args:
            dtype: The type of the flat weights.
            workers: The number of processes, by default one per core.
            test_items: The number of test items.
            test_chunk: The number of test items in one task.
            test_total: The sum of the measurements of all tasks is divided by this.
        """
        self._dtype = np.dtype(dtype)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.workers = as_count("workers", cores if workers is None else workers, SettingError)
        if self.workers > 1 and not can_fork():
            log.info("clients are trained one after the other: on this system, workers cannot share the data")
            self.workers = 1
        self._test_items, self._test_chunk, self._test_total = test_items, test_chunk, test_total
        self._workers: _WorkerPool | None = None

    @abstractmethod
    def _train_client(self, weights: Tensor, order: IntArray) -> tuple[Tensor, float]:
        """Returns the trained weights of a client and its mean training loss; `weights` must not be changed."""

    @abstractmethod
    def _measure(self, weights: Tensor, items: slice) -> float:
        """Returns the measurement of a model on these test items, such as the number of correct predictions."""

    def _average(self, cohort: Cohort, models: FloatArray, losses: FloatArray) -> TrainingResult:
        return average_models(cohort.weights, models, losses, cohort.shares)

    def train(self, cohorts: Sequence[Cohort]) -> list[TrainingResult]:
        """Distributes the clients of all cohorts over the workers and averages each cohort."""
        trained = iter(self._run_tasks([(cohort.weights, order, 0) for cohort in cohorts for order in cohort.orders]))
        results = []
        for cohort in cohorts:
            own = list(islice(trained, len(cohort.orders)))
            models = np.array([model for model, _ in own], self._dtype).reshape(len(own), self.network.parameters)
            results.append(self._average(cohort, models, np.array([loss for _, loss in own])))
        return results

    def evaluate(self, models: Sequence[npt.NDArray[np.floating]]) -> list[float]:
        """Returns the accuracy of each model on the test set."""
        starts = range(0, self._test_items, self._test_chunk)
        measured = self._run_tasks([(weights, None, first) for weights in models for first in starts])
        sums = np.array([value for _, value in measured]).reshape(len(models), len(starts)).sum(axis=1)
        return (sums / self._test_total).tolist()  # type: ignore[no-any-return]

    def saved(self, weights: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
        """Returns a copy of the weights."""
        return weights.copy()

    def loaded(self, array: npt.ArrayLike) -> npt.NDArray[np.floating]:
        """Returns a copy of saved weights; raises StateError if they do not fit this network."""
        return self.network.check_weights(array).astype(self._dtype)

    def close(self) -> None:
        """Ends the worker processes."""
        if self._workers is not None:
            self._workers.close()
            self._workers = None

    def run_task(self, task: Task) -> tuple[Any, float]:
        """Returns the trained model of a client and its loss; or nothing, and the measurement of a model."""
        weights, order, first = task
        start = torch.from_numpy(np.array(weights, self._dtype))
        with _forkable():
            if order is None:
                return None, float(self._measure(start, slice(first, first + self._test_chunk)))
            trained, loss = self._train_client(start, order)
            return trained.numpy(), loss

    def _run_tasks(self, tasks: Sequence[Task]) -> list[tuple[Any, float]]:
        if self.workers > 1 and tasks:
            self._workers = self._workers or _WorkerPool(self)
            return self._workers.run(tasks)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return [self.run_task(task) for task in tasks]
        finally:
            torch.set_num_threads(threads)


def can_fork() -> bool:
    """Returns whether workers can be forked: Windows cannot, and on macOS libraries fail in a forked process."""
    return "fork" in multiprocessing.get_all_start_methods() and sys.platform != "darwin"


@contextmanager
def _forkable() -> Iterator[None]:
    """Uses only kernels that work in a forked process, whatever the parent has computed before.

    On ARM, oneDNN computes with threads of its own. They are missing in a forked process, where it waits for them for
    ever; the kernels of torch itself are as fast there.
    """
    backend: Any = torch.backends.mkldnn
    before = backend.enabled
    backend.enabled = before and not ON_ARM
    try:
        yield
    finally:
        backend.enabled = before


class _WorkerPool:
    """Forked worker processes."""

    def __init__(self, learner: ClientLoop) -> None:
        self._pool = ProcessPoolExecutor(
            learner.workers,
            multiprocessing.get_context("fork"),
            initializer=_initialise_worker,
            # Inherited by the fork, not pickled. A strong reference to the learner would keep the pool alive.
            initargs=(os.getpid(), weakref.ref(learner)),
        )
        self._finalizer = weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)

    def run(self, tasks: Sequence[Task]) -> list[tuple[Any, float]]:
        """Runs all tasks in parallel; returns their results in the order of the tasks."""
        try:
            return list(self._pool.map(_run_task, tasks))
        except BrokenProcessPool as error:
            raise TrainingError(
                "a training process ended abruptly (out of memory, or killed): start again with fewer workers; "
                "a saved run resumes from its last snapshot"
            ) from error
        except RuntimeError as error:
            if "fork" not in str(error):
                raise
            raise TrainingError(
                "torch cannot train in forked processes: on a machine with a GPU it refuses to once this process has "
                "computed gradients itself. Use workers=1, or train in a separate process"
            ) from error

    def close(self) -> None:
        """Ends the workers and waits for them."""
        self._finalizer.detach()
        self._pool.shutdown(wait=True, cancel_futures=True)


_WORKER_STATE: list[ClientLoop | None] = []  # in a worker process: the learner


def _initialise_worker(parent: int, learner: weakref.ref[ClientLoop]) -> None:
    """Uses one thread, leaves Ctrl-C to the parent, and exits when the parent has died."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    _WORKER_STATE[:] = [learner()]

    def watch_parent() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch_parent, daemon=True).start()


def _run_task(task: Task) -> tuple[Any, float]:
    (learner,) = _WORKER_STATE
    assert learner is not None
    return learner.run_task(task)
