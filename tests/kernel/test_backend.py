from __future__ import annotations

import os
import subprocess
import sys

import pytest

from turnout.errors import KernelError
from turnout.kernel.backend import compiled_kernel, kernel_name, using_kernel


def run(code: str, kernel: str | None) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "TURNOUT_KERNEL"}
    if kernel is not None:
        environment["TURNOUT_KERNEL"] = kernel
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


CHOOSE = """
from turnout.kernel.backend import kernel_name
from turnout.kernel.cohort import fastest_fair_cohort
print(kernel_name(), fastest_fair_cohort([1.0, 2.0, 3.0], [0, 5, 9], 2, 1.0).tolist())
"""


@pytest.mark.parametrize(("kernel", "name"), [(None, "compiled"), ("compiled", "compiled"), ("numpy", "numpy")])
def test_the_environment_chooses_the_kernel(kernel: str | None, name: str) -> None:
    assert run(CHOOSE, kernel).stdout.strip() == f"{name} [1, 2]"


def test_an_unknown_kernel_is_refused() -> None:
    done = run(CHOOSE, "fortran")
    assert done.returncode != 0
    assert "TURNOUT_KERNEL must be 'numpy' or 'compiled', not 'fortran'" in done.stderr


WITHOUT_COMPILED = "import sys; sys.modules['turnout.kernel._fast'] = None\n" + CHOOSE


def test_without_a_compiled_kernel_numpy_serves() -> None:
    assert run(WITHOUT_COMPILED, None).stdout.strip() == "numpy [1, 2]"


def test_asking_for_a_compiled_kernel_that_is_not_there_says_what_to_do() -> None:
    done = run(WITHOUT_COMPILED, "compiled")
    assert done.returncode != 0
    assert "Install a C++ compiler and install turnout again, or unset TURNOUT_KERNEL" in done.stderr


def test_a_kernel_can_be_used_for_a_while() -> None:
    before = kernel_name()
    with using_kernel("numpy"):
        assert compiled_kernel() is None
    assert kernel_name() == before
    with pytest.raises(KernelError), using_kernel("fortran"):
        pass
    assert kernel_name() == before
