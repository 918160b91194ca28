"""Prints the coverage of each package: `coverage json -o - | python tests/coverage_summary.py`."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

#: What is added up: the covered and all lines, the taken and all branches.
COUNTED = ("covered_lines", "num_statements", "covered_branches", "num_branches")


def package_of(file: str) -> str:
    """Returns the package below turnout that a file belongs to; modules of turnout itself count as `turnout`."""
    parts = PurePath(file).parts
    below = parts[parts.index("turnout") + 1 :]
    return below[0] if len(below) > 1 else "turnout"


def add_up(report: Mapping[str, Any]) -> dict[str, list[int]]:
    """Returns the counts of each package, by name, and of all packages."""
    packages: dict[str, list[int]] = defaultdict(lambda: [0] * len(COUNTED))
    for file, data in report["files"].items():
        for name in (package_of(file), "all"):
            packages[name] = [
                sum(pair) for pair in zip(packages[name], map(data["summary"].__getitem__, COUNTED), strict=True)
            ]
    return dict(sorted(packages.items(), key=lambda item: (item[0] == "all", item[0])))


def as_table(packages: Mapping[str, list[int]]) -> str:
    """Returns one line per package, with the shares of its lines and branches that are covered."""
    lines = [f"{'package':<14}{'lines':>8}{'covered':>10}{'branches':>11}{'covered':>10}"]
    for name, (covered, statements, taken, branches) in packages.items():
        shares = share(covered, statements), share(taken, branches)
        lines.append(f"{name:<14}{statements:>8,}{shares[0]:>10}{branches:>11,}{shares[1]:>10}")
    return "\n".join(lines)


def share(part: int, whole: int) -> str:
    """Returns a share in percent, or a dash if there is nothing to cover."""
    return f"{part / whole:.1%}" if whole else "–"


if __name__ == "__main__":
    print(as_table(add_up(json.load(sys.stdin))))
