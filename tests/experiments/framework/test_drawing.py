"""Colours, bands and thinned curves of figures."""

from __future__ import annotations

import numpy as np
import pytest

from turnout.experiments.framework.drawing import COLOURS, OTHERS, colour_of, curve, figure, thin_curve

pytest.importorskip("matplotlib")


def test_a_contender_has_the_same_colour_everywhere_and_others_one_by_index() -> None:
    assert colour_of("random", 3) == colour_of("random") == COLOURS["random"]
    assert colour_of("mine") == OTHERS[0]
    assert [colour_of("mine", index) for index in range(len(OTHERS) + 1)] == [*OTHERS, OTHERS[0]]
    assert len(set(COLOURS.values())) == len(COLOURS)


def test_the_band_of_a_curve_does_not_leave_the_possible_values() -> None:
    with figure() as drawn:
        axes = drawn.subplots()
        curve(axes, "mine", np.arange(2.0), np.array([0.1, 0.95]), np.array([0.2, 0.1]), limits=(0.0, 1.0))
        (line,), (band,) = axes.get_lines(), axes.collections
    assert np.asarray(line.get_ydata()).tolist() == [0.1, 0.95]
    assert line.get_color() == OTHERS[0]
    heights = np.asarray(band.get_paths()[0].vertices)[:, 1]
    assert heights.min() == 0.0
    assert heights.max() == 1.0
    assert {0.85, 0.3} <= {round(float(height), 6) for height in heights}


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
