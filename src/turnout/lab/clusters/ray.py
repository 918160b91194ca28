"""Sweeps on Ray."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any

from turnout.errors import ClusterError, TurnoutError, first_line
from turnout.lab.clusters.cluster import Cluster
from turnout.lab.runs.executors import MAX_REPEATS, Result, Task


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

    def __enter__(self) -> RayCluster:
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
