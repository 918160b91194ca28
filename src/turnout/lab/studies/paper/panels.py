"""Figures with one panel per dataset and gamma: their curves, tables and drawing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from turnout.kernel.arrays import FloatArray
from turnout.lab.analysis.statistics import UNIT_RANGE, Clock, LearningCurve, with_bands
from turnout.lab.columns import Table, as_columns
from turnout.lab.drawing.figures import mean_curves
from turnout.lab.drawing.palette import styles_of
from turnout.lab.drawing.style import Axes, Figure, curve, figure, legend_outside, set_ticks
from turnout.lab.studies.paper.learning_curves import final_accuracies, measure_curves, time_to_target

LOW, HIGH = 0.5, 0.9
LEVELS: Mapping[str, float] = {"low": LOW, "high": HIGH}
STEP_MINUTES = 0.25
MINUTES = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)
#: The y axis starts at the lowest value after this share of the x axis; the steep start would flatten everything else.
SHOWN_AFTER: Mapping[Clock, float] = {"rounds": 0.1, "minutes": 0.05}


@dataclass(frozen=True, slots=True)
class Panel:
    """A dataset, and how it is divided.

    `gamma` is the concentration of the class proportions (gamma_1): a number, or "iid". `by_class`: the speed of
    clients depends on the class of which they hold most items.
    """

    dataset: str
    gamma: float | str
    by_class: bool = False

    @property
    def name(self) -> str:
        """The label in tables."""
        return f"{self.dataset}, {self.split}"

    @property
    def split(self) -> str:
        """The label of the partition."""
        return self.column if self.gamma == "iid" else f"gamma {self.column}"

    @property
    def column(self) -> str:
        """The partition in the column `gamma` of tables."""
        gamma = self.gamma if self.gamma == "iid" else f"{self.gamma:g}"
        return f"{gamma}, speed by class" if self.by_class else str(gamma)

    @property
    def world_settings(self) -> dict[str, Any]:
        """The settings of the world "training"."""
        settings = {"dataset": self.dataset, "gamma": self.gamma}
        return {**settings, "by_class": True} if self.by_class else settings


#: The learning curves of each contender, one per seed.
Curves = Mapping[str, Sequence[LearningCurve]]


def target_of(curves: Curves, reference: str, share: float) -> float:
    """Returns a share of the mean final accuracy of the reference."""
    return share * float(final_accuracies(reference, curves[reference]).values.mean())


def curves_table(panels: Mapping[Panel, Curves], clock: Clock) -> Table:
    """Returns mean and half-width of every curve, up to the end of its shortest run."""
    times = _times([seeds for curves in panels.values() for seeds in curves.values()], clock)
    curves = {
        f"{panel.name}, {label}": np.array([run.at(times, clock) for run in seeds])
        for panel, by_label in panels.items()
        for label, seeds in by_label.items()
    }
    return {name: column.round(6) for name, column in mean_curves(curves, clock, at=times).items()}


def summary_table(panels: Mapping[Panel, Curves], reference: str, levels: Mapping[str, float] = LEVELS) -> Table:
    """Returns final accuracies, and rounds and minutes to targets.

    Args:
        panels: The curves of each panel.
        reference: The contender whose final accuracy determines the targets.
        levels: The name of each target, and its share of that accuracy.
    """
    rows = [_summary(panel, label, curves, reference, levels) for panel, curves in panels.items() for label in curves]
    return as_columns(rows)


def _times(contenders: Sequence[Sequence[LearningCurve]], clock: Clock) -> FloatArray:
    """Returns the measured rounds, or time steps up to the end of the contender that ran longest on all seeds."""
    if clock == "rounds":
        return np.unique(np.concatenate([run.rounds for seeds in contenders for run in seeds])).astype(np.float64)
    longest = max(min(run.duration for run in seeds) for seeds in contenders)
    return STEP_MINUTES * np.arange(1.0, max(int(longest / STEP_MINUTES), 1) + 1)


def _summary(panel: Panel, label: str, curves: Curves, reference: str, levels: Mapping[str, float]) -> dict[str, Any]:
    seeds = curves[label]
    row: dict[str, Any] = {"dataset": panel.dataset, "gamma": panel.column, "contender": label}
    row |= {"seeds": len(seeds), "rounds": seeds[0].length}
    groups = {
        "final_accuracy": final_accuracies(label, seeds),
        "jitter": measure_curves(label, seeds, lambda run: run.jitter),
    }
    groups["minutes"] = measure_curves(label, seeds, lambda run: run.duration)
    for level, share in levels.items():
        target = target_of(curves, reference, share)
        row[f"{level}_target"] = round(target, 6)
        row[f"never_at_{level}"] = sum(not run.reaches(target) for run in seeds)
        groups[f"rounds_to_{level}"] = time_to_target(label, seeds, target, "rounds")
        groups[f"minutes_to_{level}"] = time_to_target(label, seeds, target, "minutes")
    return row | with_bands({measure: group.values for measure, group in groups.items()}, digits=6)


def draw_panels(panels: Sequence[Panel], table: Table, labels: Sequence[str], clock: Clock) -> Figure:
    """Draws one row per dataset and one column per gamma, with a common legend."""
    datasets = list(dict.fromkeys(panel.dataset for panel in panels))
    splits = list(dict.fromkeys(panel.split for panel in panels))
    with figure(9.0, 1.0 + 2.6 * len(datasets)) as drawn:
        grid = drawn.subplots(len(datasets), len(splits), squeeze=False, sharex="row", sharey="row")
        for row, dataset in zip(grid, datasets, strict=True):
            for axes, split in zip(row, splits, strict=True):
                _draw_panel(axes, f"{dataset}, {split}", table, labels, clock)
                axes.set_title(split)
            row[0].set_ylabel(f"{dataset},\ntest accuracy, from 0 to 1")
            row[0].set_ylim(_limits(row, clock))
            if clock == "minutes":
                _use_log_time(row)
        for axes in grid[-1]:
            axes.set_xlabel("round" if clock == "rounds" else "simulated minutes")
        legend_outside(drawn, grid[0][0], columns=3 if len(labels) > 4 else len(labels))
        return drawn


def _draw_panel(axes: Axes, panel: str, table: Table, labels: Sequence[str], clock: Clock) -> None:
    times = np.asarray(table[clock])
    for label, style in styles_of(labels).items():
        mean, band = (np.asarray(table[f"{panel}, {label} {measure}"]) for measure in ("mean", "band"))
        x, y, half = (values[~np.isnan(mean)] for values in (times, mean, band))
        curve(axes, label, x, y, half, style=style, strong=False, limits=UNIT_RANGE, log=clock == "minutes")
    axes.margins(x=0.01)


def _use_log_time(row: Sequence[Axes]) -> None:
    """Uses a logarithmic time axis, because training times differ by orders of magnitude."""
    end = max((times[-1] for times, _ in _lines(row)), default=1.0)
    for axes in row:
        axes.set(xscale="log", xlim=(end / 100, end * 1.05))
        set_ticks(axes.xaxis, MINUTES, end / 100, end)


def _limits(row: Sequence[Axes], clock: Clock) -> tuple[float, float]:
    """Returns y limits from the lowest value after the steep start to slightly above the highest value."""
    lines = _lines(row)
    if not lines:
        return 0.0, 1.0
    start = SHOWN_AFTER[clock] * max(times[-1] for times, _ in lines)
    lowest = min(means[min(int(np.searchsorted(times, start)), len(means) - 1) :].min() for times, means in lines)
    highest = max(means.max() for _, means in lines)
    margin = 0.05 * (highest - lowest) + 1e-3
    return float(lowest - margin), float(highest + margin)


def _lines(row: Sequence[Axes]) -> list[tuple[FloatArray, FloatArray]]:
    """Returns times and means of all non-empty lines; a very short run leaves an empty line."""
    lines = [np.asarray(line.get_data()) for axes in row for line in axes.get_lines()]
    return [(times, means) for times, means in lines if len(times)]
