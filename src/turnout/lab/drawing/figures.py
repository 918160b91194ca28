"""Figures of commands: comparisons of any policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from turnout.kernel.arrays import FloatArray
from turnout.lab.analysis.statistics import UNIT_RANGE, LearningCurve, mean_confidence_interval
from turnout.lab.columns import RoundColumns, Table
from turnout.lab.drawing.palette import styles_of
from turnout.lab.drawing.style import Axes, Figure, curve, figure, legend_outside, note

#: The number of points in time at which accuracies are drawn.
POINTS = 200


def overview_tables(runs: Mapping[str, Sequence[RoundColumns]]) -> tuple[Table, Table]:
    """Returns training time in minutes by round, and sorted shares of rounds.

    `runs` holds one run per seed of each contender.
    """
    elapsed = {label: np.stack([np.cumsum(run.durations) for run in seeds]) for label, seeds in runs.items()}
    shares = {label: np.stack([np.sort(run.turns) / len(run.rounds) for run in seeds]) for label, seeds in runs.items()}
    return mean_curves(elapsed, scale=1 / 60), mean_curves(shares, "client")


def draw_overview(labels: Sequence[str], times: Table, shares: Table, promised: float) -> Figure:
    """Draws training time by round, and the share of rounds of each client."""
    with figure(9.0, 4.4) as drawn:
        time, share = drawn.subplots(1, 2)
        draw_curves(time, times, labels)
        draw_curves(share, shares, labels, "client")
        time.set_ylim(bottom=0)
        share.set_ylim(bottom=0)
        share.axhline(promised, color="black", linestyle=":", linewidth=1)
        last = float(np.asarray(shares["client"])[-1])
        note(share, "promised", (last, promised), (0, -12), ha="right")
        time.set(title="Training time", xlabel="round", ylabel="training time, minutes")
        share.set(title="Share of rounds of each client", xlabel="clients, in order of their turns")
        share.set_ylabel("share of rounds, from 0 to 1")
        legend_outside(drawn, time, columns=min(len(labels), 3))
        return drawn


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
        axes.set(title="Promised turns minus turns of the client furthest behind, worst seed", xlabel=clock)
        axes.set_ylabel("turns behind")
        _finish(axes, "tolerance", shared.pop() if len(shared) == 1 else None)
        return drawn


def accuracy_table(curves: Mapping[str, Sequence[LearningCurve]]) -> Table:
    """Returns the mean accuracy over the seeds by minutes, and half the width of its confidence interval.

    A contender has no value before all its seeds were measured, and after the first of them has ended.
    """
    longest = max(min(curve.duration for curve in seeds) for seeds in curves.values())
    minutes = np.linspace(0.0, longest, POINTS)
    accuracies = {label: np.stack([seed.at(minutes, "minutes") for seed in seeds]) for label, seeds in curves.items()}
    return mean_curves(accuracies, "minutes", at=minutes)


def draw_accuracy(labels: Sequence[str], table: Table, target: float | None) -> Figure:
    """Draws the mean accuracy by time."""
    with figure() as drawn:
        axes = drawn.subplots()
        draw_curves(axes, table, labels, "minutes", UNIT_RANGE)
        axes.set(title="Test accuracy, mean over seeds", xlabel="simulated minutes", ylabel="accuracy")
        _finish(axes, "target", target)
        return drawn


def draw_lines(table: Table, labels: Sequence[str], title: str, unit: str) -> Figure:
    """Draws the curves of a table that `mean_curves` returned, by round and from 0, with a legend beside them."""
    with figure() as drawn:
        axes = drawn.subplots()
        draw_curves(axes, table, labels)
        axes.set_ylim(bottom=0)
        axes.set(title=title, xlabel="round", ylabel=unit)
        legend_outside(drawn, axes)
        return drawn


def mean_curves(
    curves: Mapping[str, FloatArray], x: str = "round", *, at: FloatArray | None = None, scale: float = 1.0
) -> dict[str, FloatArray]:
    """Returns the mean of curves over seeds, and half the width of its confidence interval, by label.

    Args:
        curves: The curves of each contender, one row per seed.
        x: The name of the first column.
        at: Its values; by default they count from 1.
        scale: The factor on all values.
    """
    table = {x: np.arange(1.0, next(iter(curves.values())).shape[1] + 1) if at is None else at}
    for label, rows in curves.items():
        table[f"{label} mean"], table[f"{label} band"] = mean_confidence_interval(rows * scale)
    return table


def draw_curves(
    axes: Axes, table: Table, labels: Sequence[str], x: str = "round", limits: tuple[float, float] = (0.0, np.inf)
) -> None:
    """Draws the curves of a table that `mean_curves` returned; by default they are never negative."""
    for label, style in styles_of(labels).items():
        mean, band = (np.asarray(table[f"{label} {measure}"]) for measure in ("mean", "band"))
        curve(axes, label, np.asarray(table[x]), mean, band, style=style, limits=limits)
    axes.margins(x=0.01)


def _finish(axes: Axes, name: str, value: float | None) -> None:
    """Adds a dotted line, if there is one to draw, and the legend."""
    if value is not None:
        axes.axhline(value, color="black", linestyle=":", linewidth=1, label=name)
    axes.margins(x=0.01)
    axes.legend()
