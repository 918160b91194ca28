"""The paper's theorems, measured: long-run rates, regret and its bound, and the lemma's confidence band."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise, takewhile
from typing import ClassVar

import numpy as np

from turnout.kernel.arrays import FloatArray
from turnout.lab.analysis.statistics import with_bands
from turnout.lab.analysis.theory import AllEstimates, estimate_all, regret, regret_bound, required_exploration
from turnout.lab.columns import RoundColumns, Table, as_columns
from turnout.lab.drawing.palette import OTHERS, style_of, styles_of
from turnout.lab.drawing.style import Figure, curve, figure, legend_outside, note, points, thin_curve
from turnout.lab.studies.framework.claims import Claim, Group, Verdict, above, all_greater, below, lowest
from turnout.lab.studies.framework.experiment import Contenders, Experiment, Findings, Runs
from turnout.lab.studies.paper.comparison import RATE, weight_label, weighted
from turnout.lab.studies.paper.stability import horizons_within
from turnout.lab.worlds.paper import PaperWorld
from turnout.policies.rbcsf import ConstantExploration, TheoreticalExploration

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
    seeds = zip(runs.of(label), reference.values, strict=True)
    return np.stack([regret(columns.durations, np.full(len(columns), best)) for columns, best in seeds])


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


#: The first one is that of the paper's experiments.
EXPLORATIONS = (0.1, 0.3, 1, 3, 6, 10, 12, 15, 20, 30)
SCHEDULED, RANDOM = "the lemma's schedule", "random"
#: Most optimistic times have to be above 0 for a band that tells clients apart.
INFORMATIVE = 0.5


#: The labels of RBCS-F with a constant exploration.
CONSTANTS = {f"exploration {exploration:g}": float(exploration) for exploration in EXPLORATIONS}


class Lemma(Experiment):
    """Plays several explorations, and checks the lemma's band for each with the same exploration."""

    name = "lemma"
    title = "The lemma's confidence band"
    about = (
        "The lemma states that the true expected time of a client lies between its optimistic time and that time plus "
        f"twice the band, in all rounds, with probability {1 - DELTA:g}. Coverage is the share of all clients, "
        "selected or not, for which this is true in every round; an optimistic time of 0 is a band that says nothing. "
        "Each exploration is played and measured with itself, at speed weight 20."
    )

    contenders: ClassVar[Contenders] = {
        **{label: ("rbcsf", {"exploration": width}) for label, width in CONSTANTS.items()},
        SCHEDULED: ("rbcsf", {"exploration": "theory", "theory": {**PaperWorld().bounds(), "delta": DELTA}}),
        RANDOM: ("random", {}),
    }

    def findings(self, runs: Runs) -> Findings:
        """Measures coverage, the share of optimistic times above 0, the exploration needed, and round times."""
        measures: dict[str, dict[str, Group]] = {"coverage": {}, "informative": {}, "required": {}}
        for label in (*CONSTANTS, SCHEDULED):
            played = zip(runs.of(label), runs.plans_of(label), strict=True)
            estimates = (estimate_all(columns, PaperWorld(plan.seed)) for columns, plan in played)
            rows = np.array([_measure(each, _schedule(label)) for each in estimates])
            for column, measure in enumerate(measures):
                measures[measure][label] = Group(label, rows[:, column])
        times = {label: runs.each(label, lambda columns: float(columns.durations.mean())) for label in runs.labels}
        rounds = runs.plans_of(SCHEDULED)[0].rounds
        claims = lemma_claims(measures["coverage"], measures["informative"], times, rounds)
        return Findings(claims, {"lemma": _lemma_table({**measures, "mean_round": times}, rounds)})

    def draw(self, findings: Findings) -> Figure:
        """Draws coverage and round time against the constant exploration; the schedule is the last point."""
        table = {name: np.asarray(values) for name, values in findings.tables["lemma"].items()}
        played = ~np.isnan(table["coverage"])
        widths = table["largest_exploration"][played]
        with figure(9.0, 4.2) as drawn:
            left, right = drawn.subplots(1, 2)
            for axes, measure, style, label in (
                (left, "coverage", OTHERS[0], "clients always inside the band"),
                (left, "informative", OTHERS[1], "optimistic times above 0"),
                (right, "mean_round", style_of("RBCS-F"), "RBCS-F, mean round"),
            ):
                values, band = table[measure][played], np.nan_to_num(table[f"{measure}_band"][played])
                points(axes, widths, values, style, yerr=band, elinewidth=None, linestyle=style.line, label=label)
                axes.set(xscale="log", xlabel="exploration, no unit (last: schedule)")
                axes.set_ylim(bottom=0)
            left.axhline(1 - DELTA, color="black", linestyle=":", linewidth=1)
            left.set(title="Coverage (dotted: 1 − delta)", ylabel="share, from 0 to 1")
            right.axhline(float(table["mean_round"][~played][0]), color="black", linestyle="--", linewidth=1)
            right.set(title="Mean round (dashed: random)", ylabel="mean round time, seconds")
            legend_outside(drawn, left, columns=2)
            return drawn


def lemma_claims(
    coverage: Mapping[str, Group], informative: Mapping[str, Group], times: Mapping[str, Group], rounds: int
) -> list[Claim]:
    """Returns the claims about the lemma's band.

    Args:
        coverage: The share of clients that are always inside the band, by exploration.
        informative: The share of optimistic times above 0, by exploration.
        times: The mean round time in seconds, by exploration and of random.
        rounds: The number of rounds, which determines the largest exploration of the schedule.
    """
    smallest, largest = scheduled_widths(rounds)
    covered = _covered(coverage[SCHEDULED])
    return [
        replace(covered, numbers={**covered.numbers, "exploration": f"{smallest:.4g} to {largest:.4g}"}),
        above(
            "the lemma's band is informative",
            f"with its schedule, at least {INFORMATIVE:g} of the optimistic times are above 0, so that the lemma is "
            "not vacuous",
            [informative[SCHEDULED]],
            INFORMATIVE,
        ),
        _smaller_claim(coverage, smallest),
        replace(
            lowest(
                "the lemma's schedule saves time",
                "rounds with the lemma's schedule are shorter than random's (s)",
                times,
                SCHEDULED,
                [RANDOM],
            ),
            numbers={label: times[label].summary for label in (*CONSTANTS, SCHEDULED, RANDOM)},
        ),
    ]


def smallest_sufficient(coverage: Mapping[str, Group]) -> str | None:
    """Returns the label of the smallest constant exploration from which on the lemma's band holds, if there is one."""
    sufficient = takewhile(lambda label: _covered(coverage[label]).verdict == "holds", reversed(CONSTANTS))
    return next(reversed(list(sufficient)), None)


def scheduled_widths(rounds: int) -> tuple[float, float]:
    """Returns the exploration of the lemma's schedule in the first and in the last round."""
    schedule = _schedule(SCHEDULED)
    return schedule(1), schedule(rounds)


def _covered(coverage: Group) -> Claim:
    return above(
        "lemma coverage",
        f"with the lemma's schedule, at least {1 - DELTA:g} of all clients, selected or not, are inside its band in "
        "all rounds",
        [coverage],
        1 - DELTA,
    )


def _smaller_claim(coverage: Mapping[str, Group], schedule: float) -> Claim:
    """Returns the claim that a smaller exploration than that of the schedule is enough for the lemma."""
    smallest = smallest_sufficient(coverage)
    verdict: Verdict = "not decided" if smallest is None else "holds"
    if all(_covered(coverage[label]).verdict == "does not hold" for label in CONSTANTS):
        verdict = "does not hold"
    return Claim(
        "a smaller exploration is enough",
        f"a constant exploration below the schedule's smallest, {schedule:.4g}, covers at least {1 - DELTA:g} of all "
        "clients in all rounds",
        verdict,
        {
            "smallest": "none" if smallest is None else f"{CONSTANTS[smallest]:g}",
            **{label: coverage[label].summary for label in CONSTANTS},
            "at least": f"{1 - DELTA:g}",
        },
    )


def _schedule(label: str) -> Callable[[int], float]:
    if label == SCHEDULED:
        world = PaperWorld().bounds()
        return TheoreticalExploration(R=world["R"], S=world["S"], L=world["L"], delta=DELTA)
    return ConstantExploration(CONSTANTS[label])


def _measure(estimates: AllEstimates, schedule: Callable[[int], float]) -> tuple[float, float, float]:
    """Returns coverage, the share of optimistic times above 0, and the constant exploration that this run needed."""
    informative = float((estimates.optimistic(schedule) > 0).mean())
    return estimates.covered(schedule), informative, required_exploration(estimates, DELTA)


def _lemma_table(measures: Mapping[str, Mapping[str, Group]], rounds: int) -> Table:
    """Returns one row per contender; random has round times only."""
    labels = [*CONSTANTS, SCHEDULED, RANDOM]
    widths = {**CONSTANTS, SCHEDULED: scheduled_widths(rounds)[1]}
    rows = []
    for label in labels:
        measured = {measure: groups[label].values for measure, groups in measures.items() if label in groups}
        exploration = widths.get(label, np.nan)
        rows.append({"contender": label, "largest_exploration": exploration, **with_bands(measured)})
    return as_columns(rows)
