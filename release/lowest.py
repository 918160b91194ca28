"""Prints the lowest versions of all dependencies that pyproject.toml allows, as pins: `python release/lowest.py`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version

#: Their oldest versions need other dependencies: tests/adapters/*/oldest.txt are their environments.
OWN_ENVIRONMENT = frozenset({"flower", "flower-sim", "nvflare"})
#: Only the version of torch in constraints.txt has a small build.
TOO_LARGE = frozenset({"lab"})
#: typer 0.12 fails with newer versions of click, and does not say so; Flower 1.22, which needs typer 0.12, does.
NEEDED_BY_THE_LOWEST = ("click<8.2",)
#: For developers, and not part of what users install.
TOOLS = frozenset({"dev", "docs"})


def lowest_requirements(project: Mapping[str, Any]) -> list[str]:
    """Returns the table `[project]`'s dependencies and extras as pins of their lower bounds.

    >>> lowest_requirements({"dependencies": ["numpy>=1.24"], "optional-dependencies": {"plots": ["matplotlib>=3.7"]}})
    ['matplotlib==3.7', 'numpy==1.24']
    """
    excluded = OWN_ENVIRONMENT | TOO_LARGE | TOOLS
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for name in extras if name not in excluded for line in extras[name])]
    bounds: dict[str, Version] = {}
    for requirement in map(Requirement, lines):
        if requirement.name == project.get("name"):
            continue  # an extra that consists of others
        name = requirement.name + (f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else "")
        bound = lower_bound(requirement)
        bounds[name] = max(bounds.get(name, bound), bound)
    return [f"{name}=={bounds[name]}" for name in sorted(bounds)]


def lower_bound(requirement: Requirement) -> Version:
    """Returns the lower bound of a requirement; every dependency must have one."""
    bounds = [Version(specifier.version) for specifier in requirement.specifier if specifier.operator == ">="]
    if len(bounds) != 1:
        raise SystemExit(f"{requirement} has no lower bound")
    return bounds[0]


if __name__ == "__main__":
    table = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    print(*lowest_requirements(table), *NEEDED_BY_THE_LOWEST, sep="\n")
