"""A world in which the selected clients train a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from turnout.errors import SettingError
from turnout.kernel.arrays import IntArray, as_count, saved_value
from turnout.kernel.randomness import round_rng
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection
from turnout.lab.training.learners.base import Cohort, Learner, TrainingResult
from turnout.lab.training.partition import Partition
from turnout.lab.worlds.base import World, WorldWrapper
from turnout.policies.base import prefixed, subset


@dataclass(frozen=True, slots=True)
class Federation:
    """A learner, and the partition of its training data over clients.

    `seed` determines the initial weights and the order of the batches. The test accuracy is measured in every
    `evaluate_every`-th round; `metric` is the name under which it is reported.
    """

    learner: Learner
    partition: Partition
    seed: int = 0
    evaluate_every: int = 1
    metric: str = "accuracy"

    def __post_init__(self) -> None:
        as_count("seed", self.seed, SettingError, least=0)
        as_count("evaluate_every", self.evaluate_every, SettingError)

    def orders(self, clients: IntArray, round: int) -> IntArray:
        """Returns the items of each client, shuffled for every epoch: (clients, epochs, items).

        Rows of clients with fewer items than others end with −1. The order depends on the seed, the client, the epoch
        and the round only.
        """
        epochs = self.learner.training.epochs
        orders = np.full((len(clients), epochs, self.partition.items.shape[1]), -1, dtype=np.int64)
        for index, client in enumerate(clients.tolist()):
            held = self.partition.items[client]
            held = held[held >= 0]
            for epoch in range(epochs):
                rng = round_rng(self.seed, f"batches of {client}, epoch {epoch}", round)
                orders[index, epoch, : len(held)] = rng.permutation(held)
        return orders


@dataclass(frozen=True, slots=True, eq=False)
class _StartedRound:
    """A round before training: the report of the inner world, and the cohort of clients that arrived."""

    report: RoundReport
    cohort: Cohort


class FederatedWorld(WorldWrapper):
    """Wraps a world in which clients train the model of a federation, which has a flat vector of weights.

    Args:
        inner: The inner world.
        federation: The learner and the data.
    """

    def __init__(self, inner: World, federation: Federation) -> None:
        super().__init__(inner)
        clients = federation.partition.clients
        if clients != inner.clients:
            raise SettingError(f"the data is split over {clients} clients, the world has {inner.clients}")
        self.federation = federation
        self.weights = federation.learner.initial_weights(federation.seed)


class TrainingWorld(FederatedWorld):
    """Wraps a world: the inner world determines availability and exchange times, this one trains and averages.

    A report gains the mean training loss of each client in `losses`, and two metrics: the test `accuracy`, and the
    number of models that `diverged`. Only models of clients that arrived and did not diverge are averaged; the loss of
    every other client is NaN.
    """

    combines_cohorts = True  # the model of a round is the average over its cohort

    def play(self, offer: RoundOffer, selection: Selection) -> RoundReport:
        """Trains the selected clients, averages those that arrived, and evaluates the new model."""
        return BegunRounds([self], [offer], [selection]).finish()[0]

    def state(self) -> dict[str, Any]:
        """Returns the weights of the model and the state of the inner world."""
        weights = self.federation.learner.saved(self.weights)
        return {"weights": weights, **prefixed("inner", self.inner.state())}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` returned; changes nothing if the state does not fit."""
        weights = self.federation.learner.loaded(saved_value(state, "weights"))
        self.inner.restore(subset(state, "inner"))
        self.weights = weights

    def _start_round(self, offer: RoundOffer, selection: Selection) -> _StartedRound:
        report = self.inner.play(offer, selection)
        arrived = report.clients[report.with_outcome("arrived")]
        orders = self.federation.orders(arrived, offer.round)
        sizes = (orders[:, 0] >= 0).sum(axis=1)
        return _StartedRound(report, Cohort(self.weights, orders, sizes.astype(np.float64)))

    def _complete_report(self, report: RoundReport, result: TrainingResult, accuracy: float | None) -> RoundReport:
        metrics = {**report.metrics, "diverged": float((~result.finite).sum())}
        if accuracy is not None:
            metrics[self.federation.metric] = accuracy
        losses = np.full(len(report.clients), np.nan)
        losses[report.with_outcome("arrived")] = result.losses
        return replace(report, losses=losses, metrics=metrics)


class BegunRounds:
    """One round in each of several worlds that share a learner, which may still be training."""

    def __init__(
        self, worlds: Sequence[TrainingWorld], offers: Sequence[RoundOffer], selections: Sequence[Selection]
    ) -> None:
        """Begins the rounds, and trains all their cohorts in one call.

        Args:
            worlds: The worlds, which share a learner.
            offers: The offer of each world.
            selections: What was selected from each offer.
        """
        self._worlds = worlds
        self._started = [
            world._start_round(offer, selection)
            for world, offer, selection in zip(worlds, offers, selections, strict=True)
        ]
        self._evaluated = [
            index
            for index, (world, offer) in enumerate(zip(worlds, offers, strict=True))
            if offer.round % world.federation.evaluate_every == 0
        ]
        learner, cohorts = worlds[0].federation.learner, [start.cohort for start in self._started]
        self._finish = learner.begin(cohorts, self._evaluated)

    def finish(self) -> list[RoundReport]:
        """Waits for the end of training; returns the report of each world."""
        results, measured = self._finish()
        for world, result in zip(self._worlds, results, strict=True):
            world.weights = result.weights
        accuracies = dict(zip(self._evaluated, measured, strict=True))
        return [
            world._complete_report(start.report, result, accuracies.get(index))
            for index, (world, start, result) in enumerate(zip(self._worlds, self._started, results, strict=True))
        ]
