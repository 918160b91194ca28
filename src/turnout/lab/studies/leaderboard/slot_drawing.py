"""The figure of the leaderboard without rounds: updates per second against the largest shortfall."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from turnout.lab.drawing.labels import write_labels
from turnout.lab.drawing.palette import policy_style
from turnout.lab.drawing.style import figure
from turnout.lab.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Ticks of shortfalls in turns.
TICKS = (0, 0.5, 1, 2, 5, 10, 20, 50, 100)


def draw_slots(table: Table, title: str) -> Figure:
    """Draws one labelled point for each contender; hollow points play rounds."""
    labels = [str(label) for label in np.asarray(table["contender"]).tolist()]
    shortfall = np.asarray(table["worst_shortfall"], dtype=np.float64)
    pace = np.asarray(table["updates_per_second"], dtype=np.float64)
    band = np.asarray(table["updates_per_second_band"], dtype=np.float64)
    in_rounds = np.asarray(table["in_rounds"], dtype=np.bool_)
    with figure(9.0, 5.2) as drawn:
        axes = drawn.subplots()
        for index, policy in enumerate(np.asarray(table["policy"]).tolist()):
            style = policy_style(str(policy))
            axes.errorbar(
                shortfall[index],
                pace[index],
                yerr=band[index],
                color=style.colour,
                marker=style.marker,
                markerfacecolor="white" if in_rounds[index] else style.colour,
                markersize=6,
                elinewidth=0.8,
            )
        axes.set_xscale("symlog", linthresh=1.0)
        axes.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
        axes.minorticks_off()
        axes.set_xlim(min(0.0, float(shortfall.min())), 2 * max(1.0, float(shortfall.max())))  # with room for labels
        axes.set_ylim(bottom=0)
        axes.axvline(1.0, color="black", linestyle=":", linewidth=1)
        axes.set(
            title=f"Updates per second without rounds (hollow: in rounds): {title}",
            xlabel="largest shortfall of any client at any time, in turns (dotted: one turn)",
            ylabel="updates per second",
        )
        write_labels(axes, shortfall, pace, labels)
        return drawn
