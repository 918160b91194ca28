"""Sweeps on Dask."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any

from turnout.errors import ClusterError
from turnout.lab.clusters.cluster import ANSWER_SECONDS, Cluster
from turnout.lab.runs.executors import Result, Task, ignored_interrupts


class DaskCluster(Cluster):
    """An executor on Dask, connected while it is open (`with`).

    Every worker needs the same version of turnout. Dask starts a task on another worker if the worker of the task dies;
    its setting `distributed.scheduler.allowed-failures` says how often.

    Args:
        address: "auto" for the scheduler that DASK_SCHEDULER_ADDRESS or the configuration of Dask names, or HOST:PORT;
            None starts Dask on this machine, and ends it at the end.
        workers: The number of processes if Dask is started; by default one per core.
    """

    name, package = "Dask", "distributed"
    advice = "`dask scheduler` starts one and prints its address, and `dask worker ADDRESS` adds workers"
    _client: Any = None
    _cluster: Any = None

    @property
    def client(self) -> Any:
        """The `distributed.Client`."""
        if self._client is None:
            raise ClusterError("the cluster is not connected: open it in a `with` block")
        return self._client

    @property
    def workers(self) -> int:
        """The number of threads of all workers, which is the number of tasks that run at the same time."""
        return max(1, sum(self.client.nthreads().values()))

    def __enter__(self) -> DaskCluster:
        from distributed import Client, LocalCluster

        if self.address is None:
            with ignored_interrupts():
                self._cluster = LocalCluster(
                    n_workers=self._started,
                    threads_per_worker=1,
                    dashboard_address=None,
                    silence_logs=logging.CRITICAL,  # errors of runs are raised, and workers that died are replaced
                )
                self._client = Client(self._cluster)
            return self
        address = self._configured_address() if self.address == "auto" else self.address
        self.check_listening(address)
        try:
            self._client = Client(address, timeout=ANSWER_SECONDS)
        except (OSError, ValueError) as error:
            raise self.unreachable(address, error) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for opened in (self._client, self._cluster):
            if opened is not None:
                opened.close()
        self._client = self._cluster = None

    def run(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        """Yields the index and the result of each task, in the order in which they end."""
        from distributed import CancelledError, KilledWorker, as_completed

        futures = self.client.map(function, tasks, pure=False)
        waiting = {future.key: (index, future) for index, future in enumerate(futures)}
        del futures  # a result is released when its future is
        try:
            for future in as_completed([future for _, future in waiting.values()]):
                try:
                    result = future.result()
                except KilledWorker as error:
                    raise ClusterError(
                        f"a run ended every worker of Dask that played it ({error.last_worker.address} last): it may "
                        "need more memory than the workers have"
                    ) from error
                except CancelledError as error:
                    raise ClusterError("the connection to the scheduler of Dask was lost") from error
                except ModuleNotFoundError as error:
                    raise self.lacks_module(error) from error
                index, _ = waiting.pop(future.key)
                future.release()
                yield index, result
        finally:
            with contextlib.suppress(CancelledError, OSError):  # the scheduler is gone, and its tasks with it
                self.client.cancel([future for _, future in waiting.values()])

    def _configured_address(self) -> str:
        import dask
        import distributed  # noqa: F401  # it adds its defaults to the configuration

        address = dask.config.get("scheduler-address", None)
        if address is None:
            raise ClusterError(
                "Dask does not find a running cluster by itself: set DASK_SCHEDULER_ADDRESS, or give HOST:PORT; "
                + self.advice
            )
        return str(address)
