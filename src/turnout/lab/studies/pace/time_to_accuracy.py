"""The simulated time until a model is nearly as accurate as with random selection, with and without a promise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from turnout.lab.drawing.palette import Style
from turnout.lab.drawing.style import figure, legend_outside, points
from turnout.lab.studies.framework.claims import Claim, Group, highest, lowest
from turnout.lab.studies.framework.experiment import Contenders, Findings
from turnout.lab.studies.pace.experiment import (
    HIGHEST,
    LEVELS,
    LOW_RATE,
    PaceExperiment,
    as_accurate_claim,
    pace,
    pace_label,
    rows_of_panel,
)
from turnout.lab.studies.paper.comparison import CONTENDERS, RATE, weight_label
from turnout.lab.studies.paper.learning_curves import final_accuracies, measure_curves, time_to_target
from turnout.lab.studies.paper.panels import Panel, PanelCurves, target_of
from turnout.lab.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: How a figure shows the time to each target.
MARKERS = {"80": Style("#999999", marker="o"), "90": Style("#e69f00", marker="s"), "95": Style("#0072b2", marker="D")}
#: FairPace has to reach the highest target in this share of Oort's time.
FASTER = 0.9
#: The number of seeds of the contenders that no claim is about.
FEW_SEEDS = 3

PLAIN, VALUED = pace_label(LOW_RATE, valued=False), pace_label(LOW_RATE)
VALUED_HIGH = pace_label(RATE)
SLOW, FAST, FEDCS = weight_label(1), weight_label(20), "FedCS(3)"
GUARDED = " + guarantee"
LOSS_AWARE = {"Oort": "oort", "Power-of-Choice": "power-of-choice", "Active FL": "active-fl"}
#: The panels of the contenders that no claim is about; all others are in every panel.
ONLY_IN: Mapping[str, tuple[str, ...]] = {
    SLOW: ("0.1", "1", "iid"),
    FEDCS: ("1", "iid", "0.1, speed by class"),
    **{f"{label}{suffix}": ("0.1", "1") for label in LOSS_AWARE if label != "Oort" for suffix in ("", GUARDED)},
}


class TimeToAccuracy(PaceExperiment):
    """Minutes to 80, 90 and 95 % of random's final accuracy, final accuracies, and how far clients fell behind."""

    name = "time-to-accuracy"
    title = "Time to accuracy"
    about = (
        "Simulated minutes until the test accuracy reaches 80, 90 and 95 % of the final accuracy of random, mean and "
        "95 % confidence interval over seeds. The number after FairPace is its guaranteed rate of all rounds. For a "
        "run that never reaches a target, its whole time is a lower bound."
    )
    contenders: ClassVar[Contenders] = {
        "random": ("random", {}),
        **{label: CONTENDERS[label] for label in (SLOW, FAST, FEDCS)},
        **{label: (policy, {}) for label, policy in LOSS_AWARE.items()},
        **{
            f"{label}{GUARDED}": (
                "with-guarantee",
                {"policy": policy, "settings": {}, "guaranteed_rate": LOW_RATE, "accrual": "always"},
            )
            for label, policy in LOSS_AWARE.items()
        },
        **pace(LOW_RATE, valued=False),
        **pace(RATE, valued=False),
        **pace(LOW_RATE),
        **pace(RATE),
    }
    promised = (VALUED, VALUED_HIGH)
    gammas = (0.1, 0.3, 1, "iid")
    by_class = (0.1,)

    def contenders_of(self, panel: Panel) -> Contenders:
        """Returns the contenders of a panel."""
        return {
            label: contender
            for label, contender in self.contenders.items()
            if panel.column in ONLY_IN.get(label, (panel.column,))
        }

    def seeds_of(self, label: str, seeds: int) -> int:
        """Returns the number of seeds of a contender if the others have `seeds`."""
        return min(seeds, FEW_SEEDS) if label in ONLY_IN else seeds

    def panel_claims(self, panel: Panel, curves: PanelCurves) -> list[Claim]:  # noqa: ARG002
        """Returns claims about the time to the highest target, about final accuracies and about the whole time."""
        compared = {label: seeds for label, seeds in curves.items() if label not in ONLY_IN}
        target = target_of(curves, self.reference, HIGHEST)
        late = {label: time_to_target(label, seeds, target, "minutes") for label, seeds in compared.items()}
        late["share"] = Group(f"{FASTER:g} of the time of Oort", FASTER * late["Oort"].values, late["Oort"].never)
        final = {label: final_accuracies(label, seeds) for label, seeds in compared.items()}
        whole = {label: measure_curves(label, seeds, lambda run: run.duration) for label, seeds in compared.items()}
        ahead = {
            f"in {FASTER:g} of Oort's time": (VALUED, "share"),
            "ahead of RBCS-F 20": (VALUED, FAST),
            "ahead of Oort with a guarantee": (VALUED, f"Oort{GUARDED}"),
            "ahead of FairPace without value": (VALUED, PLAIN),
            f"FairPace {RATE:g} ahead of random": (VALUED_HIGH, "random"),
        }
        return [
            *(
                lowest(
                    name,
                    f"{own} reaches accuracy {target:.3f} before {late[other].label} (minutes)",
                    late,
                    own,
                    [other],
                )
                for name, (own, other) in ahead.items()
            ),
            as_accurate_claim(VALUED_HIGH, curves, self.reference),
            highest(
                "more accurate than RBCS-F 20",
                f"the final accuracy of {VALUED_HIGH} is higher than that of {FAST}",
                final,
                VALUED_HIGH,
                [FAST],
            ),
            lowest(
                "shorter than random",
                f"all rounds of {VALUED_HIGH} take less time than those of random (minutes)",
                whole,
                VALUED_HIGH,
                ["random"],
            ),
        ]

    def draw(self, findings: Findings) -> Figure:
        """Draws the times to all targets: one row per dataset, one column per partition, one line per contender."""
        table, labels = findings.tables[self.name], list(self.contenders)[::-1]
        with figure(10.0, 0.9 + 3.1 * len(self.tasks)) as drawn:
            columns = len(self.panels) // len(self.tasks)
            grid = drawn.subplots(len(self.tasks), columns, squeeze=False, sharey=True, sharex="row")
            for axes, panel in zip(grid.ravel(), self.panels, strict=True):
                _draw_panel(axes, panel, table, labels)
            for row, task in zip(grid, self.tasks, strict=True):
                row[0].set_yticks(range(len(labels)), labels=labels)
                row[0].set_xlim(left=0)
                row[0].set_ylabel(task.dataset)
            legend_outside(drawn, grid[0][0], columns=len(MARKERS))
            return drawn


def _draw_panel(axes: Axes, panel: Panel, table: Table, labels: list[str]) -> None:
    """Draws the minutes to each target; an arrow instead of a point says that some runs never reached it."""
    rows = rows_of_panel(table, panel)
    heights = np.array([labels.index(label) for label in rows["contender"].tolist()])
    for level, style in MARKERS.items():
        minutes, missed = rows[f"minutes_to_{level}"], rows[f"never_at_{level}"] > 0
        bands = np.nan_to_num(rows[f"minutes_to_{level}_band"].astype(np.float64))
        reached = ~missed
        points(
            axes,
            minutes[reached],
            heights[reached],
            style,
            xerr=bands[reached],
            linestyle="none",
            label=f"{LEVELS[level]:.0%} of random's accuracy",
        )
        points(axes, minutes[missed], heights[missed], Style(style.colour, marker=">"), filled=False, linestyle="none")
    axes.set_title(panel.split.replace(", ", ",\n"), fontsize=9)
    axes.set_xlabel("simulated minutes")
    axes.grid(axis="y", linewidth=0.4, alpha=0.5)
