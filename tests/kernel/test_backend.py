from __future__ import annotations

import os
import subprocess
import sys

import pytest

from turnout.errors import KernelError
from turnout.kernel.backend import compiled_kernel, kernel_name, using_kernel


def run_python(code: str, kernel: str | None) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "TURNOUT_KERNEL"}
    if kernel is not None:
        environment["TURNOUT_KERNEL"] = kernel
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


SELECT_COHORT = """
from turnout.kernel.backend import kernel_name
from turnout.kernel.cohort import fastest_fair_cohort
print(kernel_name(), fastest_fair_cohort([1.0, 2.0, 3.0], [0, 5, 9], 2, 1.0).tolist())
"""


@pytest.mark.parametrize(("kernel", "name"), [(None, "compiled"), ("compiled", "compiled"), ("numpy", "numpy")])
def test_the_environment_variable_selects_the_kernel(kernel: str | None, name: str) -> None:
    assert run_python(SELECT_COHORT, kernel).stdout.strip() == f"{name} [1, 2]"


def test_an_unknown_kernel_is_refused() -> None:
    process = run_python(SELECT_COHORT, "fortran")
    assert process.returncode != 0
    assert "TURNOUT_KERNEL must be 'numpy' or 'compiled', not 'fortran'" in process.stderr


WITHOUT_COMPILED = "import sys; sys.modules['turnout.kernel._fast'] = None\n" + SELECT_COHORT


def test_numpy_is_used_if_no_compiled_kernel_exists() -> None:
    assert run_python(WITHOUT_COMPILED, None).stdout.strip() == "numpy [1, 2]"


def test_requesting_a_missing_compiled_kernel_raises_an_error_with_advice() -> None:
    process = run_python(WITHOUT_COMPILED, "compiled")
    assert process.returncode != 0
    assert "Install a C++ compiler and install turnout again, or unset TURNOUT_KERNEL" in process.stderr


VERSION = "import sys; sys.argv = ['turnout', '--version']; from turnout.cli import main; main()"


def test_the_version_explains_a_missing_kernel_but_not_a_requested_one() -> None:
    without = "import sys; sys.modules['turnout.kernel._fast'] = None\n" + VERSION
    (note,) = run_python(without, None).stderr.splitlines()
    assert note.startswith("note: the compiled kernel is not installed (")
    assert note.endswith("install a C++ compiler, then turnout again")
    assert run_python(without, "numpy").stderr == ""
    assert run_python(VERSION, None).stderr == ""


BROKEN = """
import importlib, logging
from turnout.kernel import backend
logging.basicConfig(level="INFO", format="%(levelname)s %(message)s")
def fail(name):
    raise ImportError("undefined symbol")
backend.importlib.import_module = fail
print(backend.kernel_name(), backend.kernel_name())
"""


def test_a_kernel_that_cannot_be_loaded_is_a_warning_and_a_missing_one_is_for_information() -> None:
    (line,) = run_python(BROKEN, None).stderr.splitlines()
    assert line == "WARNING The NumPy kernel is in use, because the compiled kernel cannot be loaded: undefined symbol"
    (line,) = run_python(BROKEN.replace("raise ImportError", "raise ModuleNotFoundError"), None).stderr.splitlines()
    assert line == "INFO The NumPy kernel is in use, because the compiled kernel is not installed"


def test_using_kernel_switches_the_kernel_temporarily() -> None:
    before = kernel_name()
    with using_kernel("numpy"):
        assert compiled_kernel() is None
    assert kernel_name() == before
    with pytest.raises(KernelError), using_kernel("fortran"):
        pass
    assert kernel_name() == before
