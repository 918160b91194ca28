"""The stored figures are those that the stored tables give, to the byte: drawing has not changed since."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from turnout.experiments.catalogue import EXPERIMENTS
from turnout.experiments.framework.drawing import as_svg
from turnout.experiments.framework.experiment import Findings, Table

pytest.importorskip("matplotlib")
ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
FIGURES = sorted(
    claims.with_name(f"{name}.svg")
    for claims in RESULTS.rglob("claims.json")
    for name in EXPERIMENTS
    if claims.with_name(f"{name}.svg").exists()
)
BOTH = ("fashion-mnist", "cifar-10")
PINNED = re.search(r"^matplotlib==(\S+)$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)


def datasets_of(figure: Path) -> Sequence[str]:
    """Returns the datasets of a figure; none if it is about no trained model."""
    return {"numerical": (), "fairness-impact": BOTH}.get(figure.parent.name, (figure.parent.name,))


def read_table(path: Path) -> Table:
    with path.open(newline="") as file:
        header, *rows = csv.reader(file)
    return {name: _column(cells) for name, cells in zip(header, zip(*rows, strict=True), strict=True)}


def _column(cells: Sequence[str]) -> np.ndarray:
    try:
        return np.array([float(cell) for cell in cells])
    except ValueError:
        return np.array(cells)


def test_every_experiment_has_a_stored_figure() -> None:
    assert {figure.stem for figure in FIGURES} == set(EXPERIMENTS)


@pytest.mark.skipif(PINNED is None or version("matplotlib") != PINNED[1], reason="another matplotlib draws other bytes")
@pytest.mark.parametrize("figure", FIGURES, ids=lambda path: str(path.relative_to(RESULTS)))
def test_a_stored_figure_is_drawn_from_its_stored_tables(figure: Path) -> None:
    datasets = datasets_of(figure)
    experiment = EXPERIMENTS[figure.stem]
    tables = {path.stem: read_table(path) for path in figure.parent.glob("*.csv")}
    drawn = (experiment.on(datasets) if datasets else experiment).draw(Findings([], tables))
    assert as_svg(drawn) == figure.read_text(encoding="utf-8")
