"""The two figures of the leaderboard: all measures in rows, and time against the largest shortfall."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from turnout.kernel.arrays import FloatArray
from turnout.kernel.certificate import DEFAULT_TOLERANCE
from turnout.lab.drawing.labels import write_labels
from turnout.lab.drawing.palette import Style, policy_style
from turnout.lab.drawing.style import figure
from turnout.lab.studies.leaderboard.suites import Suite
from turnout.lab.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
#: The unit of each measure.
UNITS: Mapping[str, str] = {
    "mean_round": "seconds",
    "minutes_to_target": "minutes",
    "final_accuracy": "from 0 to 1",
    "shortfall": "turns",
    "shortfall_at_end": "turns",
    "least_share": "from 0 to 1",
    "jain": "from 0 to 1",
    "microseconds": "microseconds",
}


def draw_front(table: Table, measure: str, suite: Suite) -> Figure:
    """Draws time against the largest shortfall at any time; points are numbered like the rows of the table."""
    shortfall, time = _column(table, "shortfall"), _column(table, measure)
    # The time to a target that was never reached is unknown: there is no point to draw.
    shown = np.array([not never for never in table.get("never", np.zeros(len(time)))])  # type: ignore[union-attr]
    with figure(9.0, 5.2) as drawn:
        axes = drawn.subplots()
        for number in np.flatnonzero(shown).tolist():
            style = _style(table, number)
            axes.errorbar(
                shortfall[number],
                time[number],
                xerr=_column(table, "shortfall_band")[number],
                yerr=_column(table, f"{measure}_band")[number],
                color=style.colour,
                marker=style.marker,
                markerfacecolor=_fill(table, number),
                markersize=6,
                elinewidth=0.8,
            )
        axes.set_ylim(bottom=0)
        _scale_by_turns(axes, np.maximum(shortfall[shown], 0.0), TICKS)
        best = np.array([position == "front" for position in _text(table, "front")]) & shown
        order = np.flatnonzero(best)[np.argsort(shortfall[best])]
        # A step line, because nothing is known about trade-offs between two contenders.
        axes.step(shortfall[order], time[order], where="post", color="#444444", linewidth=1, linestyle="--", zorder=0)
        axes.axvline(DEFAULT_TOLERANCE, color="black", linestyle=":", linewidth=1)
        rounds = "its available rounds" if suite.share_of == "available" else "all rounds"
        axes.set(
            title=f"Pareto front (filled, dashed line; purple: given the true times): {suite.title}",
            xlabel=f"largest shortfall at any time, in turns behind {suite.rate:g} of {rounds} "
            f"(dotted: a tolerance of {DEFAULT_TOLERANCE:g})",
            ylabel=HEADINGS[measure],
        )
        _draw_legend(drawn, table)
        numbers = [str(number + 1) for number in np.flatnonzero(shown)]
        write_labels(axes, shortfall[shown], time[shown], numbers)
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
                style = _style(table, number)
                axes.errorbar(
                    _column(table, name)[number],
                    height,
                    xerr=_column(table, f"{name}_band")[number],
                    color=style.colour,
                    marker=style.marker,
                    markerfacecolor=_fill(table, number),
                    markersize=5,
                    elinewidth=1,
                )
            axes.set_title(HEADINGS[name], fontsize=10)
            axes.set_xlabel(UNITS[name], fontsize=9)
            if name.startswith("shortfall"):
                _scale_by_turns(axes, _column(table, name), FEW_TICKS)
            elif name != "final_accuracy":
                axes.set_xlim(left=0)
            axes.grid(axis="y", color="#eeeeee")
            axes.set_axisbelow(True)
        panels[0].set_yticks(heights, [f"{number + 1}  {label}" for number, label in enumerate(labels)], fontsize=9)
        note = f"FillResult: on the Pareto front of {HEADINGS[measure]} and largest shortfall."
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


def _draw_legend(drawn: Figure, table: Table) -> None:
    """Draws a legend of the numbered contenders with their markers."""
    from matplotlib.lines import Line2D

    entries = []
    for number, label in enumerate(_text(table, "contender")):
        style = _style(table, number)
        entries.append(
            Line2D(
                [],
                [],
                linestyle="",
                marker=style.marker,
                markersize=5,
                color=style.colour,
                markerfacecolor=_fill(table, number),
                label=f"{number + 1}  {label}",
            )
        )
    drawn.legend(
        handles=entries, loc="outside right center", fontsize=8, handlelength=1, handletextpad=0.3, labelspacing=0.25
    )


def _style(table: Table, number: int) -> Style:
    true_times = bool(np.asarray(table["told_truth"])[number])
    return policy_style(_text(table, "policy")[number], true_times=true_times)


def _fill(table: Table, number: int) -> str:
    return _style(table, number).colour if _text(table, "front")[number] == "front" else "white"


def _column(table: Table, name: str) -> FloatArray:
    return np.asarray(table[name], dtype=np.float64)


def _text(table: Table, name: str) -> list[str]:
    return [str(value) for value in np.asarray(table[name]).tolist()]
