"""The paper's figure of the effect of fairness on accuracy: random selection with more or less equal probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np

from turnout.kernel.arrays import FloatArray
from turnout.lab.studies.framework.claims import Claim, Group, about, above, all_above, ascending
from turnout.lab.studies.paper.accuracy import GAMMAS, AccuracyExperiment
from turnout.lab.studies.paper.learning_curves import final_accuracies, measure_curves, time_to_target
from turnout.lab.studies.paper.panels import HIGH, Curves, Panel, target_of

CONCENTRATIONS = (0.1, 1, 10)
EVEN = "even"
#: gamma_1 has little impact if it changes the gain by less than this share of the mean gain.
LITTLE = 0.5


def concentration_label(concentration: float) -> str:
    """Returns the label of random selection with a concentration (gamma_2 of the paper)."""
    return f"concentration {concentration:g}"


FROM_UNFAIR_TO_FAIR: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        concentration_label(concentration): ("skewed", {"concentration": float(concentration)})
        for concentration in CONCENTRATIONS
    },
    EVEN: ("random", {}),
}


class FairnessImpact(AccuracyExperiment):
    """Compares random selection with probabilities from a Dirichlet distribution; equal ones are the policy random."""

    name = "fairness-impact"
    title = "The effect of fairness on accuracy"
    about = (
        "Test accuracy if clients are selected with unequal probabilities: a smaller concentration (gamma_2) makes "
        "them more unequal. A smaller gamma (gamma_1) makes the class proportions of clients more unequal. The final "
        "accuracy of a run is the mean over the last tenth of its rounds."
    )
    seeds = 3
    reference = EVEN
    summary = "fairness-impact-summary"
    contenders = FROM_UNFAIR_TO_FAIR

    def claims(self, curves: Mapping[Panel, Curves]) -> list[Claim]:
        """Returns the claims of each panel, of each dataset, and of both image datasets together."""
        datasets = [task.dataset for task in self.tasks]
        claims = super().claims(curves)
        for dataset in datasets:
            panels = [Panel(dataset, gamma) for gamma in reversed(GAMMAS)]
            even = {panel.split: curves[panel][EVEN] for panel in panels}
            interaction = _interaction_claim({panel.split: _gain(curves[panel]) for panel in panels})
            claims += about(dataset, [*_gamma_claims(even), interaction])
        if {"fashion-mnist", "cifar-10"} <= set(datasets):
            claims.append(_dataset_claim(curves))
        return claims

    def panel_claims(self, panel: Panel, curves: Curves) -> list[Claim]:  # noqa: ARG002
        """Returns the claim that fairer selection gives a higher final accuracy."""
        return [
            ascending(
                "fairer ends higher",
                "the more equal the probabilities, the higher the final accuracy",
                [final_accuracies(label, curves[label]) for label in FROM_UNFAIR_TO_FAIR],
            )
        ]


def _gamma_claims(even: Curves) -> list[Claim]:
    """Returns claims about even selection with increasingly unequal class proportions."""
    target = min(target_of(even, split, HIGH) for split in even)
    return [
        ascending(
            "smaller gamma_1, more jitter",
            "the more unequal the class proportions, the more accuracy varies between measurements",
            [measure_curves(split, seeds, lambda curve: curve.jitter) for split, seeds in even.items()],
        ),
        ascending(
            "smaller gamma_1, slower",
            f"the more unequal the class proportions, the later accuracy {target:.3f} is reached (round)",
            [time_to_target(split, seeds, target, "rounds") for split, seeds in even.items()],
        ),
    ]


def _interaction_claim(gains: Mapping[str, FloatArray]) -> Claim:
    """Returns the claim that gamma_1 has little impact on the effect of fairness.

    Little is less than half of the mean gain over all gamma_1: half of it minus, and plus, the difference of any two
    gains has to be above 0.
    """
    allowed = LITTLE * np.mean(list(gains.values()), axis=0)
    differences = [own - other for own, other in combinations(gains.values(), 2)]
    margins = [allowed + sign * difference for difference in differences for sign in (1, -1)]
    numbers = {f"gain, {split}": Group(split, values).summary for split, values in gains.items()}
    for (own, other), difference in zip(combinations(gains, 2), differences, strict=True):
        numbers[f"{own} − {other}"] = Group("", difference).summary
    return Claim(
        "gamma_1 has little impact",
        f"the gain in final accuracy of equal probabilities over {concentration_label(CONCENTRATIONS[0])} "
        f"differs between any two gamma_1 by less than {LITTLE:g} of its mean",
        all_above(margins, 0.0, strictly=True),
        {**numbers, "less than": Group("", allowed).summary},
    )


def _dataset_claim(curves: Mapping[Panel, Curves]) -> Claim:
    excess = [
        Group(
            Panel("", gamma).split,
            _gain(curves[Panel("cifar-10", gamma)]) - _gain(curves[Panel("fashion-mnist", gamma)]),
        )
        for gamma in GAMMAS
    ]
    return above(
        "stronger on CIFAR-10",
        f"equal probabilities instead of {concentration_label(CONCENTRATIONS[0])} gain more accuracy on CIFAR-10 than "
        "on Fashion-MNIST (difference of the gains)",
        excess,
        0.0,
        strictly=True,
    )


def _gain(curves: Curves) -> FloatArray:
    unfair = concentration_label(CONCENTRATIONS[0])
    return final_accuracies(EVEN, curves[EVEN]).values - final_accuracies(unfair, curves[unfair]).values
