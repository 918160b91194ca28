"""Executors by the name of their backend."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from turnout.errors import SettingError, suggestion
from turnout.lab.clusters.dask import DaskCluster
from turnout.lab.clusters.ray import RayCluster
from turnout.lab.runs.executors import Executor, JoblibExecutor

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
    if backend not in BACKENDS:
        raise SettingError(
            f"unknown backend {backend!r}{suggestion(backend, BACKENDS)}; there are {', '.join(BACKENDS)}"
        )
    if backend == "ray":
        return RayCluster(address, workers=workers)
    if backend == "dask":
        return DaskCluster(address, workers=workers)
    if address is not None:
        raise SettingError(
            f"the backend {backend} has no address: use ray or dask for other machines", argument="address"
        )
    return nullcontext(None if backend == "local" else JoblibExecutor(workers))
