"""Packages with plug-ins, as pip would install them, in a temporary folder on the Python path."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import pytest

from turnout.lab.worlds.registry import LEARNERS
from turnout.lab.worlds.registry import REGISTRY as WORLDS
from turnout.plugins import package_of_module
from turnout.policies.registry import REGISTRY as POLICIES

#: Leaves a file when it is imported.
SOURCE = dedent(
    '''
    from pathlib import Path

    import numpy as np

    from turnout import Selection, SelectionPolicy, UniformRandom
    from turnout.policies.wrappers.base import Wrapper
    from turnout.lab import PaperWorld
    from turnout.lab.worlds.registry import build_world

    Path(__file__).with_suffix(".imported").touch()


    class First(SelectionPolicy):
        """Selects the first available clients.

        Args:
            clients: The number of clients.
            offset: How many of them are skipped.
        """

        name = "first"

        def __init__(self, clients, *, cohort_size=8, offset=0):
            super().__init__(clients)
            self.cohort_size, self.offset = cohort_size, offset

        def ask(self, offer):
            self.check_offer(offer)
            rows = np.flatnonzero(offer.available)
            return Selection(offer.round, np.sort(np.roll(rows, -self.offset)[: self.places(offer)]))

        def tell(self, report):
            self.check_report(report)


    class Around(Wrapper):
        name = "around"

        def __init__(self, policy, *, extra=1):
            super().__init__(policy)
            self.extra = extra


    def uniform(clients, *, seed=0) -> SelectionPolicy:
        return UniformRandom(clients, cohort_size=3, seed=seed)


    def small_world(*, seed=0, people=12):
        """A small world, with a keyword-only seed."""
        return PaperWorld(seed, clients=people)


    def outer_world(seed, *, inner):
        return build_world(inner, seed)


    def not_a_policy(clients) -> SelectionPolicy:
        return 5


    def leave_a_mark(clients):
        Path(__file__).with_suffix(".called").touch()


    def make_task(*, size=3):
        raise RuntimeError(f"a task of size {size} was built")


    first = First(10)
    '''
)


def write_module(folder: Path, module: str, source: str = SOURCE) -> Path:
    """Writes a module; returns the file that it leaves when it is imported."""
    (folder / f"{module}.py").write_text(source)
    return folder / f"{module}.imported"


def write_package(
    folder: Path, package: str, module: str, entry_points: Mapping[str, Mapping[str, str]], version: str = "1.2"
) -> Path:
    """Writes a module and what pip would record about its package; returns what `write_module` does."""
    information = folder / f"{package.replace('-', '_')}-{version}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    (information / "top_level.txt").write_text(f"{module}\n")
    lines = []
    for group, entries in entry_points.items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (information / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return write_module(folder, module)


@contextmanager
def forgotten_modules(*modules: str) -> Iterator[None]:
    """Forgets these modules, and everything that was registered or loaded, at the end."""
    try:
        yield
    finally:
        forget(*modules)


def forget(*modules: str) -> None:
    """Forgets these modules, and everything that was registered or loaded, as if they had never been imported."""
    for module in modules:
        sys.modules.pop(module, None)
    for registry in (POLICIES, WORLDS, LEARNERS):
        registry.clear()
    package_of_module.cache_clear()


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Installs the package quick-package 1.2 with entry points; returns the file that its module leaves."""
    monkeypatch.syspath_prepend(tmp_path)
    entries = {
        "turnout.policies": {"first": "quick_module:First", "around": "quick_module:Around"},
        "turnout.worlds": {"small": "quick_module:small_world"},
        "turnout.learners": {"tiny": "quick_module:make_task"},
    }
    with forgotten_modules("quick_module"):
        yield write_package(tmp_path, "quick-package", "quick_module", entries)


@pytest.fixture
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Makes a module `loose_module` importable; returns the file that it leaves."""
    monkeypatch.syspath_prepend(tmp_path)
    with forgotten_modules("loose_module"):
        yield write_module(tmp_path, "loose_module")
