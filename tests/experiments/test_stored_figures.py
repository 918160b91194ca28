"""The stored figures are those that the stored tables give, to the byte: drawing has not changed since."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

import pytest

from experiments.stored import RESULTS, stored_figures
from turnout.experiments.catalogue import EXPERIMENTS

pytest.importorskip("matplotlib")
ROOT = Path(__file__).parents[2]
FIGURES = stored_figures()
#: Other worlds of the leaderboards, whose figures are drawn in the same way.
SIMILAR = ("numerical-3000", "traces-recorded", "digits/slots", "cifar-10/slots", "paper/slots", "phones-recorded")
PINNED = re.search(r"^matplotlib==(\S+)$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)


def test_every_experiment_has_a_stored_figure() -> None:
    assert set(EXPERIMENTS) <= {figure.stem for figure in FIGURES}


def test_every_stored_figure_is_drawn_from_stored_tables_except_that_of_tuning() -> None:
    assert set(RESULTS.rglob("*.svg")) - set(FIGURES) == {RESULTS / "tuning" / "trade-off.svg"}


@pytest.mark.parametrize("figure", sorted(RESULTS.rglob("*.svg")), ids=lambda path: str(path.relative_to(RESULTS)))
def test_a_stored_figure_has_a_title_and_a_description(figure: Path) -> None:
    head = figure.read_text(encoding="utf-8")[:20_000]
    assert re.search(r'<svg role="img" [^>]*>\s*<title>[^<]+</title>\s*<desc>[^<]+\.</desc>', head)


@pytest.mark.skipif(PINNED is None or version("matplotlib") != PINNED[1], reason="another matplotlib draws other bytes")
@pytest.mark.parametrize(
    "figure",
    [figure for figure in FIGURES if not any(name in str(figure) for name in SIMILAR)],
    ids=lambda path: str(path.relative_to(RESULTS)),
)
def test_a_stored_figure_is_drawn_from_its_stored_tables(figure: Path) -> None:
    assert FIGURES[figure]() == figure.read_text(encoding="utf-8")
