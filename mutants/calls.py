"""A plugin of pytest that records which functions of a package each test calls: `pytest -p mutants.calls`.

The variable MUTANTS_SOURCE names the folder of the package, MUTANTS_CALLS the file that is written.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, ClassVar

import pytest

SOURCE, OUTPUT = "MUTANTS_SOURCE", "MUTANTS_CALLS"
Codes = set[CodeType]


def pytest_configure(config: pytest.Config) -> None:
    """Starts to record."""
    config.pluginmanager.register(Recorder(os.environ[SOURCE], os.environ[OUTPUT]))


class Recorder:
    """Records the calls of every test.

    What fixtures of a module or of a class call counts for all tests of the file, and what fixtures of the session call
    for all tests: they are set up once, in the first test that needs them.

    Args:
        source: The folder of the package.
        output: The file that is written at the end.
    """

    def __init__(self, source: str, output: str) -> None:
        self.source, self.output = f"{source}{os.sep}", Path(output)
        self.failed: set[str] = set()
        self._tests: list[tuple[str, str, float, Codes]] = []
        self._of_files: dict[str, Codes] = {}
        self._of_session: Codes = set()
        self._calls: Codes = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Records the calls of one test, with its fixtures."""
        self._calls, start = set(), time.monotonic()
        _watch(self._calls)
        try:
            return (yield)
        finally:
            _watch(None)
            self._tests.append((item.nodeid, str(item.path), time.monotonic() - start, self._calls))

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, Any, Any]:
        """Records the calls of a fixture that several tests share."""
        if fixturedef.scope == "function":
            return (yield)
        is_of_session = fixturedef.scope in ("session", "package")
        shared = self._of_session if is_of_session else self._of_files.setdefault(str(request.path), set())
        _watch(shared)
        try:
            return (yield)
        finally:
            _watch(self._calls)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Notes a file that cannot be imported."""
        if report.failed:
            self.failed.add(report.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes a test that fails."""
        if report.failed:
            self.failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Writes the names of the functions, and for each test its seconds and the indices of what it calls."""
        names: dict[str, int] = {}
        known: dict[CodeType, int | None] = {}

        def index_of(code: CodeType) -> int | None:
            if code not in known:
                name = function_name(code, self.source)
                known[code] = None if name is None else names.setdefault(name, len(names))
            return known[code]

        tests = []
        for test, file, seconds, own in self._tests:
            if test not in self.failed:
                calls = own | self._of_files.get(file, set()) | self._of_session
                indices = sorted({index for code in calls if (index := index_of(code)) is not None})
                tests.append([test, round(seconds, 3), indices])
        found = {"functions": list(names), "tests": tests, "failed": sorted(self.failed)}
        self.output.write_text(json.dumps(found), encoding="utf-8")


def function_name(code: CodeType, source: str) -> str | None:
    """Returns the module and the name of a function below `source`, such as "fleet.py:Fleet.close"; None for others.

    A function inside of another one is named like an attribute of it, and a comprehension is part of its function.
    """
    if not code.co_filename.startswith(source):
        return None
    parts = [part for part in code.co_qualname.split(".") if not part.startswith("<")]
    return f"{code.co_filename.removeprefix(source)}:{'.'.join(parts)}"


class _Watched:
    """The calls that are recorded now: a thread that outlives a test records what it calls for the next tests."""

    calls: ClassVar[Codes | None] = None


def _watch(calls: Codes | None) -> None:
    """Adds the functions that are called from now on, in all threads that began meanwhile; None ends this."""
    _Watched.calls = calls
    hook = None if calls is None else _hook
    sys.setprofile(hook)
    threading.setprofile(hook)


def _hook(frame: FrameType, event: str, _: Any) -> None:
    calls = _Watched.calls
    if event == "call" and calls is not None:
        calls.add(frame.f_code)
