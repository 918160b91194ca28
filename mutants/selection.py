"""Which tests are run for a mutant: those that call the function with the fault, quick and specific ones first."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mutants.generate import Mutant
from mutants.workspace import Workspace


@dataclass(frozen=True, slots=True)
class RecordedTest:
    """A test: its name for pytest, its seconds without a fault, and the functions of the package that it calls."""

    name: str
    seconds: float
    calls: frozenset[str]


@dataclass(frozen=True, slots=True)
class RecordedFile:
    """The tests of a file that pass without a fault, and the names of those that fail."""

    tests: tuple[RecordedTest, ...]
    failed: tuple[str, ...]


class Calls:
    """What the tests of each file call, in a folder with one JSON file per test file.

    A test file is recorded again after it has changed. A change of the sources can make a test call other functions;
    that is noticed only if everything is recorded again.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[Path, RecordedFile] = {}
        self._mutex = threading.Lock()

    def is_known(self, file: Path) -> bool:
        """Returns whether a test file has been recorded since it was changed, and all of its tests passed."""
        path = self._path(file)
        return path.exists() and not json.loads(path.read_text(encoding="utf-8"))["failed"]

    def record(self, workspace: Workspace, source: Path, file: Path, limit: float) -> str | None:
        """Runs a test file and records what its tests call; returns what it prints if it cannot be used.

        Args:
            workspace: Where it runs.
            source: The folder of the package in the checkout.
            file: The test file.
            limit: The seconds after which it is stopped.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._path(file)
        written = path.with_suffix(f".{threading.get_ident()}")
        found = workspace.record(source, file, written, limit)
        if not written.exists():
            return f"{found.kind} after {found.seconds:.0f} s\n{found.output}"
        written.replace(path)
        return None

    def of(self, file: Path) -> RecordedFile:
        """Returns what was recorded about a test file; nothing if it could not be used."""
        with self._mutex:
            if file not in self._files:
                self._files[file] = self._read(file)
            return self._files[file]

    def _read(self, file: Path) -> RecordedFile:
        path = self._path(file)
        if not path.exists():
            return RecordedFile((), ())
        data = json.loads(path.read_text(encoding="utf-8"))
        names = data["functions"]
        tests = tuple(
            RecordedTest(name, seconds, frozenset(names[index] for index in calls))
            for name, seconds, calls in data["tests"]
        )
        return RecordedFile(tests, tuple(data["failed"]))

    def _path(self, file: Path) -> Path:
        digest = hashlib.sha256(str(file).encode() + file.read_bytes()).hexdigest()[:16]
        return self.folder / f"{file.stem}-{digest}.json"


def select_tests(mutant: Mutant, files: Sequence[RecordedFile], budget: float) -> list[RecordedTest]:
    """Returns the tests that are run for a mutant, within `budget` seconds, those that call its function first.

    Tests that call it come first, because they are the most likely to notice it, and among them those that are quick
    and call few other functions: half of all tests may call the function, and only one examine it. Then come the other
    tests of their files, which may use what those have computed. A fault outside of all functions, and one
    in a function that no test calls in its own process, is tried with the tests that call anything in the module; if
    there are none either, with all tests.
    """
    inside = f"{mutant.module}:{mutant.where}"
    for calls_it in (
        lambda name: mutant.where != "" and (name == inside or name.startswith(f"{inside}.")),
        lambda name: name.startswith(f"{mutant.module}:"),
        lambda name: True,  # noqa: ARG005
    ):
        direct = [[test for test in file.tests if _calls(test, calls_it)] for file in files]
        if any(direct):
            near = {test for tests in direct for test in tests}
            with_such = [file for file, tests in zip(files, direct, strict=True) if tests]
            beside = [test for file in with_such for test in file.tests if test not in near]
            return _within(budget, [*_ordered(near), *_ordered(beside)])
    return []


def _calls(test: RecordedTest, matches: Callable[[str], bool]) -> bool:
    return any(map(matches, test.calls))


def _ordered(tests: Iterable[RecordedTest]) -> list[RecordedTest]:
    """Returns the tests in ascending order of seconds times called functions."""
    return sorted(tests, key=lambda test: (test.seconds * max(len(test.calls), 1), test.name))


def _within(budget: float, tests: Iterable[RecordedTest]) -> list[RecordedTest]:
    """Returns the tests in order, without those that would exceed the budget; at least the first one."""
    chosen: list[RecordedTest] = []
    total = 0.0
    for test in tests:
        if not chosen or total + test.seconds <= budget:
            chosen.append(test)
            total += test.seconds
    return chosen
