"""The paper's comparison, one set of runs shown in several figures, and that of the demo, with FairPace beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from turnout.kernel.arrays import FloatArray
from turnout.kernel.certificate import DEFAULT_TOLERANCE
from turnout.kernel.guarantee import Guarantee
from turnout.lab.analysis.metrics import jain_index, spread
from turnout.lab.analysis.promise import owed_after_each_round, shortfalls, turns_behind
from turnout.lab.analysis.statistics import with_bands
from turnout.lab.columns import Table, as_columns
from turnout.lab.drawing.figures import draw_curves, draw_lines, draw_overview, mean_curves, overview_tables
from turnout.lab.drawing.palette import styles_of
from turnout.lab.drawing.style import (
    MARKER_SIZE,
    Axes,
    Figure,
    curve,
    figure,
    legend_outside,
    note,
    set_ticks,
    write_labels,
)
from turnout.lab.studies.framework.claims import Claim, Group, above, ascending, below, highest, lowest
from turnout.lab.studies.framework.experiment import Contenders, Experiment, Findings, Runs

RATE = 0.15
WEIGHTS = (1, 5, 20, 50)
ROUNDS = 500
#: Owed turns are flat if they grow by less than this from one fifth of the rounds to the next.
FLAT = 0.05
#: The share of its level at which a queue counts as settled.
SETTLED = 0.9
#: Turns are even above this value of Jain's index.
EVEN = 0.95


def weight_label(weight: float) -> str:
    """Returns the label of RBCS-F with a speed weight."""
    return f"RBCS-F, weight {weight:g}"


def weighted(weights: Sequence[float]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Returns RBCS-F with several speed weights."""
    return {weight_label(weight): ("rbcsf", {"speed_weight": float(weight)}) for weight in weights}


RBCSF_LABELS = [weight_label(weight) for weight in WEIGHTS]
CONTENDERS: dict[str, tuple[str, dict[str, Any]]] = {
    **weighted(WEIGHTS),
    "random": ("random", {}),
    "FedCS(3)": ("fedcs", {"deadline": 3.0}),
}
#: In the order of figures.
SHOWN = ["random", *RBCSF_LABELS, "FedCS(3)"]


class PaperComparison(Experiment):
    """The base class of the comparisons, which share their runs: the paper's contenders in the paper's world."""

    contenders = CONTENDERS
    rounds = ROUNDS


class Queues(PaperComparison):
    """The paper's figure of queue lengths."""

    name = "queues"
    title = "Turns owed"
    about = (
        "The mean number of turns owed to a client, by round. If it levels off, the promise is kept in the long run."
    )

    def findings(self, runs: Runs) -> Findings:
        """Measures the level at which the mean number of owed turns settles, and when it does."""
        owed = {
            label: runs.curves(label, lambda columns: owed_after_each_round(columns, RATE).mean(axis=1))
            for label in RBCSF_LABELS
        }
        return Findings(queue_claims(owed), {"queues": mean_curves(owed)})

    def draw(self, findings: Findings) -> Figure:
        """Draws the mean number of owed turns against rounds."""
        return draw_lines(
            findings.tables["queues"], RBCSF_LABELS, "Turns owed, mean over clients", "turns owed per client, turns"
        )


class TrainingTime(PaperComparison):
    """The paper's figure of training time."""

    name = "training-time"
    title = "Training time"
    about = "Training time by round: the cumulative sum of the round durations."

    def findings(self, runs: Runs) -> Findings:
        """Compares the total training times."""
        elapsed = {label: runs.curves(label, lambda columns: np.cumsum(columns.durations)) for label in runs.labels}
        totals = {label: Group(label, curves[:, -1] / 60) for label, curves in elapsed.items()}
        by_speed = ["FedCS(3)", *reversed(RBCSF_LABELS), "random"]
        rows = [
            {
                "contender": label,
                **with_bands({"minutes": totals[label].values}),
                "time_saved": float((1 - totals[label].values / totals["random"].values).mean()),
            }
            for label in by_speed
        ]
        tables = {"training-time": mean_curves(elapsed, scale=1 / 60), "training-time-totals": as_columns(rows)}
        return Findings(training_time_claims(totals), tables)

    def draw(self, findings: Findings) -> Figure:
        """Draws the training time in minutes against rounds."""
        return draw_lines(findings.tables["training-time"], SHOWN, "Training time", "training time, minutes")


class PullRecord(PaperComparison):
    """The paper's figure of how often each client was chosen."""

    name = "pull-record"
    title = "Turns taken"
    about = "The number of turns of each client, in ascending order: flat for a fair policy, steep for an unfair one."

    def findings(self, runs: Runs) -> Findings:
        """Compares how evenly turns are distributed."""
        spreads = {label: runs.each(label, lambda columns: spread(columns.turns)) for label in runs.labels}
        evenness = {label: runs.each(label, lambda columns: jain_index(columns.turns)) for label in runs.labels}
        sorted_turns = {
            label: runs.curves(label, lambda columns: np.sort(columns.turns).astype(np.float64))
            for label in runs.labels
        }
        table: Table = {
            "contender": runs.labels,
            "spread_of_turns": [float(spreads[label].values.mean()) for label in runs.labels],
            "jain_index": [float(evenness[label].values.mean()) for label in runs.labels],
        }
        tables = {"pull-record": mean_curves(sorted_turns, "client"), "pull-record-evenness": table}
        return Findings(pull_record_claims(spreads, evenness), tables)

    def draw(self, findings: Findings) -> Figure:
        """Draws one strip per policy, as in the paper, and the same data as curves."""
        table = findings.tables["pull-record"]
        with figure(9.0, 4.8) as drawn:
            strips, curves = drawn.subplots(1, 2)
            turns = np.array([np.asarray(table[f"{label} mean"]) for label in SHOWN])
            image = strips.imshow(turns, aspect="auto", cmap="cividis", interpolation="nearest")
            strips.set(title="Turns of each client", xlabel="clients, in order of their turns")
            strips.set_yticks(range(len(SHOWN)), SHOWN)
            drawn.colorbar(image, ax=strips, label="turns", shrink=0.8)
            draw_curves(curves, table, SHOWN, "client")
            curves.set_ylim(bottom=0)
            curves.set(title="The same data as curves", xlabel="clients, in order of their turns", ylabel="turns")
            legend_outside(drawn, curves, columns=3)
            return drawn


class Overview(PaperComparison):
    """The figure of the README: the time saved, and the share of rounds of each client."""

    name = "overview"
    title = "At a glance"
    about = "Training time, and the share of rounds of each client."

    def findings(self, runs: Runs) -> Findings:
        """Computes the curves; makes no claims."""
        times, shares = overview_tables({label: list(runs.of(label)) for label in runs.labels})
        return Findings([], {"overview-time": times, "overview-shares": shares})

    def draw(self, findings: Findings) -> Figure:
        """Draws training time and shares in two panels."""
        return draw_overview(SHOWN, findings.tables["overview-time"], findings.tables["overview-shares"], RATE)


def queue_claims(owed: Mapping[str, FloatArray]) -> list[Claim]:
    """Returns the claims about the mean number of owed turns: one curve per seed, as rows, for each weight."""
    rounds = next(iter(owed.values())).shape[1]
    levels = [Group(label, settled_level(curves)) for label, curves in owed.items()]
    settled = [Group(group.label, first_round_at(owed[group.label], SETTLED * group.values)) for group in levels]
    return [
        flattening_claim(owed, rounds),
        ascending(
            "higher level",
            f"over the last fifth of {rounds:,} rounds, the mean of owed turns is higher with a larger weight (turns)",
            levels,
        ),
        ascending(
            "later", f"{SETTLED:.0%} of that level is reached in a later round with a larger weight (round)", settled
        ),
    ]


def flattening_claim(owed: Mapping[str, FloatArray], rounds: int) -> Claim:
    """Returns the claim that the mean number of owed turns levels off within the first `rounds` rounds."""
    growth = [Group(label, _growth(curves[:, :rounds])) for label, curves in owed.items()]
    return below(
        f"flattens within {rounds:,} rounds",
        f"within {rounds:,} rounds, the mean of owed turns grows by less than {FLAT:.0%} from the fourth to the last "
        "fifth of the rounds",
        growth,
        FLAT,
    )


def training_time_claims(totals: Mapping[str, Group]) -> list[Claim]:
    """Returns the claims about the total training time of each contender, in minutes."""
    return [
        highest("random slowest", "random takes more time than every other policy (minutes)", totals, "random"),
        ascending(
            "larger weight, shorter",
            "RBCS-F takes less time with a larger speed weight (minutes)",
            [totals[label] for label in reversed(RBCSF_LABELS)],
        ),
        lowest("FedCS(3) shortest", "FedCS(3) takes less time than every other policy (minutes)", totals, "FedCS(3)"),
    ]


def pull_record_claims(spreads: Mapping[str, Group], evenness: Mapping[str, Group]) -> list[Claim]:
    """Returns the claims about the standard deviation and about Jain's index of the turns of each contender."""
    return [
        ascending(
            "spread grows",
            "the standard deviation of turns grows with the speed weight",
            [spreads[label] for label in RBCSF_LABELS],
        ),
        highest(
            "FedCS(3) most uneven",
            "the standard deviation of turns is larger for FedCS(3) than for every other policy",
            spreads,
            "FedCS(3)",
        ),
        above(
            "random and small weights even",
            f"Jain's index of turns is above {EVEN:g} for random and weight 1",
            [evenness["random"], evenness[RBCSF_LABELS[0]]],
            EVEN,
        ),
    ]


def settled_level(curves: FloatArray) -> FloatArray:
    """Returns the mean of each curve over the last fifth of its rounds."""
    level: FloatArray = curves[:, -_fifth(curves) :].mean(axis=1)
    return level


def first_round_at(curves: FloatArray, levels: FloatArray) -> FloatArray:
    """Returns the first round in which each curve reaches its level; rounds are counted from 1."""
    first: FloatArray = (curves >= levels[:, None]).argmax(axis=1) + 1.0
    return first


def _growth(curves: FloatArray) -> FloatArray:
    """Returns the relative growth of the mean from the fourth to the last fifth of the rounds; 0 if both are 0."""
    fifth = _fifth(curves)
    before, level = curves[:, -2 * fifth : -fifth].mean(axis=1), settled_level(curves)
    return np.where(level == before, 0.0, level / np.maximum(before, 1e-9) - 1)


def _fifth(curves: FloatArray) -> int:
    return max(int(curves.shape[1]) // 5, 1)


FAIR_PACE = f"FairPace, tolerance {DEFAULT_TOLERANCE:g}"
#: The promise of the paper is a share of all rounds, so FairPace has to keep the same one here.
FAIR_PACE_SETTINGS = {"guaranteed_rate": RATE, "accrual": "always", "tolerance": DEFAULT_TOLERANCE}
LABELS = (FAIR_PACE, *CONTENDERS)
PROMISE = Guarantee(RATE, accrual="always", counts="selected")
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
        behind = {label: runs.curves(label, lambda columns: turns_behind(columns, PROMISE)) for label in runs.labels}
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
    for (label, style), x, y in zip(styles_of(labels).items(), shortfall, seconds, strict=True):
        size = 1.5 * MARKER_SIZE.get(style.marker, 5.0)
        axes.plot([x], [y], marker=style.marker, markersize=size, linestyle="none", color=style.colour, label=label)
    axes.axvline(DEFAULT_TOLERANCE, color="black", linestyle=":", linewidth=1)
    at_top = {"xycoords": ("data", "axes fraction"), "fontsize": 8}
    note(axes, "tolerance", (DEFAULT_TOLERANCE, 1.0), (4, -10), **at_top)
    axes.set_xscale("log")
    set_ticks(axes.xaxis, TICKS[1:], shortfall.min() / 2, shortfall.max() * 2)
    axes.set_ylim(bottom=0, top=float(seconds.max()) * 1.12)
    axes.set(title="Mean round", xlabel="largest shortfall at any time, turns", ylabel="mean round time, seconds")
    write_labels(axes, shortfall, seconds, labels)
