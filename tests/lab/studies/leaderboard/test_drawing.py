"""The axes of the leaderboard's figures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from turnout.lab.drawing.style import figure
from turnout.lab.studies.leaderboard.drawing import FEW_TICKS, HEADINGS, _scale_by_turns, draw_board
from turnout.lab.studies.leaderboard.suites import SUITES


@pytest.mark.parametrize(
    ("shortfalls", "limits"), [([0.5, 1.0], (0.0, 2.6)), ([-10.0, 20.0], (-13.0, 26.0)), ([3.0], (0.0, 3.9))]
)
def test_the_axis_of_shortfalls_has_room_for_all_and_for_the_tolerance(
    shortfalls: list[float], limits: tuple[float, float]
) -> None:
    with figure(3.0, 3.0) as drawn:
        axes = drawn.subplots()
        _scale_by_turns(axes, np.array(shortfalls), FEW_TICKS)
        assert axes.get_xlim() == pytest.approx(limits)
        assert axes.get_xticks().tolist() == [tick for tick in FEW_TICKS if limits[0] <= tick <= limits[1]]


def test_axes_begin_at_0_except_those_of_accuracies() -> None:
    measures = ["minutes_to_target", "final_accuracy", "shortfall", "least_share"]
    table: Any = {
        "contender": ["a", "b"],
        "told_truth": [False, False],
        "policy": ["random", "oort"],
        "front": ["front", "behind"],
    }
    for measure in measures:
        table |= {measure: [0.9, 0.95], f"{measure}_band": [0.01, 0.01]}
    drawn = draw_board(SUITES["training"], table)["leaderboard"]
    begins = {axes.get_title(loc="left"): axes.get_xlim()[0] for axes in drawn.axes}
    assert {name for name, left in begins.items() if left == 0.0} == {
        HEADINGS[measure][0] for measure in measures if measure != "final_accuracy"
    }
    assert begins["final accuracy"] > 0.8
