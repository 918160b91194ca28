"""What the source distribution and the wheels must contain, and must not."""

from __future__ import annotations

import re
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

_GENERATED = {"PKG-INFO", "setup.cfg"}
#: Examples, so that a list which is empty by mistake is noticed.
REQUIRED_SOURCES = {
    ".ci/run",
    ".github/workflows/tests.yml",
    "LICENSE",
    "Makefile",
    "README.md",
    "benchmarks/__main__.py",
    "constraints.txt",
    "docs/index.md",
    "docs/pictures/overview.png",
    "examples/plain_loop.py",
    "pyproject.toml",
    "release/commands.py",
    "setup.py",
    "src/turnout/kernel/_fast.pyx",
    "src/turnout/kernel/_fast_cohort.hpp",
    "tests/conftest.py",
    "tests/scheduler/data/fleet-format-1.turnout",
    "tests/syncs.c",
}
REQUIRED_IN_WHEEL = {
    "turnout/__init__.py",
    "turnout/dashboard/static/index.html",
    "turnout/kernel/_fast.pyi",
    "turnout/lab/data/ATTRIBUTION.md",
    "turnout/lab/data/digits.npz",
    "turnout/py.typed",
}
_COMPILED = re.compile(r"turnout/kernel/_fast[^/]*\.(so|pyd)")
#: Sources of the compiled kernel.
_ONLY_SOURCES = (".pyx", ".hpp")


def read_sources(archive: Path) -> dict[str, bytes]:
    """Returns the files of a source distribution, by their paths in the repository."""
    with tarfile.open(archive) as tar:
        opened = ((member.name.partition("/")[2], tar.extractfile(member)) for member in tar if member.isfile())
        return {name: file.read() for name, file in opened if file is not None}


def read_wheel(wheel: Path) -> dict[str, bytes]:
    """Returns the files of a wheel."""
    with zipfile.ZipFile(wheel) as file:
        return {name: file.read(name) for name in file.namelist()}


def faults_of_sources(names: Iterable[str], tracked: Iterable[str] | None) -> list[str]:
    """Returns what is wrong with the list of distributed files.

    Args:
        names: The paths of the distributed files.
        tracked: All files of the commit, or None if they are unknown.
    """
    present = set(names)
    faults = [f"{name} is missing" for name in sorted(REQUIRED_SOURCES - present)]
    if tracked is not None:
        expected = set(tracked)
        faults += [f"{name} is tracked, and not distributed" for name in sorted(expected - present)]
        faults += [f"{name} is not tracked" for name in sorted(present - expected - _GENERATED)]
    return faults


def faults_of_wheel(names: Iterable[str], sources: Iterable[str], *, compiled: bool) -> list[str]:
    """Returns what is wrong with the list of files in a wheel.

    Args:
        names: The paths in the wheel.
        sources: The paths in the source distribution.
        compiled: Whether the wheel must contain the compiled kernel, or must not.
    """
    present = {name for name in names if not re.match(r"turnout-[^/]+\.dist-info/", name)}
    kernels = {name for name in present if _COMPILED.fullmatch(name)}
    expected = {
        name.removeprefix("src/")
        for name in sources
        if name.startswith("src/turnout/") and not name.endswith(_ONLY_SOURCES)
    }
    faults = [f"{name} is missing" for name in sorted((expected | REQUIRED_IN_WHEEL) - present)]
    faults += [f"{name} does not belong there" for name in sorted(present - expected - kernels)]
    if len(kernels) != compiled:
        faults.append(f"there must be {int(compiled)} compiled kernel, not {sorted(kernels)}")
    return faults


def machine_paths(files: Mapping[str, bytes], folders: Iterable[Path]) -> list[str]:
    """Returns which files contain the name of one of these folders of this machine."""
    return [
        f"{name} contains {folder}"
        for name, content in files.items()
        for folder in folders
        if str(folder).encode() in content
    ]
