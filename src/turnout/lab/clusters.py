"""Clusters that play sweeps: Ray and Dask, on this machine or on many.

Everything in `__all__` is public.

    with RayCluster("auto") as cluster:
        sweep(plans, store, backend=cluster)
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Self

from turnout.closing import Closable
from turnout.errors import ClusterError, SettingError, TurnoutError, first_line, look_up
from turnout.kernel.arrays import as_count
from turnout.kernel.backend import available_cores
from turnout.lab.runs.sweep import MAX_REPEATS, Executor, JoblibExecutor, Result, Task, ignored_interrupts

#: How long to wait for an answer of a cluster, in seconds.
ANSWER_SECONDS = 10.0


class Cluster(Closable, Executor):
    """An executor on a cluster, connected while it is open (`with`).

    Args:
        address: "auto" or HOST:PORT of a running cluster; None starts one on this machine, and ends it at the end.
        workers: The number of processes if the cluster is started; by default one per core.
    """

    name: ClassVar[str]
    package: ClassVar[str]
    advice: ClassVar[str]  # how a cluster is started

    def __init__(self, address: str | None = None, *, workers: int | None = None) -> None:
        if importlib.util.find_spec(self.package) is None:
            raise SettingError(
                f"the backend {self.name.lower()} needs the package {self.package}: pip install 'turnout[cluster]'"
            )
        if address is not None and workers is not None:
            raise SettingError(
                "the number of workers is that of the cluster: omit it, or omit the address", argument="workers"
            )
        if address not in (None, "auto"):
            _split_address(str(address))
        self.address = address
        self._started = available_cores() if workers is None else as_count("workers", workers, SettingError)

    def check_listening(self, address: str) -> None:
        """Raises ClusterError if nothing listens at this address.

        The clients of the frameworks retry for a long time, and their messages do not name the reason.
        """
        try:
            socket.create_connection(_split_address(address), timeout=ANSWER_SECONDS).close()
        except OSError as error:
            raise self.unreachable(address, error) from error

    def unreachable(self, address: str, error: Exception) -> ClusterError:
        """Returns the error for a cluster that does not answer."""
        reason = getattr(error, "strerror", None) or first_line(error)
        return ClusterError(f"no {self.name} cluster answers at {address} ({reason}): {self.advice}")

    def lacks_module(self, error: BaseException) -> ClusterError:
        """Returns the error for a worker that cannot import a module."""
        return ClusterError(f"a worker of {self.name} lacks a module ({error}): install turnout on every machine")


def _split_address(address: str) -> tuple[str, int]:
    """Returns host and port of an address such as "10.0.0.5:6379" or "ray://head:10001"."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not colon or not host.strip("[]") or not port.isdecimal() or not 0 < int(port) < 65536:
        raise SettingError(f"the address of a cluster must be 'auto' or HOST:PORT, not {address!r}", argument="address")
    return host.strip("[]"), int(port)


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

    def __enter__(self) -> Self:
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

    def close(self) -> None:
        """Disconnects, and ends a cluster that was started here."""
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


class RayCluster(Cluster):
    """An executor on Ray, connected while it is open (`with`).

    Every worker needs the same version of turnout. A connection to Ray that this process has already is used, and left
    open.

    Args:
        address: "auto" for the cluster of this machine or of RAY_ADDRESS, HOST:PORT, or ray://HOST:PORT from outside
            the cluster; None starts Ray on this machine, and ends it at the end.
        workers: The number of processes if Ray is started; by default one per core.
    """

    name, package = "Ray", "ray"
    advice = "`ray start --head` starts one, and prints its address"
    _is_ours = False

    @property
    def workers(self) -> int:
        """The number of CPU cores of the cluster, which is the number of tasks that run at the same time."""
        import ray

        return max(1, int(ray.cluster_resources().get("CPU", 0)))

    def __enter__(self) -> Self:
        import ray

        if ray.is_initialized():
            return self
        # Ray would report its use to its makers, and warn about a future default that we choose here.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if self.address is None:
            try:
                ray.init(address="local", num_cpus=self._started, include_dashboard=False, **quiet)
            except Exception as error:  # Ray has no class of its own for this
                raise ClusterError(
                    f"Ray could not be started on this machine ({first_line(error)}): its logs are in "
                    "/tmp/ray/session_latest/logs"
                ) from error
        else:
            if self.address != "auto":
                self.check_listening(self.address)
            try:
                ray.init(address=self.address, **quiet)
            except (ConnectionError, RuntimeError, ValueError) as error:
                if self.address == "auto" and isinstance(error, ConnectionError):
                    raise ClusterError(
                        f"no Ray cluster runs on this machine, and RAY_ADDRESS names none: {self.advice}"
                    ) from error
                raise self.unreachable(self.address, error) from error
        self._is_ours = True
        return self

    def close(self) -> None:
        """Disconnects, and ends a cluster that was started here."""
        if self._is_ours:
            import ray

            ray.shutdown()
            self._is_ours = False

    def run(self, function: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[tuple[int, Result]]:
        """Yields the index and the result of each task, in the order in which they end."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        remote = ray.remote(num_cpus=1, max_retries=MAX_REPEATS)(function)
        waiting = {remote.remote(task): index for index, task in enumerate(tasks)}
        try:
            while waiting:
                (ended, *_), _ = ray.wait(list(waiting), num_returns=1)
                try:
                    result = ray.get(ended)
                except RayTaskError as error:
                    raise self._cause(error) from error
                except RayError as error:
                    raise ClusterError(f"a run could not be played on Ray ({first_line(error)})") from error
                yield waiting.pop(ended), result
        finally:
            for task in waiting:
                ray.cancel(task, force=True)

    def _cause(self, error: Any) -> BaseException:
        """Returns the error of a task as the worker raised it, if turnout raised it on purpose."""
        cause = error.cause
        if isinstance(cause, TurnoutError):
            return cause
        if isinstance(cause, ModuleNotFoundError):
            return self.lacks_module(cause)
        return ClusterError(f"a run failed in a worker of Ray: {error}")


#: What each backend plays runs on.
BACKENDS = {
    "local": "processes of this machine, or this process where joblib is not installed",
    "joblib": "processes of this machine",
    "ray": "a Ray cluster",
    "dask": "a Dask cluster",
}


def connect(
    backend: str, address: str | None = None, *, workers: int | None = None
) -> AbstractContextManager[Executor | None]:
    """Returns a context manager that connects to a backend and yields its executor; None for the default of `sweep`.

    Args:
        backend: A name of `BACKENDS`.
        address: The address of a running cluster: "auto" or HOST:PORT; None starts one on this machine.
        workers: The number of processes on this machine, by default one per core.
    """
    look_up("backend", backend, BACKENDS)
    if backend == "ray":
        return RayCluster(address, workers=workers)
    if backend == "dask":
        return DaskCluster(address, workers=workers)
    if address is not None:
        raise SettingError(
            f"the backend {backend} has no address: use ray or dask for other machines", argument="address"
        )
    return nullcontext(None if backend == "local" else JoblibExecutor(workers))
