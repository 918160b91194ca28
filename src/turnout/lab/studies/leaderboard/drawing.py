"""The figures of a leaderboard: all measures in rows, and speed against the largest shortfall."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from turnout.kernel.arrays import BoolArray, FloatArray
from turnout.kernel.certificate import DEFAULT_TOLERANCE
from turnout.lab.columns import Table
from turnout.lab.drawing.palette import Style, policy_style
from turnout.lab.drawing.style import Axes, Figure, figure, points, set_ticks, write_labels
from turnout.lab.studies.leaderboard.suites import Suite

#: The heading and the unit of each measure.
HEADINGS: Mapping[str, tuple[str, str]] = {
    "mean_round": ("mean round time, s", "seconds"),
    "minutes_to_target": ("minutes to target", "minutes"),
    "final_accuracy": ("final accuracy", "from 0 to 1"),
    "shortfall": ("shortfall, turns", "turns"),
    "shortfall_at_end": ("… at the end", "turns"),
    "least_share": ("least share", "from 0 to 1"),
    "jain": ("Jain index", "from 0 to 1"),
    "microseconds": ("selection, µs *", "microseconds"),
}
#: Ticks of shortfalls in turns, in a large and in a small panel; a surplus is negative.
TICKS = (0, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
FEW_TICKS = (-100, -10, -1, 0, 1, 10, 100, 1000)


def draw_board(suite: Suite, table: Table) -> dict[str, Figure]:
    """Draws the figures of a leaderboard, by name: with rounds the Pareto front and all measures, else one figure."""
    if suite.slots is not None:
        return {"slots": _draw_slots(suite, table)}
    return {"front": _draw_front(suite, table), "leaderboard": _draw_measures(suite, table)}


def _draw_front(suite: Suite, table: Table) -> Figure:
    """Draws time against the largest shortfall at any time; points are numbered like the rows of the table."""
    shortfall, time = _column(table, "shortfall"), _column(table, suite.measure)
    bands = _column(table, "shortfall_band"), _column(table, f"{suite.measure}_band")
    # The time to a target that was never reached is unknown: there is no point to draw.
    shown = np.array([not never for never in table.get("never", np.zeros(len(time)))])  # type: ignore[union-attr]
    front = _front(table)
    with figure(9.0, max(5.2, 0.15 * len(time))) as drawn:  # the legend stays below the title
        axes = drawn.subplots()
        for number, style in _styles(table):
            if shown[number]:
                error = {"xerr": bands[0][number], "yerr": bands[1][number]}
                points(axes, shortfall[number], time[number], style, filled=front[number], markersize=6, **error)
        axes.set_ylim(bottom=0)
        _scale_by_turns(axes, np.maximum(shortfall[shown], 0.0), TICKS)
        best = front & shown
        order = np.flatnonzero(best)[np.argsort(shortfall[best])]
        # A step line, because nothing is known about trade-offs between two contenders.
        axes.step(shortfall[order], time[order], where="post", color="#444444", linewidth=1, linestyle="--", zorder=0)
        axes.axvline(DEFAULT_TOLERANCE, color="black", linestyle=":", linewidth=1)
        rounds = "its available rounds" if suite.share_of == "available" else "all rounds"
        axes.set(
            title=f"Pareto front (filled, dashed line; purple: given the true times): {suite.title}",
            xlabel=f"largest shortfall at any time, in turns behind {suite.rate:g} of {rounds} "
            f"(dotted: a tolerance of {DEFAULT_TOLERANCE:g})",
            ylabel=HEADINGS[suite.measure][0],
        )
        _draw_legend(drawn, table)
        numbers = [str(number + 1) for number in np.flatnonzero(shown)]
        write_labels(axes, shortfall[shown], time[shown], numbers)
        return drawn


def _draw_slots(suite: Suite, table: Table) -> Figure:
    """Draws updates per second against the largest shortfall; hollow points play rounds."""
    shortfall, pace = _column(table, "worst_shortfall"), _column(table, suite.measure)
    band, in_rounds = _column(table, f"{suite.measure}_band"), np.asarray(table["in_rounds"], dtype=np.bool_)
    with figure(9.0, 5.2) as drawn:
        axes = drawn.subplots()
        for number, style in _styles(table):
            filled = not in_rounds[number]
            points(axes, shortfall[number], pace[number], style, filled=filled, yerr=band[number], markersize=6)
        _scale_by_turns(axes, shortfall, TICKS, room=2.0)
        axes.set_ylim(bottom=0)
        axes.axvline(1.0, color="black", linestyle=":", linewidth=1)
        axes.set(
            title=f"Updates per second without rounds (hollow: in rounds): {suite.title}",
            xlabel="largest shortfall of any client at any time, in turns (dotted: one turn)",
            ylabel="updates per second",
        )
        write_labels(axes, shortfall, pace, _text(table, "contender"))
        return drawn


def _draw_measures(suite: Suite, table: Table) -> Figure:
    """Draws one row per contender and one panel per measure, with 95 % confidence intervals."""
    measures = [name for name in HEADINGS if name in table]
    labels, front = _text(table, "contender"), _front(table)
    heights = -np.arange(len(labels), dtype=np.float64)
    with figure(2.4 + 1.75 * len(measures), 1.2 + 0.24 * len(labels)) as drawn:
        panels = drawn.subplots(1, len(measures), squeeze=False, sharey=True)[0]
        for axes, name in zip(panels, measures, strict=True):
            means, bands = _column(table, name), _column(table, f"{name}_band")
            for number, style in _styles(table):
                mean, band, filled = means[number], bands[number], bool(front[number])
                points(axes, mean, heights[number], style, filled=filled, xerr=band, markersize=5, elinewidth=1)
            heading, unit = HEADINGS[name]
            axes.set_title(heading, fontsize=10)
            axes.set_xlabel(unit, fontsize=9)
            if name.startswith("shortfall"):
                _scale_by_turns(axes, means, FEW_TICKS)
            elif name != "final_accuracy":
                axes.set_xlim(left=0)
            axes.grid(axis="y", color="#eeeeee")
            axes.set_axisbelow(True)
        panels[0].set_yticks(heights, [f"{number + 1}  {label}" for number, label in enumerate(labels)], fontsize=9)
        note = f"Filled: on the Pareto front of {HEADINGS[suite.measure][0]} and largest shortfall."
        if suite.trains:
            note += " Runs that never reach the target count with their whole time."
        if "microseconds" in table:
            note += " * depends on the machine"
        drawn.supxlabel(note, fontsize=9)
        return drawn


def _scale_by_turns(axes: Axes, shortfall: FloatArray, ticks: Sequence[float], room: float = 1.3) -> None:
    """Makes the x axis linear below one turn and logarithmic above; it begins at 0 unless there is a surplus.

    Args:
        axes: The axes.
        shortfall: The shortfalls of all points, in turns.
        ticks: The ticks to choose from.
        room: The factor between the largest shortfall, or the tolerance, and the end of the axis.
    """
    axes.set_xscale("symlog", linthresh=1.0)
    low, high = room * min(float(shortfall.min()), 0.0), room * max(float(shortfall.max()), DEFAULT_TOLERANCE)
    axes.set_xlim(low, high)
    set_ticks(axes.xaxis, ticks, low, high)


def _draw_legend(drawn: Figure, table: Table) -> None:
    """Draws a legend of the numbered contenders with their markers."""
    from matplotlib.lines import Line2D

    labels, front, entries = _text(table, "contender"), _front(table), []
    for number, style in _styles(table):
        entry = Line2D([], [], linestyle="", marker=style.marker, markersize=5, color=style.colour)
        entry.set(label=f"{number + 1}  {labels[number]}", markerfacecolor=style.colour if front[number] else "white")
        entries.append(entry)
    drawn.legend(
        handles=entries, loc="outside right center", fontsize=8, handlelength=1, handletextpad=0.3, labelspacing=0.25
    )


def _styles(table: Table) -> Iterator[tuple[int, Style]]:
    """Yields the number of each row with the style of its policy."""
    true_times = np.asarray(table.get("told_truth", np.zeros(len(_text(table, "policy")))), dtype=np.bool_)
    for number, policy in enumerate(_text(table, "policy")):
        yield number, policy_style(policy, true_times=bool(true_times[number]))


def _front(table: Table) -> BoolArray:
    return np.array([position == "front" for position in _text(table, "front")])


def _column(table: Table, name: str) -> FloatArray:
    return np.asarray(table[name], dtype=np.float64)


def _text(table: Table, name: str) -> list[str]:
    return [str(value) for value in np.asarray(table[name]).tolist()]
