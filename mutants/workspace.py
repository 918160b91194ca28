"""A copy of a checkout in which mutants are tried, so that the checkout itself never changes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mutants.calls import OUTPUT, SOURCE

#: Parts of a checkout that no test needs, or that are large.
LEFT_OUT = shutil.ignore_patterns(
    *(".git", ".venv*", "build", "dist", "__pycache__", "*.egg-info", ".*_cache", ".hypothesis", ".benchmarks")
)
#: Variables of a test run that a run inside of it must not have.
NOT_INHERITED = ("PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER", "PYTHONDONTWRITEBYTECODE")
NO_TESTS = 5  # the exit status of pytest if it finds no test


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the tests said.

    Attributes:
        kind: "survived" if they passed; otherwise "killed", "timeout", or "crashed" if a signal ended them.
        seconds: How long they took.
        output: The end of what they printed.
    """

    kind: str
    seconds: float
    output: str


class Workspace:
    """A copy of the checkout at `root`, in `folder`.

    Args:
        root: The checkout.
        folder: Where the copy is made; it must not exist.
        options: Further options of pytest.

    `stopped` can be set to end the tests that another thread runs.
    """

    def __init__(self, root: Path, folder: Path, options: Sequence[str] = ()) -> None:
        self.root, self.folder, self.options = root, folder, tuple(options)
        self.stopped = threading.Event()
        shutil.copytree(root, folder, ignore=LEFT_OUT)
        plugins = Path(__file__).parents[1]  # the folder from which `mutants.calls` is imported
        paths = os.pathsep.join(map(str, (folder / "src", folder / "tests", folder, plugins)))
        inherited = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
        self._environment = {**inherited, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

    def check_imports(self, package: str) -> None:
        """Raises RuntimeError unless the copy of the package is the one that the tests would import."""
        code = f"import {package}; print({package}.__file__)"
        found = subprocess.run(
            [sys.executable, "-c", code], cwd=self.folder, env=self._environment, capture_output=True, text=True
        )
        if not found.stdout.startswith(str(self.folder)):
            raise RuntimeError(f"tests would import {package} from {found.stdout.strip() or found.stderr}, not a copy")

    def run(self, tests: Iterable[str], limit: float) -> Outcome:
        """Runs tests, named as for pytest, on the copy, until one of them fails or `limit` seconds have passed."""
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".txt") as names:
            names.writelines(f"{test}\n" for test in tests)  # too many for the arguments of a command
            names.flush()
            return self._run(["-x", f"@{names.name}"], limit, {"PYTHONDONTWRITEBYTECODE": "1"})

    def record(self, source: Path, file: Path, output: Path, limit: float) -> Outcome:
        """Runs a test file of the checkout on the copy, and writes what its tests call to `output`.

        Args:
            source: The folder of the package in the checkout.
            file: The test file.
            output: The file that `mutants.calls` writes; it is not written if the tests do not end.
            limit: The seconds after which the tests are stopped.
        """
        variables = {SOURCE: str(self._copy_of(source)), OUTPUT: str(output)}
        return self._run(["-p", "mutants.calls", str(file.relative_to(self.root))], limit, variables)

    def _run(self, arguments: Sequence[str], limit: float, variables: Mapping[str, str]) -> Outcome:
        quiet = ("-q", "--no-header", "--tb=line", "-p", "no:cacheprovider", "-p", "no:xdist")
        with tempfile.TemporaryFile() as printed:  # not a pipe, which a process that a test has started may keep open
            start = time.monotonic()
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *quiet, *self.options, *arguments],
                cwd=self.folder,
                env={**self._environment, **variables},
                stdout=printed,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # so that the processes that tests have started end with them
            )
            try:
                is_over = self._wait(process.pid, start + limit)
            finally:
                os.killpg(process.pid, signal.SIGKILL)  # before it is reaped, so that nobody else has its number
                status = process.wait()
            seconds = time.monotonic() - start
            printed.seek(0)
            output = printed.read()[-2000:].decode(errors="replace")
        return Outcome(_kind(status) if is_over else "timeout", seconds, output)

    def _wait(self, process: int, end: float) -> bool:
        """Waits for the end of a child process, without reaping it; returns False if it takes too long."""
        while os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            if self.stopped.is_set():
                raise RuntimeError("the measurement was stopped")
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        return True

    @contextmanager
    def changed(self, file: Path, source: bytes) -> Iterator[None]:
        """Replaces a file of the copy, named by its path in the checkout, until the block ends."""
        copy = self._copy_of(file)
        original, status = copy.read_bytes(), copy.stat()
        try:
            copy.write_bytes(source)
            # Another time than that of the original: bytecode of the original must not be used, even if the size
            # and the second are the same.
            os.utime(copy, (status.st_atime, status.st_mtime - 1000))
            yield
        finally:
            copy.write_bytes(original)
            os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))

    def _copy_of(self, path: Path) -> Path:
        return self.folder / path.relative_to(self.root)


def _kind(status: int) -> str:
    if status in (0, NO_TESTS):
        return "survived"
    return "crashed" if status < 0 else "killed"
