"""The comparison of the demo: FairPace and the paper's contenders, by round time and by the promise to each client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from turnout.kernel.arrays import FloatArray
from turnout.kernel.certificate import DEFAULT_TOLERANCE
from turnout.kernel.guarantee import Guarantee
from turnout.lab.analysis.promise import shortfalls
from turnout.lab.analysis.tracked import turns_behind
from turnout.lab.columns import RoundColumns
from turnout.lab.drawing.labels import write_labels
from turnout.lab.drawing.palette import styles_of
from turnout.lab.drawing.style import MARKER_SIZE, curve, figure, legend_outside, note, set_ticks
from turnout.lab.studies.framework.claims import Claim, Group, ascending, below
from turnout.lab.studies.framework.experiment import Contenders, Experiment, Findings, Runs
from turnout.lab.studies.paper.comparison import CONTENDERS, RATE, weight_label
from turnout.lab.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FAIR_PACE = f"FairPace, tolerance {DEFAULT_TOLERANCE:g}"
#: The promise of the paper is a share of all rounds, so FairPace has to keep the same one here.
FAIR_PACE_SETTINGS = {"guaranteed_rate": RATE, "accrual": "always", "tolerance": DEFAULT_TOLERANCE}
LABELS = (FAIR_PACE, *CONTENDERS)
TICKS = (0, 0.5, 1, 2, 5, 10, 20, 50, 100)


class PromiseComparison(Experiment):
    """Mean round time against the largest shortfall, and the largest shortfall by round."""

    name = "promise"
    title = "Short rounds, and nobody left behind"
    about = (
        f"Every client is promised {RATE:.0%} of all rounds. Its shortfall is the promised turns minus its turns. "
        "Left: the largest shortfall of any client at any time, in any seed, and the mean round; the lower left corner "
        "is best. Right: the largest shortfall of any client after each round, mean over seeds."
    )

    contenders: ClassVar[Contenders] = {FAIR_PACE: ("fair-pace", FAIR_PACE_SETTINGS), **CONTENDERS}

    def findings(self, runs: Runs) -> Findings:
        """Compares mean rounds, and the largest shortfall of any client at any time."""
        rounds = {label: runs.each(label, lambda columns: float(columns.durations.mean())) for label in runs.labels}
        largest = {label: runs.each(label, lambda columns: shortfalls(columns, RATE).largest) for label in runs.labels}
        behind = {label: runs.curves(label, _largest_by_round) for label in runs.labels}
        table: Table = {
            "contender": runs.labels,
            "mean_round": [float(rounds[label].values.mean()) for label in runs.labels],
            "largest_shortfall": [float(largest[label].values.max()) for label in runs.labels],
        }
        curves = {label: curve.mean(axis=0) for label, curve in behind.items()}
        by_round: Table = {"round": np.arange(1.0, len(curves[FAIR_PACE]) + 1), **curves}
        return Findings(promise_claims(rounds, largest), {"promise": table, "promise-by-round": by_round})

    def draw(self, findings: Findings) -> Figure:
        """Draws one point per contender, and one curve per contender."""
        points, curves = findings.tables["promise"], findings.tables["promise-by-round"]
        labels = [str(label) for label in np.asarray(points["contender"])]
        with figure(9.0, 4.8) as drawn:
            left, right = drawn.subplots(1, 2)
            _draw_points(left, labels, np.asarray(points["largest_shortfall"]), np.asarray(points["mean_round"]))
            for label, style in styles_of(labels).items():
                curve(right, label, np.asarray(curves["round"]), np.asarray(curves[label]), style=style)
            right.set(title="Largest shortfall of any client", xlabel="round", ylabel="largest shortfall, turns")
            right.set_yscale("symlog", linthresh=1.0)
            right.set_ylim(bottom=0)
            set_ticks(right.yaxis, TICKS, *right.get_ylim())
            right.axhline(DEFAULT_TOLERANCE, color="black", linestyle=":", linewidth=1)
            right.margins(x=0.01)
            legend_outside(drawn, right, columns=3)
            return drawn


def promise_claims(rounds: Mapping[str, Group], largest: Mapping[str, Group]) -> list[Claim]:
    """Returns the claims about the mean round in seconds and the largest shortfall of any client in turns."""
    fairest, own = weight_label(1), largest[FAIR_PACE].values
    return [
        below(
            "within the tolerance",
            f"FairPace leaves no client more than {DEFAULT_TOLERANCE:g} turns behind, in any round of any seed (turns)",
            [Group("the largest shortfall", np.full(len(own), own.max()))],
            DEFAULT_TOLERANCE,
        ),
        ascending(
            "shorter than the fairest",
            "rounds of FairPace are shorter than those of RBCS-F with weight 1, and these shorter than random's (mean "
            "round, s)",
            [rounds[FAIR_PACE], rounds[fairest], rounds["random"]],
        ),
        ascending(
            "smaller shortfall",
            "the largest shortfall is smaller with FairPace than with RBCS-F at weight 1 (turns)",
            [largest[FAIR_PACE], largest[fairest]],
        ),
    ]


def _draw_points(axes: Axes, labels: Sequence[str], shortfall: FloatArray, seconds: FloatArray) -> None:
    for index, (label, style) in enumerate(styles_of(labels).items()):
        axes.plot(
            [shortfall[index]],
            [seconds[index]],
            marker=style.marker,
            markersize=1.5 * MARKER_SIZE.get(style.marker, 5.0),
            linestyle="none",
            color=style.colour,
            label=label,
        )
    axes.axvline(DEFAULT_TOLERANCE, color="black", linestyle=":", linewidth=1)
    at_top = {"xycoords": ("data", "axes fraction"), "fontsize": 8}
    note(axes, "tolerance", (DEFAULT_TOLERANCE, 1.0), (4, -10), **at_top)
    axes.set_xscale("log")
    set_ticks(axes.xaxis, TICKS[1:], shortfall.min() / 2, shortfall.max() * 2)
    axes.set_ylim(bottom=0, top=float(seconds.max()) * 1.12)
    axes.set(title="Mean round", xlabel="largest shortfall at any time, turns", ylabel="mean round time, seconds")
    write_labels(axes, shortfall, seconds, labels)


def _largest_by_round(columns: RoundColumns) -> FloatArray:
    """Returns how far the client that is furthest behind is behind, after each round."""
    return turns_behind(columns, Guarantee(RATE, accrual="always", counts="selected"))
