"""The compiled kernel as an extension module, for setup.py."""

from __future__ import annotations

import os
import platform
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension

FOLDER = "src/turnout/kernel"
#: The oldest supported Python, as its stable ABI is named in the tag of a wheel and in its header files.
STABLE_ABI = "cp311"
_LIMITED_API = "0x030B0000"


def requested_kernel() -> str | None:
    """Returns the kernel that TURNOUT_BUILD_KERNEL names, or None: compile it if that is possible.

    "numpy" builds a package for every platform, without the compiled kernel. "compiled" is for releases: the build
    fails where the kernel cannot be compiled.
    """
    requested = os.environ.get("TURNOUT_BUILD_KERNEL") or None
    if requested not in (None, "numpy", "compiled"):
        raise SystemExit(f"TURNOUT_BUILD_KERNEL must be 'numpy' or 'compiled', not {requested!r}")
    return requested


def has_stable_abi() -> bool:
    """Whether this Python has a stable ABI: other implementations and builds without the GIL have none."""
    return platform.python_implementation() == "CPython" and not sysconfig.get_config_var("Py_GIL_DISABLED")


def kernel_extension(build_folder: str) -> Extension:
    """Returns the extension module; its intermediate files are written only to `build_folder`."""
    # Contraction would fuse a multiplication and an addition with a single rounding, and the results of the
    # compiled kernel would differ from those of the NumPy kernel in the last bit.
    # Without errno, square roots are vectorized.
    if sys.platform == "win32":
        arguments = ["/O2", "/fp:precise", "/std:c++17"]
    else:
        arguments = ["-O3", "-ffp-contract=off", "-fno-math-errno", "-std=c++17", "-pthread"]
        # The module depends neither on the folder in which it is built nor on how Python itself was compiled.
        arguments += ["-g0", f"-ffile-prefix-map={build_folder}=.", f"-ffile-prefix-map={Path.cwd()}=."]
    extension = Extension(
        "turnout.kernel._fast",
        [f"{FOLDER}/_fast.pyx"],
        depends=[f"{FOLDER}/_fast_{part}.hpp" for part in ("cohort", "learning", "single", "threads", "vector")],
        include_dirs=[FOLDER],
        language="c++",
        extra_compile_args=arguments,
        extra_link_args=[] if sys.platform == "win32" else ["-pthread"],
        define_macros=[("Py_LIMITED_API", _LIMITED_API)] if has_stable_abi() else [],
        py_limited_api=has_stable_abi(),
        optional=True,
    )
    extension.cython_c_in_temp = True  # Cython's command reads this attribute: no _fast.cpp beside the sources
    return extension
