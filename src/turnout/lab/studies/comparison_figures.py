"""Figures of a comparison of any policies: how far clients fell behind, and accuracy by time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from turnout.kernel.arrays import FloatArray
from turnout.lab.analysis.statistics import UNIT_RANGE, mean_confidence_interval
from turnout.lab.studies.framework.drawing import curve, figure
from turnout.lab.studies.framework.experiment import Table
from turnout.lab.studies.framework.palette import styles_of
from turnout.lab.studies.paper.learning_curves import LearningCurve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The number of points in time at which accuracies are drawn.
POINTS = 200


def behind_table(behind: Mapping[str, Sequence[FloatArray]]) -> Table:
    """Returns the turns that any client is behind after each round, in the worst seed of each contender."""
    rounds = min(len(seed) for seeds in behind.values() for seed in seeds)
    worst = {label: np.max([seed[:rounds] for seed in seeds], axis=0) for label, seeds in behind.items()}
    return {"round": np.arange(1.0, rounds + 1), **worst}


def draw_behind(table: Table, tolerances: Mapping[str, float], clock: str) -> Figure:
    """Draws how far any client is behind by round; a dotted line is a tolerance that all contenders share."""
    with figure() as drawn:
        axes = drawn.subplots()
        for label, style in styles_of(tolerances).items():
            curve(axes, label, np.asarray(table["round"]), np.asarray(table[label]), style=style)
        shared = set(tolerances.values())
        if len(shared) == 1:
            axes.axhline(shared.pop(), color="black", linestyle=":", linewidth=1, label="tolerance")
        axes.set(
            title="Promised turns minus turns of the client furthest behind, worst seed",
            xlabel=clock,
            ylabel="turns behind",
        )
        axes.margins(x=0.01)
        axes.legend()
        return drawn


def accuracy_table(curves: Mapping[str, Sequence[LearningCurve]]) -> Table:
    """Returns the mean accuracy over the seeds by minutes, and half the width of its confidence interval.

    A contender has no value before all its seeds were measured, and after the first of them has ended.
    """
    longest = max(min(curve.duration for curve in seeds) for seeds in curves.values())
    minutes = np.linspace(0.0, longest, POINTS)
    table: dict[str, FloatArray] = {"minutes": minutes}
    for label, seeds in curves.items():
        mean, band = mean_confidence_interval(np.stack([seed.at(minutes, "minutes") for seed in seeds]))
        table[f"{label} mean"], table[f"{label} band"] = np.asarray(mean), np.asarray(band)
    return table


def draw_accuracy(labels: Sequence[str], table: Table, target: float | None) -> Figure:
    """Draws the mean accuracy by time."""
    with figure() as drawn:
        axes = drawn.subplots()
        for label, style in styles_of(labels).items():
            mean, band = np.asarray(table[f"{label} mean"]), np.asarray(table[f"{label} band"])
            curve(axes, label, np.asarray(table["minutes"]), mean, np.nan_to_num(band), style=style, limits=UNIT_RANGE)
        if target is not None:
            axes.axhline(target, color="black", linestyle=":", linewidth=1, label="target")
        axes.set(title="Test accuracy, mean over seeds", xlabel="simulated minutes", ylabel="accuracy")
        axes.margins(x=0.01)
        axes.legend()
        return drawn
