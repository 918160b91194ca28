"""The two figures of the leaderboard: all measures in rows, and time against the largest shortfall."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from turnout.experiments.framework.drawing import figure
from turnout.experiments.framework.experiment import Table
from turnout.experiments.leaderboard.suites import Suite
from turnout.kernel.arrays import BoolArray, FloatArray
from turnout.kernel.certificate import DEFAULT_TOLERANCE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FAMILIES: Mapping[str, str] = {
    "FairPace": "#d55e00",
    "RBCS-F": "#0072b2",
    "with guarantee wrapper": "#009e73",
    "others": "#e69f00",
    "knows true times": "#cc79a7",
}
HEADINGS: Mapping[str, str] = {
    "mean_round": "mean round time, s",
    "minutes_to_target": "minutes to target",
    "final_accuracy": "final accuracy",
    "shortfall": "shortfall, turns",
    "shortfall_at_end": "… at the end",
    "least_share": "least share",
    "jain": "Jain index",
    "microseconds": "selection, µs *",
}
#: Ticks of shortfalls in turns, in a large and in a small panel; a surplus is negative.
TICKS = (0, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
FEW_TICKS = (-100, -10, -1, 0, 1, 10, 100, 1000)
#: Where the number of a point may be written, in points from it: the nearest places first.
OFFSETS = ((5, 4), (5, -11), (-14, 4), (-14, -11), (16, -4), (-25, -4), (16, 9), (-25, 9))


def draw_front(table: Table, measure: str, suite: Suite) -> Figure:
    """Draws time against the largest shortfall at any time; points are numbered like the rows of the table."""
    shortfall, time = _column(table, "shortfall"), _column(table, measure)
    # The time to a target that was never reached is unknown: there is no point to draw.
    shown = np.array([not never for never in table.get("never", np.zeros(len(time)))])  # type: ignore[union-attr]
    with figure(9.0, 5.2) as drawn:
        axes = drawn.subplots()
        for number in np.flatnonzero(shown).tolist():
            family, best = _family(table, number), _text(table, "front")[number] == "front"
            axes.errorbar(
                shortfall[number],
                time[number],
                xerr=_column(table, "shortfall_band")[number],
                yerr=_column(table, f"{measure}_band")[number],
                color=FAMILIES[family],
                marker="o" if family != "knows true times" else "D",
                markerfacecolor=FAMILIES[family] if best else "white",
                markersize=6,
                elinewidth=0.8,
            )
        axes.set_ylim(bottom=0)
        _scale_by_turns(axes, np.maximum(shortfall[shown], 0.0), TICKS)
        _write_numbers(axes, shortfall, time, shown)
        best = np.array([position == "front" for position in _text(table, "front")]) & shown
        order = np.flatnonzero(best)[np.argsort(shortfall[best])]
        # A step line, because nothing is known about trade-offs between two contenders.
        axes.step(shortfall[order], time[order], where="post", color="#444444", linewidth=1, linestyle="--", zorder=0)
        axes.axvline(DEFAULT_TOLERANCE, color="black", linestyle=":", linewidth=1)
        rounds = "its available rounds" if suite.share_of == "available" else "all rounds"
        axes.set(
            title=f"Pareto front (filled, dashed line): {suite.title}",
            xlabel=f"largest shortfall at any time, in turns behind {suite.rate:g} of {rounds} "
            f"(dotted: a tolerance of {DEFAULT_TOLERANCE:g})",
            ylabel=HEADINGS[measure],
        )
        _draw_legends(drawn, axes, table)
        return drawn


def draw_figures(table: Table, measure: str, suite: Suite) -> Figure:
    """Draws one row per contender and one panel per measure, with 95 % confidence intervals."""
    measures = [name for name in HEADINGS if name in table]
    labels = _text(table, "contender")
    heights = -np.arange(len(labels), dtype=np.float64)
    with figure(2.4 + 1.75 * len(measures), 1.2 + 0.24 * len(labels)) as drawn:
        panels = drawn.subplots(1, len(measures), squeeze=False, sharey=True)[0]
        for axes, name in zip(panels, measures, strict=True):
            for number, height in enumerate(heights.tolist()):
                family, best = _family(table, number), _text(table, "front")[number] == "front"
                axes.errorbar(
                    _column(table, name)[number],
                    height,
                    xerr=_column(table, f"{name}_band")[number],
                    color=FAMILIES[family],
                    marker="o" if family != "knows true times" else "D",
                    markerfacecolor=FAMILIES[family] if best else "white",
                    markersize=5,
                    elinewidth=1,
                )
            axes.set_title(HEADINGS[name], fontsize=10)
            if name.startswith("shortfall"):
                _scale_by_turns(axes, _column(table, name), FEW_TICKS)
            elif name != "final_accuracy":
                axes.set_xlim(left=0)
            axes.grid(axis="y", color="#eeeeee")
            axes.set_axisbelow(True)
        panels[0].set_yticks(heights, [f"{number + 1}  {label}" for number, label in enumerate(labels)], fontsize=9)
        note = f"Filled: on the Pareto front of {HEADINGS[measure]} and largest shortfall."
        if suite.trains:
            note += " Runs that never reach the target count with their whole time."
        if "microseconds" in table:
            note += " * depends on the machine"
        drawn.supxlabel(note, fontsize=9)
        return drawn


def _scale_by_turns(axes: Axes, shortfall: FloatArray, ticks: Sequence[float]) -> None:
    """Makes the x axis linear below one turn and logarithmic above; it begins at 0 unless there is a surplus."""
    axes.set_xscale("symlog", linthresh=1.0)
    low, high = 1.3 * min(float(shortfall.min()), 0.0), 1.3 * max(float(shortfall.max()), DEFAULT_TOLERANCE)
    axes.set_xlim(low, high)
    shown = [tick for tick in ticks if low <= tick <= high]
    axes.set_xticks(shown, [f"{tick:g}".replace("-", "−") for tick in shown])
    axes.set_xticks([], minor=True)


def _write_numbers(axes: Axes, x: FloatArray, y: FloatArray, shown: BoolArray) -> None:
    """Writes the number of each point beside it, where it does not overlap another number or point."""
    scaled = axes.xaxis.get_transform().transform(np.array([*x, axes.get_xlim()[1]]))
    points = np.column_stack([scaled[:-1] / scaled[-1], y / axes.get_ylim()[1]])
    written: list[tuple[float, float]] = []
    for number in np.flatnonzero(shown).tolist():
        others = [tuple(points[other].tolist()) for other in np.flatnonzero(shown).tolist() if other != number]
        # A number is anchored at its lower left corner.
        centres = [(points[number, 0] + 0.006 + dx / 430, points[number, 1] + 0.012 + dy / 300) for dx, dy in OFFSETS]
        free = [index for index, centre in enumerate(centres) if _is_free(centre, [*others, *written])]
        index = free[0] if free else 0
        written.append(centres[index])
        axes.annotate(
            str(number + 1), (x[number], y[number]), xytext=OFFSETS[index], textcoords="offset points", fontsize=8
        )


def _is_free(centre: tuple[float, float], taken: Sequence[tuple[float, float]]) -> bool:
    x, y = centre
    return all(abs(x - a) > 0.024 or abs(y - b) > 0.03 for a, b in taken)


def _draw_legends(drawn: Figure, axes: Axes, table: Table) -> None:
    """Draws a legend of the numbered contenders, coloured by family, and a legend of the families."""
    from matplotlib.lines import Line2D

    labels = _text(table, "contender")
    entries = [
        Line2D([], [], linestyle="", marker="", label=f"{number + 1}  {label}") for number, label in enumerate(labels)
    ]
    legend = drawn.legend(
        handles=entries, loc="outside right center", fontsize=8, handlelength=0, handletextpad=0, labelspacing=0.25
    )
    for number, text in enumerate(legend.get_texts()):
        text.set_color(FAMILIES[_family(table, number)])
    families = [name for name in FAMILIES if name in {_family(table, number) for number in range(len(labels))}]
    points = [
        Line2D(
            [], [], linestyle="", marker="D" if name == "knows true times" else "o", color=FAMILIES[name], label=name
        )
        for name in families
    ]
    axes.legend(handles=points, fontsize=8, loc="lower left")


def _family(table: Table, number: int) -> str:
    policy = _text(table, "policy")[number]
    if np.asarray(table["told_truth"])[number]:
        return "knows true times"
    families = {"fair-pace": "FairPace", "rbcsf": "RBCS-F", "with-guarantee": "with guarantee wrapper"}
    return families.get(policy, "others")


def _column(table: Table, name: str) -> FloatArray:
    return np.asarray(table[name], dtype=np.float64)


def _text(table: Table, name: str) -> list[str]:
    return [str(value) for value in np.asarray(table[name]).tolist()]
