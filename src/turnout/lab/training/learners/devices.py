"""Processes and devices that train: forked workers on a CPU, and the devices that torch can use."""

from __future__ import annotations

import multiprocessing
import os
import platform
import signal
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from turnout.errors import SettingError, TrainingError
from turnout.kernel.arrays import IntArray


def usable_device(name: str) -> Literal["cpu", "cuda"]:
    """Returns the type of a device; raises SettingError if torch cannot use it on this machine."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise SettingError(f"there is no device {name!r}: use cpu, cuda, or cuda:1 for the second GPU") from error
    if device.type == "cpu":
        return "cpu"
    if device.type != "cuda":
        raise SettingError(f"turnout trains on cpu and on cuda, not on {name!r}")
    if not torch.cuda.is_available():
        reason = "this torch was built without CUDA" if torch.version.cuda is None else "torch finds no GPU"
        raise SettingError(
            f"the device {name!r} cannot be used: {reason}. Use cpu, or a machine with a GPU and a torch with CUDA"
        )
    if (device.index or 0) >= torch.cuda.device_count():
        raise SettingError(
            f"there is no device {name!r}: this machine has {torch.cuda.device_count()} GPUs, numbered from cuda:0"
        )
    return "cuda"


def device_name(name: str) -> str:
    """Returns the product name of a device, such as "NVIDIA H200", or "CPU"."""
    return torch.cuda.get_device_name(name) if usable_device(name) == "cuda" else "CPU"


#: (weights, items of a client, 0) for training, (weights, None, first test item) for evaluation.
Task = tuple[npt.NDArray[np.floating], IntArray | None, int]
ON_ARM = platform.machine().lower() in ("aarch64", "arm64")


def can_fork() -> bool:
    """Returns whether workers can be forked: Windows cannot, and on macOS libraries fail in a forked process."""
    return "fork" in multiprocessing.get_all_start_methods() and sys.platform != "darwin"


@contextmanager
def forkable() -> Iterator[None]:
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


class WorkerPool:
    """Forked worker processes.

    Args:
        learner: The learner, which has a number of `workers` and the method `run_task`.
    """

    def __init__(self, learner: Any) -> None:
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
            # A new worker inherits the mask, so that Ctrl-C cannot reach it before it ignores it.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                results = self._pool.map(_run_task, tasks)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            return list(results)
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


_WORKER_STATE: list[Any] = []  # in a worker process: the learner


def _initialise_worker(parent: int, learner: weakref.ref[Any]) -> None:
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
    result: tuple[Any, float] = learner.run_task(task)
    return result
