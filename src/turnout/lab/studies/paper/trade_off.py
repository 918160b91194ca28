"""Round time against the share of the least-selected client: several speed weights, and RBCS-F with a horizon."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from turnout.kernel.arrays import FloatArray
from turnout.lab.analysis.promise import shortfalls
from turnout.lab.analysis.statistics import with_bands
from turnout.lab.columns import RoundColumns, as_columns
from turnout.lab.drawing.palette import OTHERS
from turnout.lab.drawing.style import Axes, Figure, figure, note, points, write_labels
from turnout.lab.studies.framework.claims import Claim, Group, above, ascending, below, lowest
from turnout.lab.studies.framework.experiment import Contenders, Experiment, Findings, Plans, Runs, plans_for
from turnout.lab.studies.paper.comparison import RATE, weight_label, weighted
from turnout.lab.studies.paper.theory import second_half_mean

WEIGHTS = (0.5, 1, 2, 5, 10, 20, 50, 100)
LABELS = [weight_label(weight) for weight in WEIGHTS]
ORACLE = "fair oracle"
ORACLE_WEIGHT = 100.0
#: The columns of a point, and of its error bars.
POINT = ("least_share", "mean_round", "least_share_band", "mean_round_band")


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
                x, y, x_band, y_band = (table[f"{length}_{name}"] for name in POINT)
                label = f"after {table[f'{length}_rounds'][0]:,.0f} rounds"
                points(axes, x, y, style, xerr=x_band, yerr=y_band, linestyle=style.line, label=label)
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
    seconds, chosen = columns.durations, columns.chosen_mask
    lengths = (max(len(seconds) // 10, 1), len(seconds))
    return np.array([(seconds[:rounds].mean(), chosen[:rounds].sum(axis=0).min() / rounds) for rounds in lengths])


HORIZON_WEIGHTS = (0.5, 1, 2, 5, 20)
PAPER_LABELS = [weight_label(weight) for weight in HORIZON_WEIGHTS]
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
        patient: dict[str, Any] = {"speed_weight": 20.0, "horizon": length}
        with_horizon = {ZERO: patient, FLEET: {**patient, "prior": "fleet"}}
        contenders = {label: ("rbcsf", settings) for label, settings in with_horizon.items()}
        return plans_for({**weighted(HORIZON_WEIGHTS), **contenders}, seeds, length)

    def findings(self, runs: Runs) -> Findings:
        """Measures round time and fairness of each contender."""
        time = {label: runs.each(label, lambda columns: float(columns.durations.mean())) for label in runs.labels}
        share = {
            label: runs.each(label, lambda columns: float(columns.chosen_mask.mean(axis=0).min()))
            for label in runs.labels
        }
        behind = {label: runs.each(label, lambda columns: shortfalls(columns, RATE).at_end) for label in runs.labels}
        measures = {"mean_round": time, "least_share": share, "shortfall_at_end": behind}
        rows = [
            {"contender": label, **with_bands({name: groups[label].values for name, groups in measures.items()})}
            for label in runs.labels
        ]
        return Findings(horizon_claims(time, behind), {"horizon": as_columns(rows)})

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
                x, y, x_band, y_band = (table[name][rows] for name in POINT)
                points(axes, x, y, style, xerr=x_band, yerr=y_band, linestyle=line, label=label)
            describe_axes(axes, "Keeping the promise by a given round")
            axes.margins(x=0.2)  # room for labels
            weights = iter(HORIZON_WEIGHTS)
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
