"""own-learner learns."""

import numpy as np
from own_learner import build_own_learner

from turnout import UniformRandom
from turnout.lab import PaperWorld, play


def test_it_learns() -> None:
    world = build_own_learner().world(PaperWorld(seed=0, clients=8), workers=1)
    records = list(play(UniformRandom(8, cohort_size=4), world, 10))
    accuracies = [record.report.metrics["accuracy"] for record in records]
    assert accuracies[-1] > max(accuracies[0], 0.5)


def test_the_same_seed_trains_the_same_model() -> None:
    models = []
    for _ in range(2):
        world = build_own_learner().world(PaperWorld(seed=0, clients=8), seed=3, workers=1)
        list(play(UniformRandom(8, cohort_size=4), world, 2))
        models.append(world.state()["weights"])
    assert np.array_equal(*models)
