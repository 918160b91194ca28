"""The stored figures, and how each is drawn from its stored tables: `make figures` draws all of them."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from turnout.lab.columns import Table
from turnout.lab.drawing.style import as_svg
from turnout.lab.studies.catalogue import EXPERIMENTS
from turnout.lab.studies.framework.experiment import Findings
from turnout.lab.studies.leaderboard.drawing import draw_board
from turnout.lab.studies.leaderboard.suites import SUITES

RESULTS = Path(__file__).parents[3] / "docs" / "results"
BOTH = ("fashion-mnist", "cifar-10")


def stored_figures() -> dict[Path, Callable[[], str]]:
    """Returns every figure that has stored tables, and a function that draws it from them."""
    figures: dict[Path, Callable[[], str]] = {}
    for claims in sorted(RESULTS.rglob("claims.json")):
        for name in EXPERIMENTS:
            if claims.with_name(f"{name}.svg").exists():
                figures[claims.with_name(f"{name}.svg")] = _experiment(claims.with_name(f"{name}.svg"))
    for table, names in (("leaderboard", ("front", "leaderboard")), ("slots", ("slots",))):
        for data in sorted(RESULTS.rglob(f"{table}.json")):
            figures |= {data.with_name(f"{name}.svg"): _leaderboard(data, name) for name in names}
    return figures


@cache
def read_table(path: Path) -> Table:
    """Returns a stored table; columns of numbers are arrays of numbers."""
    with path.open(newline="") as file:
        header, *rows = csv.reader(file)
    return {name: _column(cells) for name, cells in zip(header, zip(*rows, strict=True), strict=True)}


def _column(cells: Sequence[str]) -> np.ndarray:
    if set(cells) <= {"True", "False"}:
        return np.array([cell == "True" for cell in cells])
    try:
        return np.array([float(cell) for cell in cells])
    except ValueError:
        return np.array(cells)


def _experiment(figure: Path) -> Callable[[], str]:
    datasets = {"numerical": (), "fairness-impact": BOTH}.get(figure.parent.name, (figure.parent.name,))

    def draw() -> str:
        experiment = EXPERIMENTS[figure.stem]
        tables = {path.stem: read_table(path) for path in figure.parent.glob("*.csv")}
        return as_svg((experiment.on(datasets) if datasets else experiment).draw(Findings([], tables)))

    return draw


def _leaderboard(data: Path, name: str) -> Callable[[], str]:
    def draw() -> str:
        stored = json.loads(data.read_text(encoding="utf-8"))
        suite = replace(SUITES[stored["suite"]], title=stored["title"])
        return as_svg(draw_board(suite, read_table(data.with_suffix(".csv")))[name])

    return draw


if __name__ == "__main__":
    for path, redraw in stored_figures().items():
        path.write_text(redraw(), encoding="utf-8")
        sys.stdout.write(f"{path.relative_to(RESULTS)}\n")
