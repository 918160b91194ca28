"""What the studies of training with FairPace share: targets, promises, and how far clients fell behind."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from turnout.kernel.certificate import DEFAULT_TOLERANCE
from turnout.lab.analysis.promise import shortfalls
from turnout.lab.columns import RoundColumns
from turnout.lab.studies.framework.claims import Claim, Group, about, above, below
from turnout.lab.studies.framework.experiment import Contenders, Findings, Runs
from turnout.lab.studies.paper.accuracy import AccuracyExperiment, settings_table
from turnout.lab.studies.paper.comparison import RATE
from turnout.lab.studies.paper.learning_curves import final_accuracies
from turnout.lab.studies.paper.panels import Panel, PanelCurves, summary_table
from turnout.lab.tables import Table, as_columns

#: The targets as shares of random's final accuracy, by the end of the names of their columns.
LEVELS: Mapping[str, float] = MappingProxyType({"80": 0.8, "90": 0.9, "95": 0.95})
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
                label: Group(label, runs.each(f"{panel.name}, {label}", _largest_shortfall(contender)).values)
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


def as_accurate_claim(label: str, curves: PanelCurves, reference: str) -> Claim:
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


def _largest_shortfall(contender: tuple[str, Mapping[str, Any]]) -> Any:
    """Returns a function that measures the largest shortfall of any client after any round of a run, in turns."""

    def measure(columns: RoundColumns) -> float:
        return shortfalls(columns, judged_rate(contender)).largest

    return measure
