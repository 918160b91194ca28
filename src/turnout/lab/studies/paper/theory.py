"""The paper's theorems, measured: long-run rates, regret and its bound."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from turnout.kernel.arrays import FloatArray
from turnout.lab.analysis.theory import regret, regret_bound
from turnout.lab.columns import RoundColumns
from turnout.lab.drawing.palette import styles_of
from turnout.lab.drawing.style import curve, figure, legend_outside, note, thin_curve
from turnout.lab.studies.framework.claims import Claim, Group, all_greater, below
from turnout.lab.studies.framework.experiment import Contenders, Experiment, Findings, Runs
from turnout.lab.studies.paper.comparison import RATE, weight_label, weighted
from turnout.lab.studies.paper.stability import horizons_within
from turnout.lab.tables import Table
from turnout.lab.worlds.paper import PaperWorld

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WEIGHTS = (5, 20, 50)
LABELS = [weight_label(weight) for weight in WEIGHTS]
DELTA = 0.1
ORACLE = "fair oracle"
ORACLE_WEIGHT = 200.0


class Theory(Experiment):
    """Compares long runs with the theorems."""

    name = "theory"
    title = "Theory"
    about = (
        "Long runs compared with the theorems. The best fair policy has no closed form: the fair oracle, which knows "
        f"the expected times and has speed weight {ORACLE_WEIGHT:g}, is at least as slow; its mean round time "
        "over the second half of its runs is the reference for the regret. The bound is far above the measured regret, "
        "and not true in general. The paper promises rates in the limit: a client misses some turns in any number of "
        "rounds, so that the turns missing are divided by the rounds, at several horizons."
    )

    contenders: ClassVar[Contenders] = {**weighted(WEIGHTS), ORACLE: ("fair-oracle", {"speed_weight": ORACLE_WEIGHT})}
    rounds = 20_000
    keep = "choices"

    def findings(self, runs: Runs) -> Findings:
        """Measures the rates of the least-selected clients, and the regret."""
        reference = runs.each(ORACLE, second_half_mean)
        regrets = {label: _regrets(runs, label, reference) for label in LABELS}
        bounds = {label: _bound(weight, regrets[label].shape[1]) for label, weight in zip(LABELS, WEIGHTS, strict=True)}
        least = {label: runs.curves(label, _least_rate) for label in LABELS}
        claims = [rate_claim(least), regret_claim(regrets, bounds, reference)]
        return Findings(claims, {"theory": _table(regrets, bounds, least)})

    def draw(self, findings: Findings) -> Figure:
        """Draws the regret with its bound, and the rate of the least-selected client."""
        table = findings.tables["theory"]
        rounds = np.asarray(table["round"])
        with figure(9.0, 4.3) as drawn:
            left, right = drawn.subplots(1, 2)
            for label, style in styles_of(LABELS).items():
                curve(left, label, rounds, np.asarray(table[f"{label} regret"]), style=style, log=True)
                left.plot(rounds, np.asarray(table[f"{label} bound"]), color=style.colour, linestyle=":")
                curve(right, label, rounds, np.asarray(table[f"{label} least rate"]), style=style, log=True)
            left.set(
                title="Mean regret (bounds dotted)", xlabel="round", ylabel="regret, seconds per round", xscale="log"
            )
            left.set_yscale("symlog", linthresh=1.0)
            right.axhline(RATE, color="black", linestyle=":", linewidth=1)
            right.set(title="Rate of the least-selected client", xlabel="round", ylabel="share of rounds", xscale="log")
            note(right, "promised", (rounds[-1], RATE), (0, 3), ha="right")
            right.set_ylim(bottom=0)
            legend_outside(drawn, left, columns=3)
            return drawn


def rate_claim(least: Mapping[str, FloatArray]) -> Claim:
    """Returns the claim that every client gets its guaranteed rate in the limit.

    `least` holds, by weight, the rate of the least-selected client after each round, one row per seed. Every rate that
    tends to the guaranteed one from below, as those of slow clients do, misses some turns in any number of rounds.
    """
    missing = {
        label: [
            Group(f"{label}, {horizon:,} rounds", np.maximum(RATE - rates[:, horizon - 1], 0))
            for horizon in horizons_within(rates.shape[1])
        ]
        for label, rates in least.items()
    }
    # Where nothing is missing at the later horizon, there is nothing to fall.
    steps = [step for groups in missing.values() for step in pairwise(groups) if step[1].values.any()]
    turns = {
        f"{label}: turns missing at the end": Group(label, groups[-1].values * least[label].shape[1]).summary
        for label, groups in missing.items()
    }
    return Claim(
        "missing turns/rounds fall",
        f"the turns that the least-selected client lacks to {RATE:g} of the rounds, divided by the rounds, fall from "
        "each horizon to the next, at every weight (turns per round)",
        all_greater(steps) if steps else "holds",
        {**{group.label: group.summary for groups in missing.values() for group in groups}, **turns},
    )


def regret_claim(regrets: Mapping[str, FloatArray], bounds: Mapping[str, FloatArray], reference: Group) -> Claim:
    """Returns the claim that the regret is never above its bound.

    Args:
        regrets: The regret curves of each weight, one per seed, as rows.
        bounds: The bound of each weight, by round.
        reference: The mean round time of the fair oracle.
    """
    excess = [Group(label, (curves - bounds[label]).max(axis=1)) for label, curves in regrets.items()]
    numbers = {"fair oracle, mean round time": reference.summary}
    for label, curves in regrets.items():
        at_the_end = Group(label, curves[:, -1])
        numbers[f"{label}: regret at the end"] = f"{at_the_end.summary} (bound {bounds[label][-1]:.4g})"
    verdict = below("", "", excess, 0.0).verdict
    return Claim("regret below its bound", "the mean regret is never above the theorem's bound (s)", verdict, numbers)


def second_half_mean(columns: RoundColumns) -> float:
    """Returns the mean round time over the second half of the rounds, in seconds."""
    return float(columns.durations[len(columns.durations) // 2 :].mean())


def _regrets(runs: Runs, label: str, reference: Group) -> FloatArray:
    """Returns one regret curve per seed, each relative to the reference of the same seed."""
    return np.stack(
        [
            regret(columns.durations, np.full(len(columns.durations), best))
            for columns, best in zip(runs.of(label), reference.values, strict=True)
        ]
    )


def _least_rate(columns: RoundColumns) -> FloatArray:
    turns = np.cumsum(columns.chosen_mask, axis=0, dtype=np.int32)
    rates: FloatArray = turns.min(axis=1) / np.arange(1, len(turns) + 1)
    return rates


def _bound(weight: float, rounds: int) -> FloatArray:
    world = PaperWorld()
    return regret_bound(
        np.arange(1, rounds + 1),
        clients=world.clients,
        guaranteed_rate=RATE,
        speed_weight=float(weight),
        delta=DELTA,
        **world.bounds(),
    )


def _table(
    regrets: Mapping[str, FloatArray], bounds: Mapping[str, FloatArray], least: Mapping[str, FloatArray]
) -> Table:
    """Returns the curves of the figure, as means over seeds."""
    table: dict[str, FloatArray] = {}
    for label in LABELS:
        table["round"], table[f"{label} regret"] = thin_curve(regrets[label].mean(axis=0))
        table[f"{label} bound"] = thin_curve(bounds[label])[1]
        table[f"{label} least rate"] = thin_curve(least[label].mean(axis=0))[1]
    return table
