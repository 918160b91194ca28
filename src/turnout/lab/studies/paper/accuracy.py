"""The paper's figures of test accuracy against rounds and against time."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from turnout.errors import look_up
from turnout.lab.analysis.statistics import Clock, LearningCurve
from turnout.lab.columns import Table
from turnout.lab.drawing.style import Figure
from turnout.lab.runs.plans import RunPlan
from turnout.lab.studies.framework.claims import Claim, Group, about, above, all_greater, ascending, highest, lowest
from turnout.lab.studies.framework.experiment import Contenders, Experiment, Findings, Plans, Runs, plans_for
from turnout.lab.studies.paper.comparison import CONTENDERS, RBCSF_LABELS, weight_label
from turnout.lab.studies.paper.learning_curves import final_accuracies, time_to_target
from turnout.lab.studies.paper.panels import (
    HIGH,
    LOW,
    Curves,
    Panel,
    curves_table,
    draw_panels,
    summary_table,
    target_of,
)


@dataclass(frozen=True, slots=True)
class Task:
    """A dataset, the settings of local training, and the number of rounds.

    The settings were tuned with random selection only, and are used for all policies.
    """

    dataset: str
    settings: Mapping[str, Any]
    rounds: int = 500


TASKS: Mapping[str, Task] = {
    task.dataset: task
    for task in (
        Task("digits", {"items": 40, "hidden": 16, "batch": 10, "rate": 0.2, "evaluate_every": 5}, rounds=300),
        Task("fashion-mnist", {"model": "cnn", "items": 500, "batch": 10, "rate": 0.02, "evaluate_every": 5}),
        Task(
            "cifar-10",
            {"model": "cnn", "items": 500, "batch": 10, "rate": 0.02, "weight_decay": 0.003, "evaluate_every": 5},
        ),
    )
}
GAMMAS: tuple[float | str, ...] = (1, 10, "iid")
#: The targets of the claim about random, as shares of its final accuracy.
TARGETS = (0.5, 0.6, 0.7, 0.8, 0.9)
#: The panels for which the paper claims that weight 20 is better than 50 during the whole process.
WHOLE_PROCESS = (Panel("cifar-10", 10), Panel("cifar-10", "iid"))
#: The parts of the common time span in each of which weight 20 has to be better.
PARTS = 10


def find_tasks(datasets: Sequence[str]) -> tuple[Task, ...]:
    """Returns the tasks of these datasets, without repetitions."""
    return tuple(look_up("dataset", name, TASKS) for name in dict.fromkeys(datasets))


class AccuracyExperiment(Experiment):
    """The base class of the accuracy figures: one panel per task and gamma, with the same contenders in each."""

    clock: ClassVar[Clock] = "rounds"
    contenders: ClassVar[Contenders] = CONTENDERS
    gammas: ClassVar[tuple[float | str, ...]] = GAMMAS
    #: The gammas of further panels, in which the speed of clients depends on their classes.
    by_class: ClassVar[tuple[float | str, ...]] = ()
    #: The contender whose final accuracy determines the targets.
    reference: ClassVar[str] = "random"
    summary: ClassVar[str] = "accuracy-summary"

    def __init__(self, tasks: Sequence[Task] = (TASKS["digits"],)) -> None:
        self.tasks = tuple(tasks)

    @property
    def panels(self) -> list[Panel]:
        """The panels of all tasks."""
        return [panel for task in self.tasks for panel in self._panels_of(task)]

    def on(self, datasets: Sequence[str]) -> AccuracyExperiment:
        """Returns the same experiment on other datasets."""
        return type(self)(find_tasks(datasets))

    def plans(self, seeds: int, rounds: int | None = None) -> Plans:
        """Returns plans of every contender in every panel."""
        plans: dict[str, list[RunPlan]] = {}
        for task in self.tasks:
            for panel in self._panels_of(task):
                for label, contender in self.contenders_of(panel).items():
                    plans |= plans_for(
                        {f"{panel.name}, {label}": contender},
                        self.seeds_of(label, seeds),
                        rounds or task.rounds,
                        first_seed=self.first_seed,
                        world="training",
                        world_settings={**panel.world_settings, **task.settings},
                        keep="choices",
                    )
        return plans

    def contenders_of(self, panel: Panel) -> Contenders:  # noqa: ARG002
        """Returns the contenders of a panel."""
        return self.contenders

    def seeds_of(self, label: str, seeds: int) -> int:  # noqa: ARG002
        """Returns the number of seeds of a contender if the others have `seeds`."""
        return seeds

    def curves_of(self, runs: Runs) -> dict[Panel, Curves]:
        """Returns the learning curves of all panels."""
        return {
            panel: {
                label: [LearningCurve.of(columns) for columns in runs.of(f"{panel.name}, {label}")]
                for label in self.contenders_of(panel)
            }
            for panel in self.panels
        }

    def findings(self, runs: Runs) -> Findings:
        """Computes the claims, the curves of all panels, and a summary of each contender."""
        curves = self.curves_of(runs)
        tables = {
            self.name: curves_table(curves, self.clock),
            self.summary: summary_table(curves, self.reference),
            "accuracy-settings": settings_table(self.tasks),
        }
        return Findings(self.claims(curves), tables)

    def claims(self, curves: Mapping[Panel, Curves]) -> list[Claim]:
        """Returns the claims of all panels."""
        return [claim for panel in curves for claim in about(panel.name, self.panel_claims(panel, curves[panel]))]

    def _panels_of(self, task: Task) -> list[Panel]:
        plain = [Panel(task.dataset, gamma) for gamma in self.gammas]
        return plain + [Panel(task.dataset, gamma, by_class=True) for gamma in self.by_class]

    @abstractmethod
    def panel_claims(self, panel: Panel, curves: Curves) -> list[Claim]:
        """Returns the claims of one panel, without its name."""

    def draw(self, findings: Findings) -> Figure:
        """Draws accuracy against rounds or time, one panel per task and gamma."""
        return draw_panels(self.panels, findings.tables[self.name], list(self.contenders), self.clock)


class AccuracyRounds(AccuracyExperiment):
    """The paper's figure of accuracy against rounds."""

    name = "accuracy-rounds"
    title = "Accuracy against rounds"
    about = (
        "Test accuracy by round. The final accuracy of a run is the mean over the last tenth of its rounds; the target "
        f"of a panel is {HIGH:g} of the final accuracy of random."
    )
    seeds = 5

    def panel_claims(self, panel: Panel, curves: Curves) -> list[Claim]:  # noqa: ARG002
        """Returns claims about final accuracies and about rounds to the target."""
        final = {label: final_accuracies(label, seeds) for label, seeds in curves.items()}
        target = target_of(curves, self.reference, HIGH)
        rounds = {label: time_to_target(label, seeds, target, "rounds") for label, seeds in curves.items()}
        return [
            highest("random best", "random has a higher final accuracy than every other policy", final, "random"),
            ascending(
                "smaller weight, higher",
                "the final accuracy of RBCS-F is higher at a smaller speed weight",
                [final[label] for label in reversed(RBCSF_LABELS)],
            ),
            lowest("FedCS(3) worst", "FedCS(3) has a lower final accuracy than every other policy", final, "FedCS(3)"),
            ascending(
                "larger weight, more rounds",
                f"RBCS-F needs more rounds to accuracy {target:.3f} at a larger speed weight (round)",
                [rounds[label] for label in RBCSF_LABELS],
            ),
            highest(
                "RBCS-F ahead of FedCS(3) in rounds",
                f"RBCS-F needs fewer rounds to accuracy {target:.3f} than FedCS(3), at every weight (round)",
                rounds,
                "FedCS(3)",
                RBCSF_LABELS,
            ),
        ]


class AccuracyTime(AccuracyExperiment):
    """The paper's figure of accuracy against training time."""

    name = "accuracy-time"
    title = "Accuracy against time"
    about = (
        "Test accuracy against simulated minutes, for the same runs. The low and the high target of a panel are "
        f"{LOW:g} and {HIGH:g} of the final accuracy of random. For a run that never reaches a target, its whole time "
        "is a lower bound, which can leave a claim undecided but cannot decide it."
    )
    seeds = 5
    clock = "minutes"

    def panel_claims(self, panel: Panel, curves: Curves) -> list[Claim]:
        """Returns claims about the time to the targets, and about accuracy over time at two weights."""
        low, high = (target_of(curves, self.reference, share) for share in (LOW, HIGH))
        early = {label: time_to_target(label, seeds, low, "minutes") for label, seeds in curves.items()}
        late = {label: time_to_target(label, seeds, high, "minutes") for label, seeds in curves.items()}
        claims = [
            lowest(
                "FedCS(3) first at low accuracy",
                f"FedCS(3) reaches accuracy {low:.3f} before every other policy (minutes)",
                early,
                "FedCS(3)",
            ),
            highest(
                "RBCS-F ahead of random",
                f"RBCS-F reaches accuracy {high:.3f} before random at every weight (minutes)",
                late,
                "random",
                RBCSF_LABELS,
            ),
            _random_worst_claim(curves, self.reference),
        ]
        if panel.gamma != 1:  # the paper claims it for the other two panels
            claims.append(
                ascending(
                    "weight 20 beats 50 on average",
                    "accuracy, averaged over the common time span, is higher at weight 20 than at 50",
                    _means_over_common_time(curves, [weight_label(50), weight_label(20)]),
                )
            )
        if panel in WHOLE_PROCESS:
            claims.append(_whole_process_claim(curves))
        return claims


def settings_table(tasks: Sequence[Task]) -> Table:
    """Returns the settings of local training of each task, one setting per row."""
    rows = [(task.dataset, setting, str(value)) for task in tasks for setting, value in task.settings.items()]
    return dict(zip(("dataset", "setting", "value"), zip(*rows, strict=True), strict=True))


def _random_worst_claim(curves: Curves, reference: str) -> Claim:
    """Returns the claim that random reaches every target later than every other policy."""
    pairs: list[tuple[Group, Group]] = []
    numbers: dict[str, str] = {}
    for share in TARGETS:
        target = target_of(curves, reference, share)
        times = {label: time_to_target(label, seeds, target, "minutes") for label, seeds in curves.items()}
        later = [(times["random"], other) for label, other in times.items() if label != "random"]
        pairs += later
        closest = max((other for _, other in later), key=lambda other: other.values.mean())
        numbers[f"at {share:.0%} ({target:.3f})"] = (
            f"random {times['random'].summary}, next {closest.label} {closest.summary} ({all_greater(later)})"
        )
    statement = "random reaches every target later than every other policy (minutes)"
    return Claim("random worst at every target", statement, all_greater(pairs), numbers)


def _whole_process_claim(curves: Curves) -> Claim:
    """Returns the claim that weight 20 is better than 50 in each part of the common time span."""
    better, worse = weight_label(20), weight_label(50)
    spans = _common_spans(curves, [better, worse])
    gains = []
    for part in range(PARTS):
        values = [
            [
                curve.mean_between(span * part / PARTS, span * (part + 1) / PARTS)
                for curve, span in zip(curves[label], spans, strict=True)
            ]
            for label in (better, worse)
        ]
        gains.append(Group(f"part {part + 1} of {PARTS}", np.subtract(values[0], values[1])))
    return above(
        "weight 20 beats 50 all the time",
        f"accuracy is higher at weight 20 than at 50 in each of {PARTS} equal parts of the common time span "
        "(difference)",
        gains,
        0.0,
        strictly=True,
    )


def _means_over_common_time(curves: Curves, labels: Sequence[str]) -> list[Group]:
    """Returns the mean accuracy of each contender over the time span that all of them cover, by seed."""
    spans = _common_spans(curves, labels)
    return [
        Group(label, np.array([curve.mean_until(span) for curve, span in zip(curves[label], spans, strict=True)]))
        for label in labels
    ]


def _common_spans(curves: Curves, labels: Sequence[str]) -> list[float]:
    """Returns the minutes that all these contenders cover, by seed."""
    return [min(curve.duration for curve in seed) for seed in zip(*(curves[label] for label in labels), strict=True)]
