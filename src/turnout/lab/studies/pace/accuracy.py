"""Test accuracy of models that are trained with FairPace, against rounds and against time."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from turnout.lab.analysis.metrics import summarise
from turnout.lab.analysis.promise import shortfalls
from turnout.lab.columns import RoundColumns
from turnout.lab.studies.framework.claims import Claim, Group, highest, lowest
from turnout.lab.studies.framework.experiment import Contenders, Findings, Runs
from turnout.lab.studies.paper.accuracy import AccuracyExperiment
from turnout.lab.studies.paper.comparison import CONTENDERS, RATE, weight_label
from turnout.lab.studies.paper.learning_curves import final_accuracies, time_to_target
from turnout.lab.studies.paper.panels import HIGH, Panel, PanelCurves, target_of
from turnout.lab.tables import Table, as_columns

PACE = "FairPace, tolerance 2"
SLOW, FAST = weight_label(1), weight_label(20)


class PaceExperiment(AccuracyExperiment):
    """FairPace beside random, RBCS-F at two weights and FedCS(3); all clients are promised the paper's rate."""

    contenders: ClassVar[Contenders] = {
        PACE: ("fair-pace", {"guaranteed_rate": RATE, "tolerance": 2.0, "accrual": "always"}),
        **{label: CONTENDERS[label] for label in (SLOW, FAST, "random", "FedCS(3)")},
    }
    gammas = (1, "iid")
    summary = "pace-summary"
    seeds = 5

    def findings(self, runs: Runs) -> Findings:
        """Computes the claims, the curves, a summary, and how far clients fell behind."""
        findings = super().findings(runs)
        return Findings(findings.claims, {**findings.tables, "pace-fairness": self._fairness(runs)})

    def _fairness(self, runs: Runs) -> Table:
        """Returns the least share of all rounds and the largest shortfall of each contender, as means over seeds."""
        rows: list[dict[str, Any]] = []
        for panel in self.panels:
            for label in self.contenders:
                name = f"{panel.name}, {label}"
                rows.append(
                    {
                        "dataset": panel.dataset,
                        "gamma": str(panel.gamma),
                        "contender": label,
                        "least_share_of_all_rounds": round(float(runs.each(name, _least_share).values.mean()), 6),
                        "largest_shortfall_in_turns": round(float(runs.each(name, _shortfall).values.max()), 6),
                    }
                )
        return as_columns(rows)


class PaceRounds(PaceExperiment):
    """Accuracy against rounds."""

    name = "pace-rounds"
    title = "Accuracy with FairPace against rounds"
    about = (
        "Test accuracy by round. The final accuracy of a run is the mean over the last tenth of its rounds. Every "
        f"client is promised {RATE:g} of all rounds; FairPace may leave it 2 turns behind."
    )

    def panel_claims(self, panel: Panel, curves: PanelCurves) -> list[Claim]:  # noqa: ARG002
        """Returns claims about final accuracies."""
        final = {label: final_accuracies(label, seeds) for label, seeds in curves.items()}
        return [
            highest(
                "FairPace above RBCS-F 20 and FedCS",
                f"the final accuracy of FairPace is higher than those of {FAST} and FedCS(3)",
                final,
                PACE,
                [FAST, "FedCS(3)"],
            ),
            highest(
                "random above FairPace",
                "the final accuracy of random is higher than that of FairPace",
                final,
                "random",
                [PACE],
            ),
        ]


class PaceTime(PaceExperiment):
    """Accuracy against simulated time."""

    name = "pace-time"
    title = "Accuracy with FairPace against time"
    about = (
        f"Test accuracy against simulated minutes, for the same runs. The target of a panel is {HIGH:g} of the final "
        "accuracy of random. For a run that never reaches it, its whole time is a lower bound."
    )
    clock = "minutes"

    def panel_claims(self, panel: Panel, curves: PanelCurves) -> list[Claim]:  # noqa: ARG002
        """Returns claims about the time to the target and about the whole time."""
        target = target_of(curves, self.reference, HIGH)
        late = {label: time_to_target(label, seeds, target, "minutes") for label, seeds in curves.items()}
        whole = {label: Group(label, np.array([run.duration for run in seeds])) for label, seeds in curves.items()}
        return [
            *(
                lowest(
                    f"FairPace ahead of {short}",
                    f"FairPace reaches accuracy {target:.3f} before {rival} (minutes)",
                    late,
                    PACE,
                    [rival],
                )
                for short, rival in {"random": "random", "RBCS-F 1": SLOW, "RBCS-F 20": FAST}.items()
            ),
            lowest(
                "shorter than random and RBCS-F 1",
                f"all rounds of FairPace take less time than those of random and {SLOW} (minutes)",
                whole,
                PACE,
                ["random", SLOW],
            ),
        ]


def _least_share(columns: RoundColumns) -> float:
    return summarise(columns, guaranteed_rate=RATE).least_share


def _shortfall(columns: RoundColumns) -> float:
    return shortfalls(columns, RATE).largest
