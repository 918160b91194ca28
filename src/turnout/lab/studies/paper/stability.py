"""The Lyapunov side of the paper, measured: queues over several horizons, their growth, and the bound of the proof."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from turnout.kernel.arrays import FloatArray
from turnout.lab.analysis.promise import owed_after_each_round
from turnout.lab.analysis.statistics import with_bands
from turnout.lab.analysis.theory import queue_bound
from turnout.lab.columns import RoundColumns, Table, as_columns
from turnout.lab.drawing.palette import styles_of
from turnout.lab.drawing.style import Figure, curve, figure, legend_outside, note, thin_curve
from turnout.lab.studies.framework.claims import Claim, Group, all_greater, below
from turnout.lab.studies.framework.experiment import Contenders, Experiment, Findings, Runs
from turnout.lab.studies.paper.comparison import CONTENDERS, RATE, RBCSF_LABELS, WEIGHTS, flattening_claim, weighted
from turnout.lab.worlds.paper import PaperWorld

ROUNDS = 20_000
HORIZONS = (500, 1000, 5000, ROUNDS)
#: A policy whose queues are not stable, for comparison.
UNSTABLE = "FedCS(3)"
#: The proof gives owed turns of the order T^0.5; mean-rate stability needs an exponent below 1.
EXPONENT = 0.5
MEAN, MOST, NORM = 0, 1, 2

#: For each contender an array (seeds, 3, rounds): the mean of the queues, the longest queue, and sqrt(Σ owed²).
QueueCurves = Mapping[str, FloatArray]


class Stability(Experiment):
    """Compares the queues of long runs with what the paper proves about them."""

    name = "stability"
    title = "Stability of the queues"
    about = (
        "Turns owed in long runs. Queues are mean-rate stable if owed turns divided by rounds tend to 0; the proof "
        "bounds the root of the sum of squared queues by sqrt(2 Γ T), whatever the speed weight, with "
        f"Γ = N (1 + rate²) / 2. {UNSTABLE} is shown as a policy without stable queues."
    )

    contenders: ClassVar[Contenders] = {**weighted(WEIGHTS), UNSTABLE: CONTENDERS[UNSTABLE]}
    rounds = ROUNDS
    keep = "choices"

    def findings(self, runs: Runs) -> Findings:
        """Measures the queues by round."""
        queues = {label: runs.curves(label, _queues) for label in runs.labels}
        tables = {"stability": _table(queues), "stability-horizons": _horizons(queues)}
        return Findings(stability_claims(queues), tables)

    def draw(self, findings: Findings) -> Figure:
        """Draws the longest queue divided by rounds, and the norm of the queues with the bound of the proof."""
        table = findings.tables["stability"]
        rounds = np.asarray(table["round"])
        with figure(9.0, 4.4) as drawn:
            left, right = drawn.subplots(1, 2)
            for label, style in styles_of((*RBCSF_LABELS, UNSTABLE)).items():
                longest, norm = (np.asarray(table[f"{label} {measure}"]) for measure in ("most owed/rounds", "norm"))
                curve(left, label, rounds, longest, style=style, log=True)
                curve(right, label, rounds, norm, style=style, log=True)
            right.plot(rounds, np.asarray(table["bound"]), color="black", linestyle=":", linewidth=1)
            end = rounds[-1], np.asarray(table["bound"])[-1]
            note(right, "bound sqrt(2 Γ T)", end, (0, 6), ha="right")
            left.set(title="Longest queue / rounds", xlabel="round", ylabel="turns per round", xscale="log")
            right.set(title="Root of the sum of squared queues", xlabel="round", ylabel="turns")
            right.set(xscale="log", yscale="log")
            left.set_ylim(bottom=0)
            legend_outside(drawn, left, columns=3)
            return drawn


def stability_claims(queues: QueueCurves) -> list[Claim]:
    """Returns the claims about the queues of RBCS-F; those of the unstable policy are only shown beside them."""
    means = {label: queues[label][:, MEAN] for label in RBCSF_LABELS}
    return [
        *(flattening_claim(means, horizon) for horizon in horizons_within(_rounds(queues))),
        _rates_claim(queues),
        _exponent_claim(queues),
        *_bound_claims(queues),
    ]


def horizons_within(rounds: int) -> list[int]:
    """Returns at least two horizons of a run with this number of rounds; the last one is the whole run."""
    return [*([horizon for horizon in HORIZONS if horizon < rounds] or [max(rounds // 4, 1)]), rounds]


def growth_exponent(owed: FloatArray) -> FloatArray:
    """Returns the exponent p of owed ~ T^p between the first and the last horizon, for each curve (row).

    Queues below the turns that one round adds count as that many, because an empty queue has no logarithm.
    """
    first, *_, last = horizons_within(owed.shape[1])
    early, late = (np.maximum(owed[:, horizon - 1], RATE) for horizon in (first, last))
    exponents: FloatArray = np.log(late / early) / np.log(last / first)
    return exponents


def _rates_claim(queues: QueueCurves) -> Claim:
    """Returns the claim that the longest queue, divided by the rounds, is smaller at each later horizon."""
    rates = {
        label: [
            Group(f"{label}, {horizon:,} rounds", curves[:, MOST, horizon - 1] / horizon)
            for horizon in horizons_within(_rounds(queues))
        ]
        for label, curves in queues.items()
    }
    steps = [(earlier, later) for label in RBCSF_LABELS for earlier, later in pairwise(rates[label])]
    return Claim(
        "owed/rounds falls",
        "the longest queue divided by the rounds falls from each horizon to the next, at every weight (turns per "
        f"round; {UNSTABLE} for comparison)",
        all_greater(steps),
        {group.label: group.summary for label in (*RBCSF_LABELS, UNSTABLE) for group in rates[label]},
    )


def _exponent_claim(queues: QueueCurves) -> Claim:
    """Returns the claim that the longest queue grows no faster than the square root of the rounds."""
    exponents = {label: Group(label, growth_exponent(curves[:, MOST])) for label, curves in queues.items()}
    first, *_, last = horizons_within(_rounds(queues))
    claim = below(
        "mean-rate stable",
        f"from round {first:,} to round {last:,}, the longest queue grows at most with the power {EXPONENT:g} of the "
        f"rounds at every weight, so that owed/rounds tends to 0 (exponent; {UNSTABLE} for comparison)",
        [exponents[label] for label in RBCSF_LABELS],
        EXPONENT,
    )
    return replace(claim, numbers={**claim.numbers, UNSTABLE: exponents[UNSTABLE].summary})


def _bound_claims(queues: QueueCurves) -> list[Claim]:
    """Returns the claims about the bound in the proof, as printed, as derived, and with the term that it omits."""
    clients, slowest = PaperWorld().clients, PaperWorld().bounds()["R"]
    measured = dict(zip(RBCSF_LABELS, WEIGHTS, strict=True))
    norms = {label: queues[label][:, NORM] for label in measured}
    sums = {label: clients * queues[label][:, MEAN] for label in measured}
    plain = {label: _bound(queues) for label in measured}
    corrected = {label: _bound(queues, float(weight), slowest) for label, weight in measured.items()}
    return [
        _within(
            "queues within the bound of the proof",
            "in every round, the root of the sum of squared queues is at most sqrt(2 Γ T), at every weight",
            norms,
            plain,
        ),
        _within(
            "sum of the queues within the printed bound",
            "in every round, the sum of the queues is at most sqrt(2 Γ T), as the paper prints it, at every weight",
            sums,
            plain,
        ),
        _within(
            "queues within the corrected bound",
            "in every round, the root of the sum of squared queues is at most sqrt(2 T (Γ + V K)), with the longest "
            f"expected time K = {slowest:g} s, at every weight",
            norms,
            corrected,
        ),
    ]


def _within(name: str, statement: str, curves: Mapping[str, FloatArray], bounds: Mapping[str, FloatArray]) -> Claim:
    ratios = {label: own / bounds[label] for label, own in curves.items()}
    claim = below(
        name,
        f"{statement} (largest ratio to the bound)",
        [Group(label, ratio.max(axis=1)) for label, ratio in ratios.items()],
        1.0,
    )
    numbers = dict(claim.numbers)
    for label, ratio in ratios.items():
        numbers[f"{label}: at the end"] = Group(label, ratio[:, -1]).summary
        numbers[f"{label}: rounds above the bound"] = Group(label, (ratio > 1).sum(axis=1)).summary
    return replace(claim, numbers=numbers)


def _bound(queues: QueueCurves, speed_weight: float = 0.0, slowest: float = 0.0) -> FloatArray:
    return queue_bound(
        np.arange(1, _rounds(queues) + 1),
        clients=PaperWorld().clients,
        guaranteed_rate=RATE,
        speed_weight=speed_weight,
        slowest=slowest,
    )


def _rounds(queues: QueueCurves) -> int:
    return int(next(iter(queues.values())).shape[2])


def _queues(columns: RoundColumns) -> FloatArray:
    owed = owed_after_each_round(columns, RATE)
    return np.stack([owed.mean(axis=1), owed.max(axis=1), np.sqrt((owed**2).sum(axis=1))])


def _table(queues: QueueCurves) -> Table:
    """Returns the curves of the figure, as means over seeds."""
    rounds = np.arange(1, _rounds(queues) + 1)
    table: dict[str, FloatArray] = {}
    table["round"], table["bound"] = thin_curve(_bound(queues))
    for label, curves in queues.items():
        table[f"{label} most owed/rounds"] = thin_curve(curves[:, MOST].mean(axis=0) / rounds)[1]
        table[f"{label} norm"] = thin_curve(curves[:, NORM].mean(axis=0))[1]
    return table


def _horizons(queues: QueueCurves) -> Table:
    """Returns the queues at each horizon: one row per contender and horizon, with half-widths of 95 % intervals."""
    rows: list[dict[str, Any]] = []
    bound = _bound(queues)
    for label, curves in queues.items():
        for horizon in horizons_within(_rounds(queues)):
            columns = {"mean_owed": MEAN, "most_owed": MOST, "norm": NORM}
            measures = {measure: curves[:, index, horizon - 1] for measure, index in columns.items()}
            place = {"contender": label, "rounds": horizon, "bound": float(bound[horizon - 1])}
            rows.append({**place, **with_bands(measures)})
    return as_columns(rows)
