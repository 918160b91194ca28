"""The stored figures are those that the stored tables give: drawing has not changed since.

Processors differ in the last bit of a coordinate, and with it in the names that matplotlib derives from coordinates.
"""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

import pytest

from lab.studies.stored import RESULTS, stored_figures
from turnout.lab.studies.catalogue import EXPERIMENTS

pytest.importorskip("matplotlib")
ROOT = Path(__file__).parents[3]
FIGURES = stored_figures()
#: Figures of other datasets, worlds and studies, which are drawn in the same way as one of the others. The figures of
NAME = re.compile(r"\b[pmcC][0-9a-f]{10}\b|\bC\d+_\d+_[0-9a-f]{10}\b")
NUMBER = re.compile(r"-?\d+\.?\d*(?:e-?\d+)?")
PINNED = re.search(r"^matplotlib==(\S+)$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)


def test_every_experiment_has_a_stored_figure_that_is_drawn_from_stored_tables() -> None:
    assert set(EXPERIMENTS) <= {figure.stem for figure in FIGURES}
    assert set(RESULTS.rglob("*.svg")) == set(FIGURES)


@pytest.mark.parametrize("figure", sorted(RESULTS.rglob("*.svg")), ids=lambda path: str(path.relative_to(RESULTS)))
def test_a_stored_figure_has_a_title_and_a_description(figure: Path) -> None:
    head = figure.read_text(encoding="utf-8")[:20_000]
    assert re.search(r'<svg role="img" [^>]*>\s*<title>[^<]+</title>\s*<desc>[^<]+\.</desc>', head)


@pytest.mark.thorough
@pytest.mark.skipif(PINNED is None or version("matplotlib") != PINNED[1], reason="another matplotlib draws other bytes")
@pytest.mark.parametrize("figure", FIGURES, ids=lambda path: str(path.relative_to(RESULTS)))
def test_a_stored_figure_is_drawn_from_its_stored_tables(figure: Path) -> None:
    drawn, stored = FIGURES[figure](), figure.read_text(encoding="utf-8")
    assert text_of(drawn) == text_of(stored)
    assert numbers_of(drawn) == pytest.approx(numbers_of(stored), abs=1e-3)


def text_of(svg: str) -> str:
    """Returns the figure without its coordinates; derived names are replaced by their order."""
    names: dict[str, str] = {}
    renamed = NAME.sub(lambda name: names.setdefault(name[0], "name" + "+" * len(names)), svg)
    return NUMBER.sub("#", renamed)


def numbers_of(svg: str) -> list[float]:
    """Returns all numbers of the figure, in order."""
    return [float(number) for number in NUMBER.findall(NAME.sub("", svg))]


def test_figures_that_differ_are_not_equal() -> None:
    svg = '<path id="p0cc8c5d229" d="M 1.5 2"/><use href="#p0cc8c5d229"/><use href="#m0000000001" fill="#f0b429"/>'
    assert text_of(svg) == text_of(svg.replace("p0cc8c5d229", "p108c0b37a5").replace("1.5", "1.500001"))
    assert text_of(svg) != text_of(svg.replace("#p0cc8c5d229", "#m0000000001"))
    assert text_of(svg) != text_of(svg.replace("M", "L"))
    assert numbers_of(svg) != pytest.approx(numbers_of(svg.replace("1.5", "1.6")), abs=1e-3)
    assert numbers_of(svg)[:2] == [1.5, 2.0]
