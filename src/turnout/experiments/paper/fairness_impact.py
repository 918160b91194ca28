"""The paper's figure of what fairness alone does to accuracy: clients drawn at random, more and less evenly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turnout.experiments.framework.claims import Claim, Group, above, ascending
from turnout.experiments.paper.accuracy import GAMMAS, AccuracyExperiment
from turnout.experiments.paper.learning_curves import finals, measured, time_to
from turnout.experiments.paper.panels import HIGH, Panel, PanelCurves, target_of
from turnout.kernel.arrays import FloatArray

CONCENTRATIONS = (0.1, 1, 10)
EVEN = "even"


def concentration_label(concentration: float) -> str:
    """What figures and tables call random selection at a concentration (gamma_2 of the paper)."""
    return f"concentration {concentration:g}"


FROM_UNFAIR_TO_FAIR: dict[str, tuple[str, dict[str, Any]]] = {
    **{concentration_label(one): ("skewed", {"concentration": float(one)}) for one in CONCENTRATIONS},
    EVEN: ("random", {}),
}


class FairnessImpact(AccuracyExperiment):
    """Random selection with chances drawn from a Dirichlet distribution; even ones are the policy random itself."""

    name = "fairness-impact"
    title = "What fairness does to accuracy"
    about = (
        "Test accuracy where clients are drawn with unequal chances: the smaller the concentration (gamma_2), the more "
        "unequal. The smaller gamma (gamma_1), the more unevenly the classes are held. The final accuracy of a run is "
        "the mean of what was measured in the last tenth of its rounds."
    )
    seeds = 3
    reference = EVEN
    summary = "fairness-impact-summary"
    contenders = FROM_UNFAIR_TO_FAIR

    def claims(self, curves: Mapping[Panel, PanelCurves]) -> list[Claim]:
        """Those of the panels, of each task, and of two tasks."""
        datasets = [task.dataset for task in self.tasks]
        claims = super().claims(curves)
        for dataset in datasets:
            panels = [Panel(dataset, gamma) for gamma in reversed(GAMMAS)]
            claims += _gamma_claims(dataset, {panel.split: curves[panel][EVEN] for panel in panels})
        if {"fashion-mnist", "cifar-10"} <= set(datasets):
            claims.append(_stronger_claim(curves))
        return claims

    def panel_claims(self, panel: Panel, curves: PanelCurves) -> list[Claim]:
        """The fairer, the better."""
        return [
            ascending(
                "fairer ends higher",
                f"{panel.name}: the evener the chances, the higher the final accuracy",
                [finals(label, curves[label]) for label in FROM_UNFAIR_TO_FAIR],
                panel=panel.name,
            )
        ]


def _gamma_claims(dataset: str, even: PanelCurves) -> list[Claim]:
    """Of even selection, the classes held ever more unevenly."""
    target = min(target_of(even, split, HIGH) for split in even)
    return [
        ascending(
            "smaller gamma_1, more jitter",
            f"{dataset}: the more unevenly classes are held, the more accuracy jumps between measurements",
            [measured(split, seeds, lambda one: one.jitter) for split, seeds in even.items()],
            panel=dataset,
        ),
        ascending(
            "smaller gamma_1, slower",
            f"{dataset}: the more unevenly classes are held, the later accuracy {target:.3f} is reached (round)",
            [time_to(split, seeds, target, "rounds") for split, seeds in even.items()],
            panel=dataset,
        ),
    ]


def _stronger_claim(curves: Mapping[Panel, PanelCurves]) -> Claim:
    excess = [
        Group(
            Panel("", gamma).split,
            _gain(curves[Panel("cifar-10", gamma)]) - _gain(curves[Panel("fashion-mnist", gamma)]),
        )
        for gamma in GAMMAS
    ]
    return above(
        "stronger on CIFAR-10",
        f"even chances instead of {concentration_label(CONCENTRATIONS[0])} gain more accuracy on CIFAR-10 than on "
        "Fashion-MNIST (by how much more)",
        excess,
        0.0,
        strictly=True,
    )


def _gain(curves: PanelCurves) -> FloatArray:
    unfair = concentration_label(CONCENTRATIONS[0])
    return finals(EVEN, curves[EVEN]).values - finals(unfair, curves[unfair]).values
