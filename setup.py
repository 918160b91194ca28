"""Builds the compiled kernel where a C++ compiler is found; without one the NumPy kernel serves alone."""

import sys

from setuptools import Extension, setup

# Contraction would fuse a multiply and an add into one rounding, and the compiled kernel would
# part from its NumPy twin in the last bit.
if sys.platform == "win32":
    arguments = ["/O2", "/fp:precise", "/std:c++17"]
else:
    arguments = ["-O3", "-ffp-contract=off", "-std=c++17"]

setup(
    ext_modules=[
        Extension(
            "turnout.kernel._fast",
            ["src/turnout/kernel/_fast.pyx"],
            depends=[f"src/turnout/kernel/_fast_{part}.hpp" for part in ("cohort", "learning", "vector")],
            language="c++",
            extra_compile_args=arguments,
            optional=True,
        )
    ]
)
