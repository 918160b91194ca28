"""Executors: run tasks in other processes or on other machines, and repeat the tasks of workers that died."""

from __future__ import annotations

import importlib.util
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

from turnout.errors import ClusterError, SettingError
from turnout.kernel.arrays import as_count
from turnout.kernel.backend import available_cores

Task = TypeVar("Task")
Result = TypeVar("Result")
#: How often a task is started again after its worker died. A task that ends every worker may need too much memory.
MAX_REPEATS = 4


class Executor(Protocol):
    """Runs tasks in other processes.

    Functions must be importable, and tasks and results picklable.
    """

    @property
    def workers(self) -> int:
        """The number of tasks that run at the same time."""

    def run(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        """Yields the index and the result of each task, in the order in which they end.

        A task whose worker dies is repeated. An error of a task is raised here, and ends the others.

        Args:
            function: The function to call.
            tasks: The arguments, one per call; they start in this order.
        """


class JoblibExecutor:
    """Runs tasks with joblib, in processes of this machine.

    Args:
        workers: The number of processes, by default one per core.
    """

    def __init__(self, workers: int | None = None) -> None:
        if importlib.util.find_spec("joblib") is None:
            raise SettingError("parallel runs need the package joblib: pip install 'turnout[plots]'")
        self.workers = available_cores() if workers is None else as_count("workers", workers, SettingError)

    def run(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        """Yields the index and the result of each task, in the order in which they end."""
        from joblib.externals.loky.process_executor import BrokenProcessPool

        left = dict(enumerate(tasks))
        losses = 0
        while left:
            try:
                for index, result in self._run_once(function, left):
                    del left[index]
                    losses = 0
                    yield index, result
            except BrokenProcessPool as error:  # a worker died, or was started without the folder of a plug-in
                losses += 1
                if losses > MAX_REPEATS:
                    raise ClusterError(
                        f"worker processes died {losses} times in a row, and no run was finished in between: they may "
                        "need more memory than there is; use fewer workers"
                    ) from error

    def _run_once(self, function: Callable[[Task], Result], tasks: dict[int, Task]) -> Iterator[tuple[int, Result]]:
        from joblib import Parallel, delayed

        calls = [delayed(_call_indexed)(function, index, task) for index, task in tasks.items()]
        with ignored_interrupts():
            results = Parallel(self.workers, return_as="generator_unordered")(calls)  # starts the workers
        try:
            # `yield from` would close the pool before the warnings are silenced.
            for index, result in results:  # noqa: UP028
                yield index, result
        finally:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # joblib warns about runs that were unfinished at the stop
                results.close()


def _call_indexed(function: Callable[[Task], Result], index: int, task: Task) -> tuple[int, Result]:
    return index, function(task)


@contextmanager
def ignored_interrupts() -> Iterator[None]:
    """Ignores SIGINT for a moment, and for good in the processes that are started inside the `with` block.

    A terminal sends Ctrl-C to all processes. This process handles it and ends its workers; a worker that is still
    starting would print a traceback. Only an ignored signal stays ignored in a new process.
    """
    before = signal.getsignal(signal.SIGINT)
    # Python changes signals in the main thread only, and cannot restore a handler that it did not install.
    if before is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
