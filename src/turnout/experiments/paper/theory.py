"""The paper's theorems, measured: long-run rates, regret and its bound, the confidence band of the lemma."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from turnout.analysis.metrics import round_of_each_row
from turnout.analysis.statistics import mean_confidence_interval
from turnout.analysis.theory import lemma_coverage, long_run_margin, regret, regret_bound
from turnout.experiments.framework.claims import Claim, Group, above, below
from turnout.experiments.framework.drawing import colour_of, figure, thin_curve
from turnout.experiments.framework.experiment import Experiment, Findings, Plans, Runs, Table
from turnout.experiments.paper.comparison import RATE, weight_label, weighted_plans
from turnout.kernel.arrays import FloatArray, IntArray
from turnout.kernel.exploration import TheoreticalExploration
from turnout.simulator.paper import PaperWorld
from turnout.simulator.plans import RunPlan
from turnout.store import RoundColumns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WEIGHTS = (5, 20, 50)
ROUNDS = 20_000
LEMMA_ROUNDS = 500
DELTA = 0.1
ORACLE = "fair oracle"
ORACLE_WEIGHT = 200.0
SCHEDULED = "theoretical exploration"


class Theory(Experiment):
    """Compares long runs with the theorems."""

    name = "theory"
    title = "Theory"
    about = (
        "Long runs compared with the theorems. The best fair policy has no closed form: the fair oracle, which knows "
        f"the expected times and has speed weight {ORACLE_WEIGHT:g}, approaches it from above; its mean round time "
        "over the second half of its runs is the reference for the regret. The bound is far above the measured regret: "
        "it shows that regret vanishes up to a constant, not how large it is."
    )

    def plans(self, seeds: int, rounds: int | None = None) -> Plans:
        """Returns plans of 20,000 rounds for three weights and the oracle, and of 500 with the lemma's exploration."""
        long, short = rounds or ROUNDS, min(rounds or LEMMA_ROUNDS, LEMMA_ROUNDS)
        theory = {**PaperWorld().bounds(), "delta": DELTA}
        plans = {
            **weighted_plans("rbcsf", {weight_label(weight): float(weight) for weight in WEIGHTS}, seeds, long),
            **weighted_plans("fair-oracle", {ORACLE: ORACLE_WEIGHT}, seeds, long),
        }
        plans[SCHEDULED] = [
            RunPlan("rbcsf", short, seed, {"exploration": "theory", "theory": theory}) for seed in range(seeds)
        ]
        return plans

    def findings(self, runs: Runs) -> Findings:
        """Measures the margins of the rates, the regret, and the coverage of the lemma's band."""
        labels = [weight_label(weight) for weight in WEIGHTS]
        margins = [runs.each(label, lambda columns: long_run_margin(columns, RATE)) for label in labels]
        reference = runs.each(ORACLE, _second_half_mean)
        regrets = {label: _regrets(runs, label, reference) for label in labels}
        bounds = {label: _bound(weight, regrets[label].shape[1]) for label, weight in zip(labels, WEIGHTS, strict=True)}
        excess = [Group(label, (regrets[label] - bounds[label]).max(axis=1)) for label in labels]
        least = {label: runs.curves(label, _least_rate) for label in labels}
        coverage = Group(
            SCHEDULED,
            np.array(
                [
                    _coverage(columns, plan)
                    for columns, plan in zip(runs.of(SCHEDULED), runs.plans_of(SCHEDULED), strict=True)
                ]
            ),
        )
        claims = [
            _margins_claim(margins, least),
            _regret_claim(excess, regrets, reference, bounds),
            above(
                "lemma coverage",
                f"for at least {1 - DELTA:g} of the clients, the true mean is always inside the lemma's band",
                [coverage],
                1 - DELTA,
            ),
        ]
        return Findings(claims, {"theory": _table(labels, regrets, bounds, least)})

    def draw(self, findings: Findings) -> Figure:
        """Draws the regret with its bound, and the rate of the least-selected client."""
        table = findings.tables["theory"]
        rounds = np.asarray(table["round"])
        with figure(8.0, 3.8) as drawn:
            left, right = drawn.subplots(1, 2)
            for weight in WEIGHTS:
                label = weight_label(weight)
                left.plot(rounds, np.asarray(table[f"{label} regret"]), color=colour_of(label), label=label)
                left.plot(rounds, np.asarray(table[f"{label} bound"]), color=colour_of(label), linestyle=":")
                right.plot(rounds, np.asarray(table[f"{label} least rate"]), color=colour_of(label), label=label)
            left.set(title="Mean regret (bounds dotted)", xlabel="round", ylabel="seconds per round", xscale="log")
            left.set_yscale("symlog", linthresh=1.0)
            right.axhline(RATE, color="black", linestyle=":", linewidth=1)
            right.set(title="Rate of the least-selected client", xlabel="round", ylabel="share of rounds", xscale="log")
            right.set_ylim(bottom=0)
            left.legend(loc="lower left")
            return drawn


def _second_half_mean(columns: RoundColumns) -> float:
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


def _coverage(columns: RoundColumns, plan: RunPlan) -> float:
    rounds: IntArray = columns.rounds[round_of_each_row(columns)]
    truth = PaperWorld(plan.seed).expected_times(rounds, columns.chosen, columns.contexts)
    schedule = TheoreticalExploration(**plan.settings["theory"])
    return lemma_coverage(columns, truth, schedule).clients


def _regret_claim(
    excess: list[Group], regrets: dict[str, FloatArray], reference: Group, bounds: dict[str, FloatArray]
) -> Claim:
    statement = "the mean regret is never above the theorem's bound"
    verdict = below("", "", excess, 0.0).verdict
    numbers = {"fair oracle, mean round time": reference.summary}
    for label, curves in regrets.items():
        at_the_end = Group(label, curves[:, -1])
        numbers[f"{label}: regret at the end"] = f"{at_the_end.summary} (bound {bounds[label][-1]:.4g})"
    return Claim("regret below its bound", statement, verdict, numbers)


def _margins_claim(margins: list[Group], least: dict[str, FloatArray]) -> Claim:
    """The verdict is exact: no client may be below its rate on any seed."""
    lowest = min(float(group.values.min()) for group in margins)
    numbers = {"smallest margin of any client": f"{lowest:.3g}"}
    for label, curves in least.items():
        numbers[f"{label}: least rate at the end"] = Group(label, curves[:, -1]).summary
    statement = "the long-run rate of every client is at least the guaranteed rate minus owed/rounds"
    return Claim("long-run rates", statement, "holds" if lowest >= 0 else "does not hold", numbers)


def _table(
    labels: list[str],
    regrets: dict[str, FloatArray],
    bounds: dict[str, FloatArray],
    least: dict[str, FloatArray],
) -> Table:
    table: dict[str, FloatArray] = {}
    for label in labels:
        mean_regret = np.asarray(mean_confidence_interval(regrets[label])[0])
        table["round"], table[f"{label} regret"] = thin_curve(mean_regret)
        table[f"{label} bound"] = thin_curve(bounds[label])[1]
        table[f"{label} least rate"] = thin_curve(np.asarray(mean_confidence_interval(least[label])[0]))[1]
    return table
