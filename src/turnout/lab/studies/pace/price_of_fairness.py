"""The price of fairness: time to accuracy and final accuracy against the rate that every client is promised."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from turnout.lab.analysis.statistics import UNIT_RANGE
from turnout.lab.drawing.palette import OTHERS
from turnout.lab.drawing.style import curve, figure, legend_outside
from turnout.lab.studies.framework.claims import Claim, ascending
from turnout.lab.studies.framework.experiment import Contenders, Findings
from turnout.lab.studies.pace.experiment import (
    HIGHEST,
    PaceExperiment,
    as_accurate_claim,
    pace,
    pace_label,
    rows_of_panel,
)
from turnout.lab.studies.paper.learning_curves import final_accuracies, time_to_target
from turnout.lab.studies.paper.panels import Panel, PanelCurves, target_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: From no promise to an equal share of all rounds, 8 of 40.
RATES = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2)
NONE, *PROMISES, EQUAL = (pace_label(rate) for rate in RATES)


class PriceOfFairness(PaceExperiment):
    """FairPace with value at several rates, beside random."""

    name = "price-of-fairness"
    title = "The price of fairness"
    about = (
        f"FairPace with value, by the rate of all rounds that every client is promised, from none to an equal share. "
        f"Left: simulated minutes until the test accuracy reaches {HIGHEST:.0%} of the final accuracy of random. "
        "Right: final accuracy. Mean and 95 % confidence interval over seeds; the dotted lines are random."
    )
    contenders: ClassVar[Contenders] = {
        "random": ("random", {}),
        **{label: contender for rate in RATES for label, contender in pace(rate).items()},
    }
    promised = (*PROMISES, EQUAL)
    gammas = (0.1, 1)
    by_class = (0.1,)

    def panel_claims(self, panel: Panel, curves: PanelCurves) -> list[Claim]:  # noqa: ARG002
        """Returns claims about the cost of a larger rate, and about the ends of the scale."""
        target = target_of(curves, self.reference, HIGHEST)
        late = {label: time_to_target(label, seeds, target, "minutes") for label, seeds in curves.items()}
        final = {label: final_accuracies(label, seeds) for label, seeds in curves.items()}
        reaches = f"reaches accuracy {target:.3f}"
        return [
            ascending(
                "a larger rate takes longer",
                f"FairPace with value {reaches} later at a larger guaranteed rate (minutes)",
                [late[label] for label in (*PROMISES, EQUAL)],
            ),
            ascending(
                "an equal share ahead of random",
                f"{EQUAL} {reaches} before random (minutes)",
                [late[EQUAL], late["random"]],
            ),
            as_accurate_claim(EQUAL, curves, self.reference),
            ascending(
                "an equal share more accurate than no promise",
                f"the final accuracy of {EQUAL} is higher than that of {NONE}",
                [final[NONE], final[EQUAL]],
            ),
        ]

    def draw(self, findings: Findings) -> Figure:
        """Draws one row per dataset: the time to the highest target, and the final accuracy, one line per partition."""
        table = findings.tables[self.name]
        measures = {
            "minutes_to_95": (f"minutes to {HIGHEST:.0%}\nof random's accuracy", (0.0, np.inf)),
            "final_accuracy": ("final accuracy, from 0 to 1", UNIT_RANGE),
        }
        with figure(9.0, 0.8 + 2.9 * len(self.tasks)) as drawn:
            grid = drawn.subplots(len(self.tasks), len(measures), squeeze=False, sharex=True)
            for row, task in zip(grid, self.tasks, strict=True):
                panels = [panel for panel in self.panels if panel.dataset == task.dataset]
                for axes, (measure, (label, limits)) in zip(row, measures.items(), strict=True):
                    for panel, style in zip(panels, OTHERS, strict=False):
                        rows = rows_of_panel(table, panel)
                        own = rows["contender"] != self.reference
                        means, bands = (rows[name].astype(np.float64) for name in (measure, f"{measure}_band"))
                        rates = rows["judged_rate"][own].astype(np.float64)
                        curve(
                            axes, panel.split, rates, means[own], np.nan_to_num(bands[own]), style=style, limits=limits
                        )
                        axes.axhline(float(means[~own][0]), color=style.colour, linestyle=":", linewidth=1)
                    axes.set(title=task.dataset, ylabel=label)
            for axes in grid[-1]:
                axes.set_xlabel("guaranteed rate, of all rounds")
            legend_outside(drawn, grid[0][0], columns=3)
            return drawn
