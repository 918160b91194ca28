"""Builds the compiled kernel if there is a C++ compiler; otherwise turnout uses the NumPy kernel."""

import sys

from setuptools import Extension, setup

# Contraction would fuse a multiplication and an addition with a single rounding, and the results of the
# compiled kernel would differ from those of the NumPy kernel in the last bit.
# Without errno, square roots are vectorized.
if sys.platform == "win32":
    arguments = ["/O2", "/fp:precise", "/std:c++17"]
else:
    arguments = ["-O3", "-ffp-contract=off", "-fno-math-errno", "-std=c++17"]

setup(
    ext_modules=[
        Extension(
            "turnout.kernel._fast",
            ["src/turnout/kernel/_fast.pyx"],
            depends=[f"src/turnout/kernel/_fast_{part}.hpp" for part in ("cohort", "learning", "single", "vector")],
            language="c++",
            extra_compile_args=arguments,
            optional=True,
        )
    ]
)
