"""The paper's comparison: one set of runs, three drawings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from turnout.analysis.metrics import jain_index, owed_after_each_round, spread
from turnout.analysis.statistics import mean_confidence_interval
from turnout.experiments.framework.claims import Claim, Group, above, ascending, below
from turnout.experiments.framework.drawing import curve, figure
from turnout.experiments.framework.experiment import Experiment, Findings, Plans, Runs, Table
from turnout.kernel.arrays import FloatArray
from turnout.simulator.plans import RunPlan
from turnout.store import RoundColumns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATE = 0.15
WEIGHTS = (1, 5, 20, 50)
ROUNDS = 500


def weight_label(weight: float) -> str:
    """What figures and tables call RBCS-F at a weight."""
    return f"RBCS-F, weight {weight:g}"


RBCSF_LABELS = [weight_label(weight) for weight in WEIGHTS]
CONTENDERS: dict[str, tuple[str, dict[str, Any]]] = {
    **{weight_label(weight): ("rbcsf", {"speed_weight": float(weight)}) for weight in WEIGHTS},
    "random": ("random", {}),
    "FedCS(3)": ("fedcs", {"deadline": 3.0}),
}


def paper_plans(seeds: int, rounds: int, labels: Sequence[str] = tuple(CONTENDERS), **options: Any) -> Plans:
    """The paper's contenders in the paper's world, one plan a seed."""
    return {
        label: [
            RunPlan(CONTENDERS[label][0], rounds, seed, CONTENDERS[label][1], label=label, **options)
            for seed in range(seeds)
        ]
        for label in labels
    }


def weighted_plans(policy: str, weights: Mapping[str, float], seeds: int, rounds: int) -> dict[str, list[RunPlan]]:
    """Long runs of a policy at several speed weights, by label; only who was chosen, and the times, are kept."""
    return {
        label: [RunPlan(policy, rounds, seed, {"speed_weight": weight}, keep="choices") for seed in range(seeds)]
        for label, weight in weights.items()
    }


class PaperComparison(Experiment):
    """What the three experiments share: their runs."""

    def plans(self, seeds: int, rounds: int | None = None) -> Plans:
        """Weights 1, 5, 20 and 50, random and FedCS(3), in the paper's world."""
        return paper_plans(seeds, rounds or ROUNDS)


class Queues(PaperComparison):
    """The paper's figure of queue lengths."""

    name = "queues"
    title = "Turns owed"
    about = (
        "The mean of what clients are owed, round by round. A queue that flattens keeps its promise in the long run."
    )

    def findings(self, runs: Runs) -> Findings:
        """When and where the mean debt settles."""
        owed = {label: runs.curves(label, _mean_owed) for label in RBCSF_LABELS}
        fifth = max(next(iter(owed.values())).shape[1] // 5, 1)
        levels = [Group(label, curves[:, -fifth:].mean(axis=1)) for label, curves in owed.items()]
        growth = [
            Group(
                group.label, group.values / np.maximum(owed[group.label][:, -2 * fifth : -fifth].mean(axis=1), 1e-9) - 1
            )
            for group in levels
        ]
        settled = [Group(group.label, _first_reach(owed[group.label], 0.9 * group.values)) for group in levels]
        claims = [
            below("flattens", "mean owed grows by less than 5 % from the last fifth but one to the last", growth, 0.05),
            ascending("higher level", "a larger speed weight settles at a higher level of mean owed (turns)", levels),
            ascending("later", "a larger speed weight reaches 90 % of its level in a later round (round)", settled),
        ]
        return Findings(claims, {"queues": _curves_table(owed)})

    def draw(self, findings: Findings) -> Figure:
        """Mean owed against rounds."""
        with figure() as drawn:
            axes = drawn.subplots()
            _draw_curves(axes, findings.tables["queues"], RBCSF_LABELS)
            axes.set(title="Turns owed to a client, mean over clients", xlabel="round", ylabel="turns owed")
            axes.legend()
            return drawn


class TrainingTime(PaperComparison):
    """The paper's figure of training time."""

    name = "training-time"
    title = "Training time"
    about = "Time since the start, round by round: the sum of the rounds' durations."

    def findings(self, runs: Runs) -> Findings:
        """Who is done first."""
        clocks = {label: runs.curves(label, lambda columns: np.cumsum(columns.durations)) for label in runs.labels}
        totals = {label: Group(label, curves[:, -1] / 60) for label, curves in clocks.items()}
        by_speed = ["FedCS(3)", *reversed(RBCSF_LABELS), "random"]
        saved = {
            label: Group(label, 1 - group.values / totals["random"].values)
            for label, group in totals.items()
            if label != "random"
        }
        claims = [
            ascending(
                "random slowest",
                "every weight of RBCS-F takes less time than random (minutes)",
                [
                    max((totals[label] for label in RBCSF_LABELS), key=lambda group: group.values.mean()),
                    totals["random"],
                ],
            ),
            ascending(
                "larger weight, shorter",
                "RBCS-F takes less time with a larger speed weight (minutes)",
                [totals[label] for label in reversed(RBCSF_LABELS)],
            ),
            ascending(
                "FedCS(3) shortest",
                "FedCS(3) takes the least time (minutes)",
                [
                    totals["FedCS(3)"],
                    min((totals[label] for label in by_speed[1:]), key=lambda group: group.values.mean()),
                ],
            ),
        ]
        table: Table = {
            "contender": by_speed,
            "minutes": [float(totals[label].values.mean()) for label in by_speed],
            "minutes_band": [float(mean_confidence_interval(totals[label].values)[1]) for label in by_speed],
            "time_saved": [float(saved[label].values.mean()) if label in saved else 0.0 for label in by_speed],
        }
        return Findings(claims, {"training-time": _curves_table(clocks, scale=1 / 60), "training-time-totals": table})

    def draw(self, findings: Findings) -> Figure:
        """Minutes against rounds."""
        with figure() as drawn:
            axes = drawn.subplots()
            _draw_curves(axes, findings.tables["training-time"], ["random", *RBCSF_LABELS, "FedCS(3)"])
            axes.set(title="Time since the start", xlabel="round", ylabel="minutes")
            axes.legend()
            return drawn


class PullRecord(PaperComparison):
    """The paper's figure of how often each client was chosen."""

    name = "pull-record"
    title = "Turns taken"
    about = "How often each client was chosen, least chosen first: fair policies are flat, unfair ones steep."

    def findings(self, runs: Runs) -> Findings:
        """Who is even."""
        spreads = {label: runs.each(label, lambda columns: spread(columns.turns)) for label in runs.labels}
        evenness = {label: runs.each(label, lambda columns: jain_index(columns.turns)) for label in runs.labels}
        sorted_turns = {
            label: runs.curves(label, lambda columns: np.sort(columns.turns).astype(np.float64))
            for label in runs.labels
        }
        claims: list[Claim] = [
            ascending(
                "spread grows",
                "the standard deviation of turns grows with the speed weight",
                [spreads[label] for label in RBCSF_LABELS],
            ),
            ascending(
                "FedCS(3) most uneven",
                "FedCS(3) spreads turns more than any other",
                [
                    max(
                        (group for label, group in spreads.items() if label != "FedCS(3)"),
                        key=lambda group: group.values.mean(),
                    ),
                    spreads["FedCS(3)"],
                ],
            ),
            above(
                "random and small weights even",
                "Jain's index of turns is above 0.95 for random and weight 1",
                [evenness["random"], evenness[RBCSF_LABELS[0]]],
                0.95,
            ),
        ]
        table: Table = {
            "contender": runs.labels,
            "spread_of_turns": [float(spreads[label].values.mean()) for label in runs.labels],
            "jain_index": [float(evenness[label].values.mean()) for label in runs.labels],
        }
        return Findings(claims, {"pull-record": _curves_table(sorted_turns, "client"), "pull-record-evenness": table})

    def draw(self, findings: Findings) -> Figure:
        """The paper's strips, one a policy, and the same as curves."""
        table = findings.tables["pull-record"]
        labels = ["random", *RBCSF_LABELS, "FedCS(3)"]
        with figure(8.0, 4.4) as drawn:
            strips, curves = drawn.subplots(1, 2)
            turns = np.array([np.asarray(table[f"{label} mean"]) for label in labels])
            image = strips.imshow(turns, aspect="auto", cmap="cividis", interpolation="nearest")
            strips.set(title="Turns of each client", xlabel="clients, least chosen first")
            strips.set_yticks(range(len(labels)), labels)
            drawn.colorbar(image, ax=strips, label="turns", shrink=0.8)
            _draw_curves(curves, table, labels, "client")
            curves.set(title="the same as curves", xlabel="clients, least chosen first", ylabel="turns")
            return drawn


class Overview(PaperComparison):
    """The picture of the README: what is saved, and who gets what."""

    name = "overview"
    title = "At a glance"
    about = "Time since the start, and the share of rounds of each client."

    def findings(self, runs: Runs) -> Findings:
        """No claims, only the two curves."""
        times, shares = overview_tables({label: list(runs.of(label)) for label in runs.labels})
        return Findings([], {"overview-time": times, "overview-shares": shares})

    def draw(self, findings: Findings) -> Figure:
        """Two panels side by side."""
        labels = ["random", *RBCSF_LABELS, "FedCS(3)"]
        return draw_overview(labels, findings.tables["overview-time"], findings.tables["overview-shares"])


def overview_tables(runs: Mapping[str, Sequence[RoundColumns]]) -> tuple[Table, Table]:
    """Minutes since the start, round by round, and sorted shares of rounds: one run a seed of each contender."""
    clocks = {label: np.stack([np.cumsum(one.durations) for one in own]) for label, own in runs.items()}
    shares = {label: np.stack([np.sort(one.turns) / len(one.rounds) for one in own]) for label, own in runs.items()}
    return _curves_table(clocks, scale=1 / 60), _curves_table(shares, "client")


def draw_overview(labels: Sequence[str], times: Table, shares: Table, promised: float = RATE) -> Figure:
    """What is saved, and who gets what."""
    with figure(9.0, 3.7) as drawn:
        time, share = drawn.subplots(1, 2)
        _draw_curves(time, times, labels)
        _draw_curves(share, shares, labels, "client")
        share.axhline(promised, color="black", linestyle=":", linewidth=1)
        last = float(np.asarray(shares["client"])[-1])
        share.annotate(
            "promised", (last, promised), xytext=(0, -12), textcoords="offset points", fontsize=9, ha="right"
        )
        time.set(title="Training takes less time", xlabel="round", ylabel="minutes since the start")
        share.set(title="and this is what each client gets", xlabel="clients, least chosen first")
        share.set_ylabel("share of rounds")
        time.legend()
        return drawn


def _mean_owed(columns: Any) -> FloatArray:
    means: FloatArray = owed_after_each_round(columns, RATE).mean(axis=1)
    return means


def _first_reach(curves: FloatArray, levels: FloatArray) -> FloatArray:
    """The first round in which each curve reaches its level."""
    first: FloatArray = (curves >= levels[:, None]).argmax(axis=1) + 1.0
    return first


def _curves_table(curves: dict[str, FloatArray], x: str = "round", scale: float = 1.0) -> dict[str, FloatArray]:
    table: dict[str, FloatArray] = {x: np.arange(1.0, next(iter(curves.values())).shape[1] + 1)}
    for label, rows in curves.items():
        mean, band = mean_confidence_interval(rows * scale)
        table[f"{label} mean"], table[f"{label} band"] = np.asarray(mean), np.asarray(band)
    return table


def _draw_curves(axes: Any, table: Any, labels: Sequence[str], x: str = "round") -> None:
    for place, label in enumerate(labels):
        curve(
            axes,
            label,
            np.asarray(table[x]),
            np.asarray(table[f"{label} mean"]),
            np.asarray(table[f"{label} band"]),
            place,
        )
    axes.margins(x=0.01)
    axes.set_ylim(bottom=0)
