"""The confidence band of the paper's lemma, for all clients: when it holds, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from turnout.lab.analysis.lemma import AllEstimates, estimate_all, required_exploration
from turnout.lab.analysis.statistics import with_bands
from turnout.lab.drawing.palette import OTHERS, style_of
from turnout.lab.drawing.style import figure, legend_outside, points
from turnout.lab.studies.framework.claims import Claim, Group, Verdict, above, lowest
from turnout.lab.studies.framework.experiment import Contenders, Experiment, Findings, Runs
from turnout.lab.tables import Table, as_columns
from turnout.lab.worlds.paper import PaperWorld
from turnout.policies.rbcsf import ConstantExploration, TheoreticalExploration

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DELTA = 0.1
#: The first one is that of the paper's experiments.
EXPLORATIONS = (0.1, 0.3, 1, 3, 6, 10, 12, 15, 20, 30)
SCHEDULED, RANDOM = "the lemma's schedule", "random"
#: Most optimistic times have to be above 0 for a band that tells clients apart.
INFORMATIVE = 0.5


def exploration_label(exploration: float) -> str:
    """Returns the label of RBCS-F with a constant exploration."""
    return f"exploration {exploration:g}"


CONSTANTS = {exploration_label(exploration): float(exploration) for exploration in EXPLORATIONS}


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
            rows = np.array(
                [
                    _measure(estimate_all(columns, PaperWorld(plan.seed)), _schedule(label))
                    for columns, plan in zip(runs.of(label), runs.plans_of(label), strict=True)
                ]
            )
            for column, measure in enumerate(measures):
                measures[measure][label] = Group(label, rows[:, column])
        times = {label: runs.each(label, lambda columns: float(columns.durations.mean())) for label in runs.labels}
        rounds = runs.plans_of(SCHEDULED)[0].rounds
        claims = lemma_claims(measures["coverage"], measures["informative"], times, rounds)
        return Findings(claims, {"lemma": _table({**measures, "mean_round": times}, rounds)})

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


def _table(measures: Mapping[str, Mapping[str, Group]], rounds: int) -> Table:
    """Returns one row per contender; random has round times only."""
    labels = [*CONSTANTS, SCHEDULED, RANDOM]
    widths = {**CONSTANTS, SCHEDULED: scheduled_widths(rounds)[1]}
    rows = []
    for label in labels:
        measured = {measure: groups[label].values for measure, groups in measures.items() if label in groups}
        exploration = widths.get(label, np.nan)
        rows.append({"contender": label, "largest_exploration": exploration, **with_bands(measured)})
    return as_columns(rows)
