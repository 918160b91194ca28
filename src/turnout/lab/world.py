"""A world in which the chosen really train."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from turnout.kernel.arrays import FloatArray, as_count, saved_array
from turnout.kernel.errors import SettingError
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection
from turnout.lab.datasets import load_dataset
from turnout.lab.learners import Learner, NumpyLearner, Trained, Training, average
from turnout.lab.partition import Partition, partition
from turnout.policies.base import prefixed, subset
from turnout.simulator.paper import PaperWorld
from turnout.simulator.world import World


@dataclass(frozen=True, slots=True)
class Federation:
    """Who holds what, and how they learn; accuracy is measured every so many rounds."""

    learner: Learner
    holdings: Partition
    seed: int = 0
    evaluate_every: int = 1

    def __post_init__(self) -> None:
        as_count("seed", self.seed, SettingError, least=0)
        as_count("evaluate_every", self.evaluate_every, SettingError)


class TrainingWorld:
    """Wraps a world: it says who volunteers and how long each takes, here the chosen train and are averaged.

    Reports gain each client's mean training `losses`, and as metrics the test `accuracy` and how many models
    `diverged`: those are not averaged, and their loss is NaN. Only clients that arrived are averaged. The clock is the
    inner world's.
    """

    def __init__(self, inner: World, federation: Federation) -> None:
        holdings = federation.holdings
        if holdings.clients != inner.clients:
            raise SettingError(f"the data is split over {holdings.clients} clients, the world has {inner.clients}")
        self.inner, self.federation = inner, federation
        self.weights = federation.learner.initial_weights(federation.seed)

    @property
    def clients(self) -> int:
        """How many clients live here."""
        return self.inner.clients

    @property
    def availability(self) -> FloatArray:
        """In what share of the rounds each client volunteers, in the long run."""
        return self.inner.availability

    def offer(self, round: int) -> RoundOffer:  # noqa: A002
        """Who volunteers, and in what condition."""
        return self.inner.offer(round)

    def play(self, offer: RoundOffer, selection: Selection) -> RoundReport:
        """Let the chosen train, average those that arrived, and tell how good the model is now."""
        learner = self.federation.learner
        report = self.inner.play(offer, selection)
        chosen = report.clients.tolist()
        metrics = dict(report.metrics)
        losses = np.full(len(chosen), np.nan)
        if chosen:
            trained = learner.train(self.weights, chosen, seed=self.federation.seed, round=offer.round)
            losses = np.where(trained.sound, trained.losses, np.nan)
            metrics["diverged"] = float((~trained.sound).sum())
            back = report.with_outcome("arrived")
            sizes = np.full(int(back.sum()), self.federation.holdings.items.shape[1])
            mean = average(Trained(trained.weights[back], trained.losses[back]), sizes)
            self.weights = self.weights if mean is None else mean
        if offer.round % self.federation.evaluate_every == 0:
            metrics["accuracy"] = learner.evaluate(self.weights)
        return replace(report, losses=losses, metrics=metrics)

    def state(self) -> dict[str, Any]:
        """The model, and what the inner world remembers."""
        return {"weights": self.weights.copy(), **prefixed("inner", self.inner.state())}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take them back."""
        weights = saved_array(state, "weights", self.weights)
        self.inner.restore(subset(state, "inner"))
        self.weights = weights


def training_world(
    seed: int = 0,
    *,
    dataset: str = "digits",
    folder: str | None = None,
    gamma: float | str = 1.0,
    items: int = 500,
    hidden: int = 32,
    epochs: int = 1,
    batch: int = 32,
    rate: float = 0.1,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    proximal: float = 0.0,
    evaluate_every: int = 1,
    world: Mapping[str, Any] | None = None,
) -> TrainingWorld:
    """The world "training" of plans and stores: a dataset, split, and trained on in the paper's world.

    `gamma`: a number, or "iid". `world`: settings of the paper's world inside. The seed also draws the split, the first
    weights and the batches.
    """
    inner = PaperWorld(seed, **(world or {}))
    data = load_dataset(dataset, None if folder is None else Path(folder))
    holdings = partition(data.train_labels, clients=inner.clients, items=items, gamma=as_gamma(gamma), seed=seed)
    how = Training(epochs, batch, rate, momentum, weight_decay, proximal)
    learner = NumpyLearner(data, holdings, how, hidden=hidden)
    return TrainingWorld(inner, Federation(learner, holdings, seed, evaluate_every))


def as_gamma(gamma: float | str) -> float:
    """A number, or "iid" for infinity."""
    if gamma == "iid":
        return math.inf
    try:
        return float(gamma)
    except ValueError:
        raise SettingError(f"gamma must be a number or 'iid', not {gamma!r}") from None
