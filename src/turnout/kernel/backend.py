"""Which kernel runs: the compiled one where it was built, its NumPy twin otherwise."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from turnout.errors import KernelError

_wanted: str | None = None


def compiled_kernel() -> ModuleType | None:
    """The compiled module, or None where NumPy serves; TURNOUT_KERNEL=numpy|compiled decides, read once."""
    global _wanted
    if _wanted is None:
        _wanted = os.environ.get("TURNOUT_KERNEL", "")
    return _load(_wanted)


def kernel_name() -> str:
    """The name of the kernel in use, as TURNOUT_KERNEL spells it."""
    return "numpy" if compiled_kernel() is None else "compiled"


@contextmanager
def using_kernel(name: str) -> Iterator[None]:
    """Run with the kernel of this name for a while: for comparisons in one process."""
    global _wanted
    _load(name)
    before, _wanted = _wanted, name
    try:
        yield
    finally:
        _wanted = before


@functools.cache
def _load(wanted: str) -> ModuleType | None:
    if wanted not in ("", "numpy", "compiled"):
        raise KernelError(f"TURNOUT_KERNEL must be 'numpy' or 'compiled', not {wanted!r}")
    if wanted == "numpy":
        return None
    try:
        from turnout.kernel import _fast
    except ImportError as missing:
        if wanted == "compiled":
            raise KernelError(
                f"TURNOUT_KERNEL=compiled, but the compiled kernel cannot be loaded ({missing}). Install a C++ "
                "compiler and install turnout again, or unset TURNOUT_KERNEL to use the NumPy kernel"
            ) from missing
        return None
    return _fast
