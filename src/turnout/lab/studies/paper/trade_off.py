"""Round time against the share of the least-selected client, for several speed weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from turnout.kernel.arrays import FloatArray
from turnout.lab.analysis.statistics import with_bands
from turnout.lab.columns import RoundColumns
from turnout.lab.drawing.labels import write_labels
from turnout.lab.drawing.palette import OTHERS
from turnout.lab.drawing.style import figure, note, points
from turnout.lab.studies.framework.claims import Claim, Group, above, ascending
from turnout.lab.studies.framework.experiment import Contenders, Experiment, Findings, Runs
from turnout.lab.studies.paper.comparison import RATE, weight_label, weighted
from turnout.lab.studies.paper.theory import second_half_mean
from turnout.lab.tables import as_columns

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WEIGHTS = (0.5, 1, 2, 5, 10, 20, 50, 100)
LABELS = [weight_label(weight) for weight in WEIGHTS]
ORACLE = "fair oracle"
ORACLE_WEIGHT = 100.0


class TradeOff(Experiment):
    """Compares many speed weights, after a tenth of the rounds and after all rounds."""

    name = "trade-off"
    title = "Trade-off"
    about = (
        "Mean round time against the share of the least-selected client, for many speed weights. The dashed line is "
        "the mean round time of the fair oracle over the second half of its runs (expected times known, weight "
        f"{ORACLE_WEIGHT:g}): it approaches the best fair policy from above."
    )

    contenders: ClassVar[Contenders] = {**weighted(WEIGHTS), ORACLE: ("fair-oracle", {"speed_weight": ORACLE_WEIGHT})}
    rounds = 5000  # their first 500 rounds are the short runs
    keep = "choices"

    def findings(self, runs: Runs) -> Findings:
        """Measures round time and fairness of each weight at both lengths."""
        measured = {label: np.array([_points(columns) for columns in runs.of(label)]) for label in LABELS}
        optimum = runs.each(ORACLE, second_half_mean)
        rounds = float(len(next(runs.of(LABELS[0]))))
        names = [f"{length}_{measure}" for length in ("short", "long") for measure in ("mean_round", "least_share")]
        rows = [
            {
                "speed_weight": float(weight),
                **with_bands(dict(zip(names, measured[label].reshape(-1, len(names)).T, strict=True))),
                "long_rounds": rounds,
                "short_rounds": max(rounds // 10, 1.0),
                "fair_optimum": float(optimum.values.mean()),
            }
            for label, weight in zip(LABELS, WEIGHTS, strict=True)
        ]
        return Findings(trade_off_claims(measured), {"trade-off": as_columns(rows)})

    def draw(self, findings: Findings) -> Figure:
        """Draws one curve per length, with the weights written at their points."""
        table = {name: np.asarray(values, dtype=np.float64) for name, values in findings.tables["trade-off"].items()}
        with figure(7.0, 4.4) as drawn:
            axes = drawn.subplots()
            for length, style in zip(("short", "long"), OTHERS, strict=False):
                points(
                    axes,
                    table[f"{length}_least_share"],
                    table[f"{length}_mean_round"],
                    style,
                    xerr=table[f"{length}_least_share_band"],
                    yerr=table[f"{length}_mean_round_band"],
                    linestyle=style.line,
                    label=f"after {table[f'{length}_rounds'][0]:,.0f} rounds",
                )
            axes.axhline(table["fair_optimum"][0], color="black", linestyle="--", linewidth=1)
            note(axes, "fair oracle", (0.0, table["fair_optimum"][0]), (2, 3))
            describe_axes(axes, "Round time against fairness (speed weights at the points)")
            both = {
                measure: np.concatenate([table[f"{length}_{measure}"] for length in ("short", "long")])
                for measure in ("least_share", "mean_round")
            }
            weights = [f"{weight:g}" for weight in table["speed_weight"]] * 2
            write_labels(axes, both["least_share"], both["mean_round"], weights)
            return drawn


def describe_axes(axes: Axes, title: str) -> None:
    """Labels the axes of round time against the least share, with the promised one and a legend."""
    axes.axvline(RATE, color="black", linestyle=":", linewidth=1)
    axes.set(title=title, xlabel="share of rounds of the least-selected client (dotted: promised)")
    axes.set_ylabel("mean round time, seconds")
    axes.legend()


def trade_off_claims(points: Mapping[str, FloatArray]) -> list[Claim]:
    """Returns the claims about round time and fairness.

    `points` holds for each weight an array (seeds, 2, 2): (mean round time, least share) after a tenth of the rounds
    and after all rounds.
    """
    descending, patient = LABELS[::-1], weight_label(20)
    return [
        ascending(
            "larger weight, shorter rounds",
            "the mean round time decreases with the speed weight (seconds)",
            [Group(label, points[label][:, 1, 0]) for label in descending],
        ),
        ascending(
            "larger weight, later fairness",
            "after a tenth of the rounds, the share of the least-selected client decreases with the speed weight",
            [Group(label, points[label][:, 0, 1]) for label in descending],
        ),
        above(
            "patience pays",
            "at weight 20, the share of the least-selected client grows from a tenth of the rounds to all rounds",
            [Group(f"{patient}, gain", points[patient][:, 1, 1] - points[patient][:, 0, 1])],
            0.0,
            strictly=True,
        ),
    ]


def _points(columns: RoundColumns) -> FloatArray:
    """Returns (mean round time, least share) after a tenth of the rounds and after all rounds."""
    total = len(columns.durations)
    mask = columns.chosen_mask
    return np.array(
        [
            (columns.durations[:rounds].mean(), mask[:rounds].sum(axis=0).min() / rounds)
            for rounds in (max(total // 10, 1), total)
        ]
    )
