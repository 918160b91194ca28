"""Training with FairPace: the time until a model is as accurate as with random selection, and the price of fairness."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np

from turnout.kernel.certificate import DEFAULT_TOLERANCE
from turnout.lab.analysis.promise import shortfalls
from turnout.lab.analysis.statistics import UNIT_RANGE
from turnout.lab.columns import RoundColumns, Table, as_columns
from turnout.lab.drawing.palette import OTHERS, Style
from turnout.lab.drawing.style import Axes, Figure, curve, figure, legend_outside, points
from turnout.lab.studies.framework.claims import Claim, Group, about, above, ascending, below, highest, lowest
from turnout.lab.studies.framework.experiment import Contenders, Findings, Runs
from turnout.lab.studies.paper.accuracy import AccuracyExperiment, settings_table
from turnout.lab.studies.paper.comparison import CONTENDERS, RATE, weight_label
from turnout.lab.studies.paper.learning_curves import final_accuracies, measure_curves, time_to_target
from turnout.lab.studies.paper.panels import Curves, Panel, summary_table, target_of

#: The targets as shares of random's final accuracy, by the end of the names of their columns.
LEVELS: Mapping[str, float] = {"80": 0.8, "90": 0.9, "95": 0.95}
HIGHEST = max(LEVELS.values())
#: A quarter of an equal share of the rounds.
LOW_RATE = 0.05
#: A final accuracy that is lower by at most this much counts as equal.
EQUAL_ACCURACY = 0.01


def pace_label(rate: float, *, valued: bool = True) -> str:
    """Returns the label of FairPace with a guaranteed rate, with or without a value of turns."""
    return f"FairPace {rate:g}, value" if valued else f"FairPace {rate:g}"


def pace(rate: float, *, valued: bool = True) -> Contenders:
    """Returns FairPace with a guaranteed rate of all rounds; with a value of turns it has a head start, too."""
    promise = {"guaranteed_rate": rate, "accrual": "always", "tolerance": DEFAULT_TOLERANCE}
    more = {"value": "loss", "head_start": 2.0} if valued else {"value": None, "head_start": 0.0}
    return {pace_label(rate, valued=valued): ("fair-pace", promise | more)}


class PaceExperiment(AccuracyExperiment):
    """The base class: the time to each target, the final accuracy and the largest shortfall of each contender."""

    #: The contenders whose promise is claimed to be kept.
    promised: ClassVar[tuple[str, ...]]
    seeds = 5
    #: The constants of FairPace and the settings of local training were chosen on other seeds.
    first_seed = 200

    def findings(self, runs: Runs) -> Findings:
        """Computes the claims, and one row per panel and contender."""
        curves = self.curves_of(runs)
        behind = {
            panel: {
                label: Group(label, runs.each(f"{panel.name}, {label}", partial(_behind, contender)).values)
                for label, contender in self.contenders_of(panel).items()
            }
            for panel in self.panels
        }
        claims = [
            claim
            for panel in self.panels
            for claim in about(panel.name, [*self.panel_claims(panel, curves[panel]), self._kept(behind[panel])])
        ]
        promises = [
            {
                "judged_rate": judged_rate(self.contenders[label]),
                "largest_shortfall": round(float(group.values.max()), 6),
            }
            for by_label in behind.values()
            for label, group in by_label.items()
        ]
        table = {**summary_table(curves, self.reference, LEVELS), **as_columns(promises)}
        return Findings(claims, {self.name: table, "accuracy-settings": settings_table(self.tasks)})

    def _kept(self, behind: Mapping[str, Group]) -> Claim:
        """Returns the claim that no client of any run was beyond the tolerance."""
        worst = [Group(label, np.full(2, behind[label].values.max())) for label in self.promised]
        return below(
            "promise kept",
            f"FairPace with value leaves no client more than {DEFAULT_TOLERANCE:g} turns behind, in any round of any "
            "seed (turns)",
            worst,
            DEFAULT_TOLERANCE,
        )


def as_accurate_claim(label: str, curves: Curves, reference: str) -> Claim:
    """Returns the claim that the final accuracy of a contender is not noticeably below that of the reference."""
    own, other = (final_accuracies(name, curves[name]).values for name in (label, reference))
    return above(
        f"as accurate as {reference}",
        f"the final accuracy of {label} is at most {EQUAL_ACCURACY:g} below that of {reference} (difference)",
        [Group(f"{label} − {reference}", own - other)],
        -EQUAL_ACCURACY,
    )


def judged_rate(contender: tuple[str, Mapping[str, Any]]) -> float:
    """Returns the guaranteed rate of a contender, or the rate by which one without a promise is judged."""
    policy, settings = contender
    return float(settings.get("guaranteed_rate", RATE if policy == "rbcsf" else LOW_RATE))


def rows_of_panel(table: Table, panel: Panel) -> dict[str, Any]:
    """Returns the rows of a panel, as arrays by column."""
    columns = {name: np.asarray(values) for name, values in table.items()}
    rows = (columns["dataset"] == panel.dataset) & (columns["gamma"].astype(str) == panel.column)
    return {name: values[rows] for name, values in columns.items()}


def _behind(contender: tuple[str, Mapping[str, Any]], columns: RoundColumns) -> float:
    """Returns the largest shortfall of any client after any round of a run, in turns."""
    return shortfalls(columns, judged_rate(contender)).largest


#: From no promise to an equal share of all rounds, 8 of 40.
RATES = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2)
NONE, *PROMISES, EQUAL = (pace_label(rate) for rate in RATES)


class PriceOfFairness(PaceExperiment):
    """FairPace with value at several rates, beside random."""

    name = "price-of-fairness"
    title = "The price of fairness"
    about = (
        f"FairPace with value, by the rate of all rounds that every client is promised, from none to an equal share. "
        f"Left: simulated minutes until the test accuracy reaches {HIGHEST:.0%} of the final accuracy of random. "
        "Right: final accuracy. Mean and 95 % confidence interval over seeds; the dotted lines are random."
    )
    contenders: ClassVar[Contenders] = {
        "random": ("random", {}),
        **{label: contender for rate in RATES for label, contender in pace(rate).items()},
    }
    promised = (*PROMISES, EQUAL)
    gammas = (0.1, 1)
    by_class = (0.1,)

    def panel_claims(self, panel: Panel, curves: Curves) -> list[Claim]:  # noqa: ARG002
        """Returns claims about the cost of a larger rate, and about the ends of the scale."""
        target = target_of(curves, self.reference, HIGHEST)
        late = {label: time_to_target(label, seeds, target, "minutes") for label, seeds in curves.items()}
        final = {label: final_accuracies(label, seeds) for label, seeds in curves.items()}
        reaches = f"reaches accuracy {target:.3f}"
        return [
            ascending(
                "a larger rate takes longer",
                f"FairPace with value {reaches} later at a larger guaranteed rate (minutes)",
                [late[label] for label in (*PROMISES, EQUAL)],
            ),
            ascending(
                "an equal share ahead of random",
                f"{EQUAL} {reaches} before random (minutes)",
                [late[EQUAL], late["random"]],
            ),
            as_accurate_claim(EQUAL, curves, self.reference),
            ascending(
                "an equal share more accurate than no promise",
                f"the final accuracy of {EQUAL} is higher than that of {NONE}",
                [final[NONE], final[EQUAL]],
            ),
        ]

    def draw(self, findings: Findings) -> Figure:
        """Draws one row per dataset: the time to the highest target, and the final accuracy, one line per partition."""
        table = findings.tables[self.name]
        measures = {
            "minutes_to_95": (f"minutes to {HIGHEST:.0%}\nof random's accuracy", (0.0, np.inf)),
            "final_accuracy": ("final accuracy, from 0 to 1", UNIT_RANGE),
        }
        with figure(9.0, 0.8 + 2.9 * len(self.tasks)) as drawn:
            grid = drawn.subplots(len(self.tasks), len(measures), squeeze=False, sharex=True)
            for row, task in zip(grid, self.tasks, strict=True):
                panels = [panel for panel in self.panels if panel.dataset == task.dataset]
                for axes, (measure, (label, limits)) in zip(row, measures.items(), strict=True):
                    for panel, style in zip(panels, OTHERS, strict=False):
                        rows = rows_of_panel(table, panel)
                        own = rows["contender"] != self.reference
                        means, bands = (rows[name].astype(np.float64) for name in (measure, f"{measure}_band"))
                        rates, error = rows["judged_rate"][own].astype(np.float64), np.nan_to_num(bands[own])
                        curve(axes, panel.split, rates, means[own], error, style=style, limits=limits)
                        axes.axhline(float(means[~own][0]), color=style.colour, linestyle=":", linewidth=1)
                    axes.set(title=task.dataset, ylabel=label)
            for axes in grid[-1]:
                axes.set(xlabel="guaranteed rate, of all rounds", xticks=RATES)
            legend_outside(drawn, grid[0][0], columns=3)
            return drawn


#: How a figure shows the time to each target.
MARKERS = {"80": Style("#999999", marker="o"), "90": Style("#e69f00", marker="s"), "95": Style("#0072b2", marker="D")}
#: FairPace has to reach the highest target in this share of Oort's time.
FASTER = 0.9
#: The number of seeds of the contenders that no claim is about.
FEW_SEEDS = 3

PLAIN, VALUED = pace_label(LOW_RATE, valued=False), pace_label(LOW_RATE)
VALUED_HIGH = pace_label(RATE)
SLOW, FAST, FEDCS = weight_label(1), weight_label(20), "FedCS(3)"
GUARDED = " + guarantee"
LOSS_AWARE = {"Oort": "oort", "Power-of-Choice": "power-of-choice", "Active FL": "active-fl"}
#: The panels of the contenders that no claim is about; all others are in every panel.
ONLY_IN: Mapping[str, tuple[str, ...]] = {
    SLOW: ("0.1", "1", "iid"),
    FEDCS: ("1", "iid", "0.1, speed by class"),
    **{f"{label}{suffix}": ("0.1", "1") for label in LOSS_AWARE if label != "Oort" for suffix in ("", GUARDED)},
}


class TimeToAccuracy(PaceExperiment):
    """Minutes to 80, 90 and 95 % of random's final accuracy, final accuracies, and how far clients fell behind."""

    name = "time-to-accuracy"
    title = "Time to accuracy"
    about = (
        "Simulated minutes until the test accuracy reaches 80, 90 and 95 % of the final accuracy of random, mean and "
        "95 % confidence interval over seeds. The number after FairPace is its guaranteed rate of all rounds. For a "
        "run that never reaches a target, its whole time is a lower bound."
    )
    contenders: ClassVar[Contenders] = {
        "random": ("random", {}),
        **{label: CONTENDERS[label] for label in (SLOW, FAST, FEDCS)},
        **{label: (policy, {}) for label, policy in LOSS_AWARE.items()},
        **{
            f"{label}{GUARDED}": (
                "with-guarantee",
                {"policy": policy, "settings": {}, "guaranteed_rate": LOW_RATE, "accrual": "always"},
            )
            for label, policy in LOSS_AWARE.items()
        },
        **pace(LOW_RATE, valued=False),
        **pace(RATE, valued=False),
        **pace(LOW_RATE),
        **pace(RATE),
    }
    promised = (VALUED, VALUED_HIGH)
    gammas = (0.1, 0.3, 1, "iid")
    by_class = (0.1,)

    def contenders_of(self, panel: Panel) -> Contenders:
        """Returns the contenders of a panel."""
        return {
            label: contender
            for label, contender in self.contenders.items()
            if panel.column in ONLY_IN.get(label, (panel.column,))
        }

    def seeds_of(self, label: str, seeds: int) -> int:
        """Returns the number of seeds of a contender if the others have `seeds`."""
        return min(seeds, FEW_SEEDS) if label in ONLY_IN else seeds

    def panel_claims(self, panel: Panel, curves: Curves) -> list[Claim]:  # noqa: ARG002
        """Returns claims about the time to the highest target, about final accuracies and about the whole time."""
        compared = {label: seeds for label, seeds in curves.items() if label not in ONLY_IN}
        target = target_of(curves, self.reference, HIGHEST)
        late = {label: time_to_target(label, seeds, target, "minutes") for label, seeds in compared.items()}
        reaches = f"reaches accuracy {target:.3f}"
        late["share"] = Group(f"{FASTER:g} of the time of Oort", FASTER * late["Oort"].values, late["Oort"].never)
        final = {label: final_accuracies(label, seeds) for label, seeds in compared.items()}
        whole = {label: measure_curves(label, seeds, lambda run: run.duration) for label, seeds in compared.items()}
        ahead = {
            f"in {FASTER:g} of Oort's time": (VALUED, "share"),
            "ahead of RBCS-F 20": (VALUED, FAST),
            "ahead of Oort with a guarantee": (VALUED, f"Oort{GUARDED}"),
            "ahead of FairPace without value": (VALUED, PLAIN),
            f"FairPace {RATE:g} ahead of random": (VALUED_HIGH, "random"),
        }
        return [
            *(
                lowest(name, f"{own} {reaches} before {late[other].label} (minutes)", late, own, [other])
                for name, (own, other) in ahead.items()
            ),
            as_accurate_claim(VALUED_HIGH, curves, self.reference),
            highest(
                "more accurate than RBCS-F 20",
                f"the final accuracy of {VALUED_HIGH} is higher than that of {FAST}",
                final,
                VALUED_HIGH,
                [FAST],
            ),
            lowest(
                "shorter than random",
                f"all rounds of {VALUED_HIGH} take less time than those of random (minutes)",
                whole,
                VALUED_HIGH,
                ["random"],
            ),
        ]

    def draw(self, findings: Findings) -> Figure:
        """Draws the times to all targets: one row per dataset, one column per partition, one line per contender."""
        table, labels = findings.tables[self.name], list(self.contenders)[::-1]
        with figure(10.0, 0.9 + 3.1 * len(self.tasks)) as drawn:
            columns = len(self.panels) // len(self.tasks)
            grid = drawn.subplots(len(self.tasks), columns, squeeze=False, sharey=True, sharex="row")
            for axes, panel in zip(grid.ravel(), self.panels, strict=True):
                _draw_panel(axes, panel, table, labels)
            for row, task in zip(grid, self.tasks, strict=True):
                row[0].set_yticks(range(len(labels)), labels=labels)
                row[0].set_xlim(left=0)
                row[0].set_ylabel(task.dataset)
            legend_outside(drawn, grid[0][0], columns=len(MARKERS))
            return drawn


def _draw_panel(axes: Axes, panel: Panel, table: Table, labels: list[str]) -> None:
    """Draws the minutes to each target; an arrow instead of a point says that some runs never reached it."""
    rows = rows_of_panel(table, panel)
    heights = np.array([labels.index(label) for label in rows["contender"].tolist()])
    for level, style in MARKERS.items():
        minutes, missed = rows[f"minutes_to_{level}"], rows[f"never_at_{level}"] > 0
        bands = np.nan_to_num(rows[f"minutes_to_{level}_band"].astype(np.float64))
        x, y, error = (values[~missed] for values in (minutes, heights, bands))
        label = f"{LEVELS[level]:.0%} of random's accuracy"
        points(axes, x, y, style, xerr=error, linestyle="none", label=label)
        points(axes, minutes[missed], heights[missed], Style(style.colour, marker=">"), filled=False, linestyle="none")
    axes.set_title(panel.split.replace(", ", ",\n"), fontsize=9)
    axes.set_xlabel("simulated minutes")
    axes.grid(axis="y", linewidth=0.4, alpha=0.5)
