"""Bands, markers, descriptions and thinned curves of figures."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest

from turnout.errors import SettingError
from turnout.lab.drawing.palette import OTHERS
from turnout.lab.drawing.style import MARKERS, as_svg, curve, figure, save, save_as, thin_curve

pytest.importorskip("matplotlib")


def test_the_band_of_a_curve_does_not_leave_the_possible_values() -> None:
    with figure() as drawn:
        axes = drawn.subplots()
        mean, band = np.array([0.1, 0.95]), np.array([0.2, 0.1])
        curve(axes, "mine", np.arange(2.0), mean, band, style=OTHERS[0], limits=(0.0, 1.0))
        (line,), (filled,) = axes.get_lines(), axes.collections
    assert np.asarray(line.get_ydata()).tolist() == [0.1, 0.95]
    assert (line.get_color(), line.get_marker()) == (OTHERS[0].colour, OTHERS[0].marker)
    heights = np.asarray(filled.get_paths()[0].vertices)[:, 1]
    assert heights.min() == 0.0
    assert heights.max() == 1.0
    assert {0.85, 0.3} <= {round(float(height), 6) for height in heights}


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("length", [0, 1, 3, 500])
def test_a_line_of_any_length_has_a_few_markers(length: int, log: bool) -> None:
    with figure() as drawn:
        axes = drawn.subplots()
        x = np.arange(1.0, length + 1)
        curve(axes, "mine", x, x, style=OTHERS[0], log=log)
        marked = axes.get_lines()[0].get_markevery()
    assert isinstance(marked, list)
    assert len(marked) <= MARKERS
    assert bool(marked) == bool(length)
    assert all(0 <= index < length for index in marked)


def test_a_written_figure_says_what_it_shows() -> None:
    with figure() as drawn:
        left, right = drawn.subplots(1, 2, sharey=True)
        curve(left, "quick & <fair>", np.arange(3.0), np.array([3.0, 2.0, 1.5]), style=OTHERS[0])
        right.errorbar([2.0], [4.0], yerr=[1.0], label="random")
        left.set(title="Time", xlabel="round", ylabel="seconds")
        right.set(title="Points", xlabel="turns")
    page = ElementTree.fromstring(as_svg(drawn))
    names = [child.tag.rpartition("}")[2] for child in page]
    assert names[:2] == ["title", "desc"]
    assert page[0].text == "Time; Points"
    assert page[1].text == (
        "Time: seconds against round: quick & <fair> ends at 1.5. Points: seconds against turns: random at (2, 4)."
    )
    assert page.get("role") == "img"


def test_a_thinned_curve_keeps_the_first_and_the_last_round() -> None:
    values = np.arange(1.0, 10_001.0)
    rounds, kept = thin_curve(values, most=50)
    assert len(rounds) <= 50
    assert (rounds[0], rounds[-1]) == (1.0, 10_000.0)
    assert (kept == rounds).all()
    ratios = rounds[20:] / rounds[19:-1]
    assert ratios.max() < 1.4
    short, same = thin_curve(values[:5])
    assert short.tolist() == same.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with figure() as drawn:
        drawn.subplots().plot([1, 2])
        assert [path.name for path in save(drawn, tmp_path / "new", "times")] == ["times.svg", "times.png"]
        with pytest.raises(SettingError, match=r"cannot write figures into .*file/below: Not a directory"):
            save(drawn, tmp_path / "file" / "below", "times")


def test_a_legend_that_takes_long_on_a_busy_machine_is_no_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("matplotlib.legend.time", SimpleNamespace(perf_counter=itertools.count(0, 5).__next__))
    with figure() as drawn:
        axes = drawn.subplots()
        axes.plot([1, 2], label="a")
        axes.legend()
        with pytest.warns(UserWarning, match="can be slow"):
            drawn.draw_without_rendering()
        for write in (
            lambda: as_svg(drawn),
            lambda: save(drawn, tmp_path, "a"),
            lambda: save_as(drawn, tmp_path / "b.png"),
        ):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                write()
            assert caught == []
