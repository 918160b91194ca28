from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from types import SimpleNamespace
from typing import Any

import pytest

from turnout.cli import main
from turnout.errors import KernelError
from turnout.kernel import backend
from turnout.kernel.backend import THREADED_CLIENTS, compiled_kernel, kernel_name, kernel_threads, using_kernel
from turnout.kernel.cohort import fastest_fair_cohort

Start = Callable[[str | None], None]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Returns a function that makes this process like a new one with TURNOUT_KERNEL, which has not used a kernel."""

    def forget() -> None:
        backend._load.cache_clear()
        backend._import_compiled.cache_clear()

    def start(kernel: str | None) -> None:
        monkeypatch.setattr(backend, "_requested", None)
        if kernel is None:
            monkeypatch.delenv("TURNOUT_KERNEL", raising=False)
        else:
            monkeypatch.setenv("TURNOUT_KERNEL", kernel)
        forget()

    yield start
    forget()


@pytest.fixture
def without_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "turnout.kernel._fast", None)


def select_cohort() -> Any:
    return fastest_fair_cohort([1.0, 2.0, 3.0], [0, 5, 9], 2, 1.0).tolist()


@pytest.mark.parametrize(("kernel", "name"), [(None, "compiled"), ("compiled", "compiled"), ("numpy", "numpy")])
def test_the_environment_is_read_when_a_kernel_is_first_used(start: Start, kernel: str | None, name: str) -> None:
    start(kernel)
    assert (kernel_name(), select_cohort()) == (name, [1, 2])


def test_an_unknown_kernel_is_refused(start: Start) -> None:
    start("fortran")
    with pytest.raises(KernelError, match="TURNOUT_KERNEL must be 'numpy' or 'compiled', not 'fortran'"):
        select_cohort()


@pytest.mark.usefixtures("without_compiled")
def test_requesting_a_missing_compiled_kernel_raises_an_error_with_advice(start: Start) -> None:
    start("compiled")
    with pytest.raises(
        KernelError, match="Install a C\\+\\+ compiler and install turnout again, or unset TURNOUT_KERNEL"
    ):
        select_cohort()


def version_note(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """Returns what `turnout --version` prints to standard error."""
    monkeypatch.setattr(sys, "argv", ["turnout", "--version"])
    with pytest.raises(SystemExit):
        main()
    return capsys.readouterr().err


def test_the_version_explains_a_missing_kernel_but_not_a_requested_one(
    start: Start, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start(None)
    assert version_note(monkeypatch, capsys) == ""
    monkeypatch.setitem(sys.modules, "turnout.kernel._fast", None)
    start("numpy")
    assert version_note(monkeypatch, capsys) == ""
    start(None)
    (note,) = version_note(monkeypatch, capsys).splitlines()
    assert note.startswith("note: the compiled kernel is not installed (")
    assert note.endswith("install a C++ compiler, then turnout again")


@pytest.mark.parametrize(
    ("error", "logged"),
    [
        (ImportError, ("WARNING", "because the compiled kernel cannot be loaded: undefined symbol")),
        (ModuleNotFoundError, ("INFO", "because the compiled kernel is not installed")),
    ],
)
def test_a_kernel_that_cannot_be_loaded_is_a_warning_and_a_missing_one_is_for_information(
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: type[ImportError],
    logged: tuple[str, str],
) -> None:
    def fail(_: str) -> None:
        raise error("undefined symbol")

    start(None)
    monkeypatch.setattr(backend, "importlib", SimpleNamespace(import_module=fail))
    with caplog.at_level("INFO"):
        assert (kernel_name(), kernel_name()) == ("numpy", "numpy")
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        (logged[0], f"The NumPy kernel is in use, {logged[1]}")
    ]


def test_using_kernel_switches_the_kernel_temporarily() -> None:
    before = kernel_name()
    with using_kernel("numpy"):
        assert compiled_kernel() is None
    assert kernel_name() == before
    with pytest.raises(KernelError), using_kernel("fortran"):
        pass
    assert kernel_name() == before


# Threads


@pytest.fixture
def free_cores(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A process without settings on a machine with eight cores."""
    monkeypatch.delenv("TURNOUT_THREADS", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(backend, "available_cores", lambda: 8)
    return monkeypatch


def test_only_large_fleets_use_two_threads(free_cores: pytest.MonkeyPatch) -> None:
    assert [kernel_threads(clients) for clients in (1, THREADED_CLIENTS - 1, THREADED_CLIENTS)] == [1, 1, 2]
    free_cores.setattr(backend, "available_cores", lambda: 1)
    assert kernel_threads(THREADED_CLIENTS) == 1


def test_a_process_that_shares_the_cores_with_others_uses_one(free_cores: pytest.MonkeyPatch) -> None:
    free_cores.undo()
    free_cores.delenv("TURNOUT_THREADS", raising=False)
    with backend.sharing_cores():
        assert (backend.available_cores(), kernel_threads(THREADED_CLIENTS)) == (1, 1)


def test_workers_of_a_pool_use_one_thread(free_cores: pytest.MonkeyPatch) -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        assert pool.submit(kernel_threads, THREADED_CLIENTS).result() == 1
    free_cores.setenv("OMP_NUM_THREADS", "1")  # as joblib sets it in its workers
    assert kernel_threads(THREADED_CLIENTS) == 1


@pytest.mark.usefixtures("free_cores")
def test_the_environment_variable_sets_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNOUT_THREADS", "3")
    assert kernel_threads(1) == kernel_threads(THREADED_CLIENTS) == 3
    for wrong in ("0", "two", "-1", "65"):
        monkeypatch.setenv("TURNOUT_THREADS", wrong)
        with pytest.raises(KernelError, match=f"TURNOUT_THREADS must be a number from 1 to 64, not '{wrong}'"):
            kernel_threads(1)


def test_using_kernel_sets_the_number_of_threads_temporarily() -> None:
    before = kernel_threads(1)
    with using_kernel("compiled", 5):
        assert kernel_threads(1) == 5
    assert kernel_threads(1) == before
