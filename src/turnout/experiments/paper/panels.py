"""Figures of several panels, one a dataset and a gamma: their curves, tables and drawing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from turnout.analysis.statistics import mean_confidence_interval
from turnout.experiments.framework.drawing import curve, figure
from turnout.experiments.framework.experiment import Table
from turnout.experiments.paper.learning_curves import Clock, LearningCurve, finals, measured, time_to
from turnout.kernel.arrays import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOW, HIGH = 0.5, 0.9
STEP_MINUTES = 0.25
#: The steep start would flatten all else: what the curves are after this share of the axis is the lowest shown.
SHOWN_AFTER: Mapping[Clock, float] = {"rounds": 0.1, "minutes": 0.05}


@dataclass(frozen=True, slots=True)
class Panel:
    """A dataset, and how unevenly its classes are held (gamma_1): a number, or "iid"."""

    dataset: str
    gamma: float | str

    @property
    def name(self) -> str:
        """What tables call it."""
        return f"{self.dataset}, {self.split}"

    @property
    def split(self) -> str:
        """How the classes are held, in words."""
        return "iid" if self.gamma == "iid" else f"gamma {self.gamma:g}"


#: By contender, one curve a seed.
PanelCurves = Mapping[str, Sequence[LearningCurve]]


def target_of(curves: PanelCurves, reference: str, share: float) -> float:
    """A share of the final accuracy that the reference has on the mean."""
    return share * float(finals(reference, curves[reference]).values.mean())


def curves_table(panels: Mapping[Panel, PanelCurves], clock: Clock) -> Table:
    """Mean and band of every curve, as far as all its seeds go."""
    times = _times([seeds for curves in panels.values() for seeds in curves.values()], clock)
    table: dict[str, FloatArray] = {clock: times}
    for panel, curves in panels.items():
        for label, seeds in curves.items():
            mean, band = mean_confidence_interval([one.at(times, clock) for one in seeds])
            table[f"{panel.name}, {label} mean"] = mean.round(6)
            table[f"{panel.name}, {label} band"] = band.round(6)
    return table


def summary_table(panels: Mapping[Panel, PanelCurves], reference: str) -> Table:
    """Final accuracies, and rounds and minutes to a low and a high share of the reference's."""
    rows = [_summary(panel, label, curves, reference) for panel, curves in panels.items() for label in curves]
    return {word: [row[word] for row in rows] for word in rows[0]}


def _times(contenders: Sequence[Sequence[LearningCurve]], clock: Clock) -> FloatArray:
    """The rounds that were measured, or steps of time as far as all seeds of a contender go."""
    if clock == "rounds":
        return np.unique(np.concatenate([one.rounds for seeds in contenders for one in seeds])).astype(np.float64)
    longest = max(min(one.duration for one in seeds) for seeds in contenders)
    return STEP_MINUTES * np.arange(1.0, max(int(longest / STEP_MINUTES), 1) + 1)


def _summary(panel: Panel, label: str, curves: PanelCurves, reference: str) -> dict[str, Any]:
    seeds = curves[label]
    row: dict[str, Any] = {"dataset": panel.dataset, "gamma": str(panel.gamma), "contender": label}
    row |= {"seeds": len(seeds), "rounds": seeds[0].length}
    groups = {"final_accuracy": finals(label, seeds), "jitter": measured(label, seeds, lambda one: one.jitter)}
    groups["minutes"] = measured(label, seeds, lambda one: one.duration)
    for word, share in (("low", LOW), ("high", HIGH)):
        target = target_of(curves, reference, share)
        row[f"{word}_target"] = round(target, 6)
        row[f"never_at_{word}"] = sum(not one.reaches(target) for one in seeds)
        groups[f"rounds_to_{word}"] = time_to(label, seeds, target, "rounds")
        groups[f"minutes_to_{word}"] = time_to(label, seeds, target, "minutes")
    for word, group in groups.items():
        mean, band = mean_confidence_interval(group.values)
        row[word], row[f"{word}_band"] = round(float(mean), 6), round(float(band), 6)
    return row


def draw_panels(panels: Sequence[Panel], table: Table, labels: Sequence[str], clock: Clock) -> Figure:
    """A row a dataset, a column a gamma, and one legend for all."""
    datasets = list(dict.fromkeys(panel.dataset for panel in panels))
    splits = list(dict.fromkeys(panel.split for panel in panels))
    with figure(9.0, 0.7 + 2.5 * len(datasets)) as drawn:
        grid = drawn.subplots(len(datasets), len(splits), squeeze=False, sharex="row", sharey="row")
        for row, dataset in zip(grid, datasets, strict=True):
            for axes, split in zip(row, splits, strict=True):
                _draw_panel(axes, f"{dataset}, {split}", table, labels, clock)
                axes.set_title(split)
            row[0].set_ylabel(f"{dataset}, test accuracy")
            row[0].set_ylim(_limits(row, clock))
            if clock == "minutes":
                _logarithmic(row)
        for axes in grid[-1]:
            axes.set_xlabel("round" if clock == "rounds" else "simulated minutes")
        drawn.legend(
            *grid[0][0].get_legend_handles_labels(),
            loc="outside lower center",
            ncols=len(labels),
            fontsize=9,
            handlelength=1.4,
            columnspacing=1.4,
        )
        return drawn


def _draw_panel(axes: Axes, panel: str, table: Table, labels: Sequence[str], clock: Clock) -> None:
    times = np.asarray(table[clock])
    for label in labels:
        mean, band = (np.asarray(table[f"{panel}, {label} {word}"]) for word in ("mean", "band"))
        known = ~np.isnan(mean)
        curve(axes, label, times[known], mean[known], band[known], strong=False)
    axes.margins(x=0.01)


def _logarithmic(row: Sequence[Axes]) -> None:
    """Time in decades: the fastest are done before the slowest have well begun."""
    end = max((times[-1] for times, _ in _lines(row)), default=1.0)
    ticks = [one for one in (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500) if end / 100 <= one <= end]
    for axes in row:
        axes.set(xscale="log", xlim=(end / 100, end * 1.05))
        axes.set_xticks(ticks, [f"{one:g}" for one in ticks])
        axes.minorticks_off()


def _limits(row: Sequence[Axes], clock: Clock) -> tuple[float, float]:
    """From what the slowest line is after the steep start to a little above the highest."""
    lines = _lines(row)
    if not lines:
        return 0.0, 1.0
    start = SHOWN_AFTER[clock] * max(times[-1] for times, _ in lines)
    lowest = min(means[min(int(np.searchsorted(times, start)), len(means) - 1) :].min() for times, means in lines)
    highest = max(means.max() for _, means in lines)
    room = 0.05 * (highest - lowest) + 1e-3
    return float(lowest - room), float(highest + room)


def _lines(row: Sequence[Axes]) -> list[tuple[FloatArray, FloatArray]]:
    """Times and means of what is drawn; a run that is over at once leaves no line."""
    every = [np.asarray(line.get_data()) for axes in row for line in axes.get_lines()]
    return [(times, means) for times, means in every if len(times)]
