"""Selection of the kernel: the compiled module if it was built, its NumPy equivalent otherwise."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from turnout.errors import KernelError
from turnout.log import get_log

_LOG = get_log(__name__)
_requested: str | None = None


def compiled_kernel() -> ModuleType | None:
    """Returns the compiled module, or None if the NumPy kernel is in use.

    The environment variable TURNOUT_KERNEL ("numpy" or "compiled") decides. It is read once per process.
    """
    global _requested
    if _requested is None:
        _requested = os.environ.get("TURNOUT_KERNEL", "")
    return _load(_requested)


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
def using_kernel(name: str) -> Iterator[None]:
    """Uses the named kernel inside the `with` block, to compare both kernels in one process."""
    global _requested
    _load(name)
    before, _requested = _requested, name
    try:
        yield
    finally:
        _requested = before


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
