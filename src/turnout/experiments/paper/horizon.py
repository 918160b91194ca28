"""A promise kept by a given round: RBCS-F with a horizon beside the paper's rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from turnout.analysis.statistics import mean_confidence_interval
from turnout.experiments.framework.claims import Group, above, below, lowest
from turnout.experiments.framework.drawing import OTHERS, figure
from turnout.experiments.framework.experiment import Experiment, Findings, Plans, Runs
from turnout.experiments.paper.comparison import RATE, weight_label
from turnout.simulator.plans import RunPlan

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WEIGHTS = (0.5, 1, 2, 5, 20)
ROUNDS = 500
ZERO, FLEET = "horizon", "horizon, fleet prior"
ENOUGH = 0.145  # of a promised 0.15
LONGEST = 9.2  # seconds


class HorizonStudy(Experiment):
    """Many weights of the paper's rule; one weight with a horizon, with and without the fleet's prior."""

    name = "horizon"
    title = "Horizon"
    about = (
        "Mean round against the share of the client chosen least after 500 rounds: the paper's rule at several speed "
        "weights, and the same with a horizon, which keeps the promise by the last round."
    )

    def plans(self, seeds: int, rounds: int | None = None) -> Plans:
        """The horizon is the number of rounds."""
        length = rounds or ROUNDS
        contenders: dict[str, dict[str, Any]] = {weight_label(one): {"speed_weight": float(one)} for one in WEIGHTS}
        contenders[ZERO] = {"speed_weight": 20.0, "horizon": length}
        contenders[FLEET] = {"speed_weight": 20.0, "horizon": length, "prior": "fleet"}
        return {
            label: [RunPlan("rbcsf", length, seed, settings, label=label) for seed in range(seeds)]
            for label, settings in contenders.items()
        }

    def findings(self, runs: Runs) -> Findings:
        """Time and fairness of each."""
        time = {label: runs.each(label, lambda columns: float(columns.durations.mean())) for label in runs.labels}
        share = {
            label: runs.each(label, lambda one: float(one.chosen_mask.mean(axis=0).min())) for label in runs.labels
        }
        keeping = [label for label in map(weight_label, WEIGHTS) if share[label].values.mean() >= ENOUGH]
        claims = [
            above(
                "kept by the horizon", f"the least-chosen client has {ENOUGH:g} of the rounds", [share[FLEET]], ENOUGH
            ),
            below("short rounds", f"the mean round is at most {LONGEST:g} s", [time[FLEET]], LONGEST),
            lowest(
                "shorter than the paper's rule at the same promise",
                f"the mean round is shorter than that of every weight at which the paper's rule keeps {ENOUGH:g}",
                time[FLEET],
                [time[label] for label in keeping],
            ),
            lowest(
                "the fleet's prior helps", "the mean round is shorter with the fleet's prior", time[FLEET], [time[ZERO]]
            ),
        ]
        return Findings(claims, {"horizon": {"contender": np.array(runs.labels), **_columns(time, share)}})

    def draw(self, findings: Findings) -> Figure:
        """The paper's rule as a curve over its weights, ours as points."""
        table = {name: np.asarray(values) for name, values in findings.tables["horizon"].items()}
        with figure(7.0, 4.4) as drawn:
            axes = drawn.subplots()
            paper = np.isin(table["contender"], [weight_label(one) for one in WEIGHTS])
            for some, label, colour, line in (
                (paper, "the paper's rule, speed weights at the points", OTHERS[0], "-"),
                (~paper, "with a horizon", OTHERS[1], "none"),
            ):
                axes.errorbar(
                    table["least_share"][some],
                    table["mean_round"][some],
                    xerr=table["least_share_band"][some],
                    yerr=table["mean_round_band"][some],
                    color=colour,
                    marker="o",
                    markersize=4,
                    linestyle=line,
                    label=label,
                )
            weights = iter(WEIGHTS)
            for contender, x, y in zip(table["contender"], table["least_share"], table["mean_round"], strict=True):
                word = str(contender) if contender in (ZERO, FLEET) else f"{next(weights):g}"
                axes.annotate(word, (x, y), xytext=(4, -10), textcoords="offset points", fontsize=8)
            axes.axvline(RATE, color="black", linestyle=":", linewidth=1)
            axes.set(
                title="A promise kept by a given round",
                xlabel="share of rounds of the client chosen least (dotted: promised)",
                ylabel="mean round, seconds",
            )
            axes.legend()
            return drawn


def _columns(time: dict[str, Group], share: dict[str, Group]) -> dict[str, Any]:
    """Means and half-widths, one row a contender."""
    table: dict[str, Any] = {}
    for word, groups in (("mean_round", time), ("least_share", share)):
        bands = [mean_confidence_interval(group.values) for group in groups.values()]
        table[word] = np.array([float(one.mean) for one in bands])
        table[f"{word}_band"] = np.array([float(one.half_width) for one in bands])
    return table
