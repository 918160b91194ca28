"""RBCS-F with a horizon, which keeps the promise by a given round, compared with the paper's rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from turnout.lab.analysis.promise import shortfalls
from turnout.lab.analysis.statistics import with_bands
from turnout.lab.drawing.labels import write_labels
from turnout.lab.drawing.palette import OTHERS
from turnout.lab.drawing.style import figure, points
from turnout.lab.studies.framework.claims import Claim, Group, below, lowest
from turnout.lab.studies.framework.experiment import Experiment, Findings, Plans, Runs, plans_for
from turnout.lab.studies.paper.comparison import RATE, weight_label, weighted
from turnout.lab.studies.paper.trade_off import describe_axes
from turnout.lab.tables import as_columns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WEIGHTS = (0.5, 1, 2, 5, 20)
PAPER_LABELS = [weight_label(weight) for weight in WEIGHTS]
ZERO, FLEET = "horizon", "horizon, fleet prior"
#: A promise is kept if every client is less than one turn behind; see turnout.kernel.certificate.
KEPT = 1.0
LONGEST = 9.2  # seconds


class HorizonStudy(Experiment):
    """Compares several weights of the paper's rule with one weight and a horizon, with and without the fleet prior."""

    name = "horizon"
    title = "Horizon"
    about = (
        "Mean round time against the share of the least-selected client after 500 rounds: the paper's rule at several "
        "speed weights, and RBCS-F with a horizon, which keeps the promise by the last round."
    )

    def plans(self, seeds: int, rounds: int | None = None) -> Plans:
        """Returns plans in which the horizon is the number of rounds."""
        length = rounds or self.rounds
        patient = {"speed_weight": 20.0, "horizon": length}
        contenders = {**weighted(WEIGHTS), ZERO: ("rbcsf", patient), FLEET: ("rbcsf", {**patient, "prior": "fleet"})}
        return plans_for(contenders, seeds, length)

    def findings(self, runs: Runs) -> Findings:
        """Measures round time and fairness of each contender."""
        time = {label: runs.each(label, lambda columns: float(columns.durations.mean())) for label in runs.labels}
        share = {
            label: runs.each(label, lambda columns: float(columns.chosen_mask.mean(axis=0).min()))
            for label in runs.labels
        }
        behind = {label: runs.each(label, lambda columns: shortfalls(columns, RATE).at_end) for label in runs.labels}
        measures = {"mean_round": time, "least_share": share, "shortfall_at_end": behind}
        table = as_columns(
            [
                {"contender": label, **with_bands({name: groups[label].values for name, groups in measures.items()})}
                for label in runs.labels
            ]
        )
        return Findings(horizon_claims(time, behind), {"horizon": table})

    def draw(self, findings: Findings) -> Figure:
        """Draws the paper's rule as a curve over its weights, and the runs with a horizon as points."""
        table = {name: np.asarray(values) for name, values in findings.tables["horizon"].items()}
        with figure(7.0, 4.4) as drawn:
            axes = drawn.subplots()
            paper = np.isin(table["contender"], PAPER_LABELS)
            for rows, label, style, line in (
                (paper, "the paper's rule, speed weights at the points", OTHERS[0], "-"),
                (~paper, "with a horizon", OTHERS[1], "none"),
            ):
                points(
                    axes,
                    table["least_share"][rows],
                    table["mean_round"][rows],
                    style,
                    xerr=table["least_share_band"][rows],
                    yerr=table["mean_round_band"][rows],
                    linestyle=line,
                    label=label,
                )
            describe_axes(axes, "Keeping the promise by a given round")
            axes.margins(x=0.2)  # room for labels
            weights = iter(WEIGHTS)
            texts = [str(name) if name in (ZERO, FLEET) else f"{next(weights):g}" for name in table["contender"]]
            write_labels(axes, table["least_share"], table["mean_round"], texts)
            return drawn


def horizon_claims(time: Mapping[str, Group], behind: Mapping[str, Group]) -> list[Claim]:
    """Returns the claims about RBCS-F with a horizon and the fleet prior.

    Args:
        time: The mean round time of each contender, in seconds.
        behind: How many turns the client that is furthest behind its guaranteed rate is behind after the last round.
    """
    return [
        _kept(FLEET, behind),
        below("short rounds", f"the mean round time is at most {LONGEST:g} s", [time[FLEET]], LONGEST),
        lowest(
            "shorter than the paper's rule at the same promise",
            "the mean round time is lower than at every weight at which the paper's rule keeps the promise by the last "
            "round, or may keep it (s)",
            time,
            FLEET,
            [label for label in PAPER_LABELS if _kept(label, behind).verdict != "does not hold"],
        ),
        lowest("the fleet's prior helps", "the mean round time is lower with the fleet prior (s)", time, FLEET, [ZERO]),
    ]


def _kept(label: str, behind: Mapping[str, Group]) -> Claim:
    return below(
        "kept by the horizon",
        f"after the last round every client is less than {KEPT:g} turn behind {RATE:g} of the rounds: the promise is "
        "kept (turns of the client that is furthest behind)",
        [behind[label]],
        KEPT,
        strictly=True,
    )
