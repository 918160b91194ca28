"""The figure of tuning: round time against fairness, one point per value of the setting."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from turnout.lab.analysis.statistics import mean_confidence_interval
from turnout.lab.analysis.tuning import TuningResult
from turnout.lab.drawing.labels import write_labels
from turnout.lab.drawing.palette import GREEN, policy_style
from turnout.lab.drawing.style import figure, points

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The figure that shows what a shorter round costs, and its label: of a goal on fairness, or else of the setting.
FAIRNESS = {
    "tolerance": ("largest_shortfall", "largest shortfall of any client at any time, turns"),
    "shortfall_at_end": ("shortfall_at_end", "shortfall of the worst-served client at the end, turns"),
    "guaranteed_rate": ("least_share", "least share of any client, from 0 to 1"),
}


def draw_trade_off(result: TuningResult) -> Figure:
    """Draws round time against fairness, with the values of the setting at the points."""
    fairness, x_label = FAIRNESS.get(result.figure) or FAIRNESS[result.setting]
    time = "p95_round" if result.figure == "p95_round" else "mean_round"
    setting = result.setting.replace("_", " ")
    (x, x_error), (y, y_error) = (
        np.array([mean_confidence_interval(trial.values(name)) for trial in result.trials]).T
        for name in (fairness, time)
    )
    with figure(7.5, 4.6) as drawn:
        axes = drawn.subplots()
        style = replace(policy_style("fair-pace"), marker="o")
        points(axes, x, y, style, xerr=x_error, yerr=y_error, label="fair-pace, mean ± 95 % confidence")
        if result.answer is not None:
            at = [result.answer.values(name).mean() for name in (fairness, time)]
            meets = f"meets the goal: {setting} {result.answer.value:g}"
            axes.plot(*([value] for value in at), "*", markersize=10, color=GREEN, label=meets)
        line = axes.axvline if result.figure == fairness else axes.axhline
        line(result.most, color="black", linestyle=":", linewidth=1, label="goal")
        axes.set(
            title=f"Round time against fairness ({setting}s at the points)",
            xlabel=x_label,
            ylabel="95th percentile of round time, seconds" if time == "p95_round" else "mean round time, seconds",
        )
        axes.legend()
        write_labels(axes, x, y, [f"{trial.value:g}" for trial in result.trials])
        return drawn
