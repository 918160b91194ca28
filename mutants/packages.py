"""The measured packages, and the tests that are run for a module."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Package:
    """A part of the source that has its own score.

    Attributes:
        name: Its name on the command line.
        folder: Its folder, relative to the top package.
        tests: The folders and files with its tests, relative to the root of the checkout.
        least: The score that it must have, as a share of the mutants that are not accepted.
    """

    name: str
    folder: str
    tests: tuple[str, ...]
    least: float


PACKAGES = (
    Package("kernel", "kernel", ("tests/kernel", "tests/policies"), 0.95),
    Package("policies", "policies", ("tests/policies",), 0.95),
    Package("store", "store", ("tests/lab/runs", "tests/simulator/test_sweep.py"), 0.95),
    Package("scheduler", "scheduler", ("tests/live",), 0.95),
    Package("experiments", "experiments", ("tests/lab/studies",), 0.95),
    Package("adapters", "adapters", ("tests/adapters",), 0.90),
    Package("views", "dashboard/views", ("tests/dashboard",), 0.90),
)


def modules_of(source: Path, package: Package) -> list[Path]:
    """Returns the modules of a package that is below `source`, the folder of the top package."""
    return sorted((source / package.folder).rglob("*.py"))


def nearest_tests(root: Path, source: Path, package: Package, module: Path) -> list[Path]:
    """Returns the tests for a module; those that are most likely to notice a fault in it come first.

    First come the test files that are named after the module or import it, wherever they are, then those in the folder
    that mirrors the module's folder, then the others of the package.
    """
    dotted = ".".join(module.relative_to(source.parent).with_suffix("").parts).removesuffix(".__init__")
    mirrored = root / "tests" / module.relative_to(source).parent

    def imports_it(file: Path) -> bool:
        # To parse a file takes much longer than to search it.
        return dotted.rpartition(".")[2].encode() in file.read_bytes() and dotted in imports_of(file)

    def distance(file: Path) -> int:
        if imports_it(file) or (file.parent == mirrored and file.name == f"test_{module.stem}.py"):
            return 0
        return 1 if file.is_relative_to(mirrored) else 2

    files = {file for name in package.tests for file in _test_files(root / name)}
    files |= {file for file in _test_files(root / "tests") if imports_it(file)}
    return sorted(files, key=lambda file: (distance(file), file.as_posix()))


def _test_files(path: Path) -> Sequence[Path]:
    return [path] if path.is_file() else sorted(path.rglob("test_*.py"))


@cache
def imports_of(file: Path) -> frozenset[str]:
    """Returns the modules that a file imports anywhere, and the names that it imports from packages."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)
