"""The leaderboard's two pictures: everyone's figures in rows, and time against the least share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from turnout.experiments.framework.drawing import figure
from turnout.experiments.framework.experiment import Table
from turnout.experiments.leaderboard.suites import Suite
from turnout.kernel.arrays import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FAMILIES: Mapping[str, str] = {
    "RBCS-F": "#0072b2",
    "with a guarantee around": "#009e73",
    "others": "#e69f00",
    "told the truth": "#cc79a7",
}
HEADINGS: Mapping[str, str] = {
    "mean_round": "mean round, s",
    "minutes_to_target": "minutes to target",
    "final_accuracy": "final accuracy",
    "least_share": "least share",
    "jain": "Jain index",
    "microseconds": "choosing, µs *",
}


def draw_front(table: Table, measure: str, suite: Suite) -> Figure:
    """Time against the least-chosen client's share; the front is a line, numbers are those of the rows."""
    share, time = _column(table, "least_share"), _column(table, measure)
    # Who never came to the target took longer than the runs lasted: there is no point to draw.
    shown = np.array([not never for never in table.get("never", np.zeros(len(time)))])  # type: ignore[union-attr]
    with figure(9.0, 5.2) as drawn:
        axes = drawn.subplots()
        for number in np.flatnonzero(shown).tolist():
            family, best = _family(table, number), _text(table, "front")[number] == "front"
            axes.errorbar(
                share[number],
                time[number],
                xerr=_column(table, "least_share_band")[number],
                yerr=_column(table, f"{measure}_band")[number],
                color=FAMILIES[family],
                marker="o" if family != "told the truth" else "D",
                markerfacecolor=FAMILIES[family] if best else "white",
                markersize=6,
                elinewidth=0.8,
            )
        _numbers(axes, share, time, shown)
        best = np.array([place == "front" for place in _text(table, "front")]) & shown
        order = np.flatnonzero(best)[np.argsort(share[best])]
        # A step: what lies between two contenders nobody has shown.
        axes.step(share[order], time[order], where="pre", color="#444444", linewidth=1, linestyle="--", zorder=0)
        promised = [one for one in _column(table, "promised").tolist() if not np.isnan(one)]
        if promised:
            axes.axvline(promised[0], color="black", linestyle=":", linewidth=1)
        of = "the rounds it was available for" if suite.share_of == "available" else "all rounds"
        axes.set(
            title=f"Pareto front (filled, dashed line): {suite.title}",
            xlabel=f"share of {of} of the client chosen least (dotted: promised)",
            ylabel=HEADINGS[measure],
        )
        axes.set_ylim(bottom=0)
        _key(drawn, axes, table)
        return drawn


def draw_figures(table: Table, measure: str, suite: Suite) -> Figure:
    """A row a contender, a panel a figure, each with its 95 % confidence interval; those of the front are filled."""
    words = [word for word in HEADINGS if word in table]
    labels = _text(table, "contender")
    heights = -np.arange(len(labels), dtype=np.float64)
    with figure(2.4 + 1.75 * len(words), 1.2 + 0.24 * len(labels)) as drawn:
        panels = drawn.subplots(1, len(words), squeeze=False, sharey=True)[0]
        for axes, word in zip(panels, words, strict=True):
            for number, height in enumerate(heights.tolist()):
                family, best = _family(table, number), _text(table, "front")[number] == "front"
                axes.errorbar(
                    _column(table, word)[number],
                    height,
                    xerr=_column(table, f"{word}_band")[number],
                    color=FAMILIES[family],
                    marker="o" if family != "told the truth" else "D",
                    markerfacecolor=FAMILIES[family] if best else "white",
                    markersize=5,
                    elinewidth=1,
                )
            axes.set_title(HEADINGS[word], fontsize=10)
            if word != "final_accuracy":
                axes.set_xlim(left=0)
            axes.grid(axis="y", color="#eeeeee")
            axes.set_axisbelow(True)
        panels[0].set_yticks(heights, [f"{number + 1}  {label}" for number, label in enumerate(labels)], fontsize=9)
        note = f"Filled: on the Pareto front of {HEADINGS[measure]} and least share."
        if suite.trains:
            note += " Who never came to the target counts with its whole time."
        if "microseconds" in table:
            note += " * on the machine it was measured on"
        drawn.supxlabel(note, fontsize=9)
        return drawn


def _numbers(axes: Axes, share: FloatArray, time: FloatArray, shown: Any) -> None:
    """Each point's number, put aside where another is already written."""
    width, height = max(float(share[shown].max()), 1e-9), max(float(time[shown].max()), 1e-9)
    written: list[tuple[float, float]] = []
    for number in np.flatnonzero(shown).tolist():
        x, y = share[number] / width, time[number] / height
        steps = ((5, 4), (5, -11), (-14, 4), (-14, -11), (16, -4), (-25, -4), (16, 9), (-25, 9))
        step = next((one for one in steps if _free(x + one[0] / 480, y + one[1] / 290, written)), steps[0])
        written.append((x + step[0] / 480, y + step[1] / 290))
        axes.annotate(
            str(number + 1), (share[number], time[number]), xytext=step, textcoords="offset points", fontsize=8
        )


def _free(x: float, y: float, written: list[tuple[float, float]]) -> bool:
    return all(abs(x - a) > 0.024 or abs(y - b) > 0.03 for a, b in written)


def _key(drawn: Figure, axes: Axes, table: Table) -> None:
    """Who is which number, coloured by family."""
    from matplotlib.lines import Line2D

    labels = _text(table, "contender")
    entries = [
        Line2D([], [], linestyle="", marker="", label=f"{number + 1}  {label}") for number, label in enumerate(labels)
    ]
    listed = drawn.legend(
        handles=entries, loc="outside right center", fontsize=8, handlelength=0, handletextpad=0, labelspacing=0.25
    )
    for number, text in enumerate(listed.get_texts()):
        text.set_color(FAMILIES[_family(table, number)])
    families = [name for name in FAMILIES if name in {_family(table, number) for number in range(len(labels))}]
    points = [
        Line2D([], [], linestyle="", marker="D" if name == "told the truth" else "o", color=FAMILIES[name], label=name)
        for name in families
    ]
    axes.legend(handles=points, fontsize=8, loc="lower right")


def _family(table: Table, number: int) -> str:
    policy = _text(table, "policy")[number]
    if np.asarray(table["told_truth"])[number]:
        return "told the truth"
    return {"rbcsf": "RBCS-F", "with-guarantee": "with a guarantee around"}.get(policy, "others")


def _column(table: Table, word: str) -> FloatArray:
    return np.asarray(table[word], dtype=np.float64)


def _text(table: Table, word: str) -> list[str]:
    return [str(one) for one in np.asarray(table[word]).tolist()]
