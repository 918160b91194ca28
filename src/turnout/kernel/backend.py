"""Selection of the kernel: the compiled module if it was built, its NumPy equivalent otherwise."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import TYPE_CHECKING

from turnout.errors import KernelError
from turnout.log import get_log

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_LOG = get_log(__name__)
_requested: str | None = None
_threads: str | None = None
_SHARED: ContextVar[bool] = ContextVar("cores_are_shared", default=False)

#: From so many clients on, the compiled kernel uses two threads.
THREADED_CLIENTS = 200_000
MAX_THREADS = 64


def compiled_kernel() -> ModuleType | None:
    """Returns the compiled module, or None if the NumPy kernel is in use.

    The environment variable TURNOUT_KERNEL ("numpy" or "compiled") decides. It is read once per process.
    """
    global _requested
    if _requested is None:
        _requested = os.environ.get("TURNOUT_KERNEL", "")
    return _load(_requested)


def kernel_threads(clients: int) -> int:
    """Returns the number of threads with which the compiled kernel selects from so many clients.

    The environment variable TURNOUT_THREADS decides. Without it, a fleet of THREADED_CLIENTS uses two threads, unless
    there is one core, OMP_NUM_THREADS is 1, as joblib and others set it in their workers, or the process is a worker
    of `multiprocessing`. The number changes no result.
    """
    requested = _threads if _threads is not None else os.environ.get("TURNOUT_THREADS", "")
    if requested:
        if not (requested.isdecimal() and 0 < int(requested) <= MAX_THREADS):
            raise KernelError(f"TURNOUT_THREADS must be a number from 1 to {MAX_THREADS}, not {requested!r}")
        return int(requested)
    if clients < THREADED_CLIENTS or os.environ.get("OMP_NUM_THREADS") == "1":
        return 1
    processes = sys.modules.get("multiprocessing.process")
    is_worker = processes is not None and processes.parent_process() is not None
    return 1 if is_worker else min(2, available_cores())


def available_cores() -> int:
    """Returns the number of cores that this process may use."""
    if _SHARED.get():
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def sharing_cores() -> Iterator[None]:
    """Uses one core inside the `with` block, because other workers use the others."""
    token = _SHARED.set(True)
    try:
        yield
    finally:
        _SHARED.reset(token)


def kernel_name() -> str:
    """Returns the name of the kernel in use, as TURNOUT_KERNEL spells it."""
    return "numpy" if compiled_kernel() is None else "compiled"


def missing_kernel() -> str | None:
    """Returns why the NumPy kernel is in use and what to do, or None if it was requested or is not in use."""
    if compiled_kernel() is not None or _requested == "numpy":
        return None
    return (
        f"the compiled kernel is not installed ({_import_compiled()}), and the NumPy kernel selects the same clients, "
        "more slowly: install a C++ compiler, then turnout again"
    )


@contextmanager
def using_kernel(name: str, threads: int | None = None) -> Iterator[None]:
    """Uses the named kernel, with so many threads, inside the `with` block, to compare them in one process."""
    global _requested, _threads
    _load(name)
    before = _requested, _threads
    _requested, _threads = name, None if threads is None else str(threads)
    try:
        yield
    finally:
        _requested, _threads = before


@functools.cache
def _load(name: str) -> ModuleType | None:
    if name not in ("", "numpy", "compiled"):
        raise KernelError(f"TURNOUT_KERNEL must be 'numpy' or 'compiled', not {name!r}")
    if name == "numpy":
        return None
    imported = _import_compiled()
    if isinstance(imported, ModuleType):
        return imported
    if name == "compiled":
        raise KernelError(
            f"TURNOUT_KERNEL=compiled, but the compiled kernel cannot be loaded ({imported}). Install a C++ "
            "compiler and install turnout again, or unset TURNOUT_KERNEL to use the NumPy kernel"
        ) from imported
    return None


@functools.cache
def _import_compiled() -> ModuleType | ImportError:
    """Imports the compiled module; a process logs once that there is none."""
    try:
        return importlib.import_module("turnout.kernel._fast")
    except ModuleNotFoundError as missing:
        _LOG.info("The NumPy kernel is in use, because the compiled kernel is not installed")
        return missing
    except ImportError as broken:  # it was built, for instance for another system
        _LOG.warning("The NumPy kernel is in use, because the compiled kernel cannot be loaded: %s", broken)
        return broken


def count_flags(counts: npt.NDArray[np.int64], flags: npt.NDArray[np.bool_]) -> None:
    """Adds 1 to each count whose flag is set, in place."""
    compiled = compiled_kernel()
    if compiled is None or not (counts.flags.c_contiguous and flags.flags.c_contiguous):
        counts += flags
    else:
        compiled.count_flags(counts, flags.view("u1"))
