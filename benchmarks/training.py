"""Measures a round of training against a plain loop over the clients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.plain_training import PlainRound
from turnout.bench.timing import in_turns
from turnout.bench.training import TrainingCase, training_case
from turnout.lab.training.learners.base import Learner
from turnout.lab.training.learners.devices import device_name
from turnout.lab.training.learners.stacked_learner import StackedLearner

MIN_SPEEDUP = {"cuda": 20.0, "cpu": 1.4}  # targets
MAX_DIFFERENCE = 0.05  # relative to the distance between initial and trained weights, in float32


@dataclass(frozen=True, slots=True)
class TrainingComparison:
    """Median wall-clock seconds of a round of 8 clients with 500 items each.

    `difference` is the distance between the weights of both implementations, relative to how far training moved them.
    """

    dataset: str
    device: str
    batch: int
    plain_seconds: float
    round_seconds: float
    stacked_runs: int
    stacked_seconds: float
    difference: float
    min_speedup: float

    @property
    def speedup(self) -> float:
        """Time of the plain loop, divided by the time of a round of one run."""
        return self.plain_seconds / self.round_seconds

    @property
    def met(self) -> bool:
        """Whether the speed-up reaches its target."""
        return self.speedup >= self.min_speedup

    @property
    def stacked_speedup(self) -> float:
        """Time of the plain loop, divided by the time per run if several runs train at once."""
        return self.plain_seconds / self.stacked_seconds


def compare_training(dataset: str, *, device: str = "cpu", batch: int = 10, repeats: int = 5) -> TrainingComparison:
    """Trains from the same weights with both implementations, compares the results, and measures both in turns."""
    case = training_case(dataset, device=device, batch=batch)
    exact = _exact_learner(case)
    # The learner starts its processes here: it must fork before the plain loop has run in this process.
    trained = np.asarray(exact.saved(exact.train([case.cohort(exact)])[0].weights), dtype=np.float64)
    plain, sent = _plain_round(case)
    expected = plain.train(sent, case.orders)[0].cpu().numpy().astype(np.float64)
    difference = float(np.linalg.norm(trained - expected) / np.linalg.norm(expected - case.start))
    if not difference < MAX_DIFFERENCE:
        raise AssertionError(
            f"the plain loop trained other weights (relative difference {difference:.3g}): one of the two "
            "implementations is wrong"
        )
    plain_seconds, *seconds = in_turns([lambda: plain.train(sent, case.orders), *case.tasks()], repeats)
    case.learner.close()
    runs = case.stacked_runs
    return TrainingComparison(
        dataset,
        device_name(device),
        batch,
        plain_seconds,
        seconds[0],
        runs,
        seconds[-1] / runs,
        difference,
        MIN_SPEEDUP[case.kind],
    )


def _exact_learner(case: TrainingCase) -> Learner:
    """Returns a learner with float32 products, which the plain loop has too; a GPU is measured with TF32."""
    if case.kind == "cpu":
        return case.learner
    return StackedLearner(case.dataset, case.network, case.training, device=case.device, precision="float32")


def _plain_round(case: TrainingCase) -> tuple[PlainRound, torch.Tensor]:
    """Returns the plain loop and the initial weights, both on the device."""
    middle, width = case.dataset.brightness
    images = (torch.tensor(case.dataset.train_images, device=case.device).float() - middle) / width
    labels = torch.tensor(case.dataset.train_labels, device=case.device).long()
    return PlainRound(case.network, case.training, images, labels), torch.tensor(case.start, device=case.device).float()
