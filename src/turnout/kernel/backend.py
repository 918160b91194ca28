"""Selection of the kernel: the compiled module if it was built, its NumPy equivalent otherwise."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from turnout.errors import KernelError

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
    try:
        from turnout.kernel import _fast
    except ImportError as missing:
        if name == "compiled":
            raise KernelError(
                f"TURNOUT_KERNEL=compiled, but the compiled kernel cannot be loaded ({missing}). Install a C++ "
                "compiler and install turnout again, or unset TURNOUT_KERNEL to use the NumPy kernel"
            ) from missing
        return None
    return _fast
