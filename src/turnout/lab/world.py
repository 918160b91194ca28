"""A world in which the chosen really train."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray, IntArray, as_count, saved
from turnout.kernel.randomness import round_rng
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection
from turnout.lab.learners.base import Cohort, Learner, TrainingResult
from turnout.lab.partition import Partition
from turnout.policies.base import prefixed, subset
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

    def orders(self, clients: IntArray, round: int) -> IntArray:
        """The items of each client, shuffled for it and this round alone, once an epoch: (clients, epochs, items)."""
        epochs = self.learner.training.epochs
        orders = np.empty((len(clients), epochs, self.holdings.items.shape[1]), dtype=np.int64)
        for place, client in enumerate(clients.tolist()):
            for epoch in range(epochs):
                rng = round_rng(self.seed, f"batches of {client}, epoch {epoch}", round)
                orders[place, epoch] = rng.permutation(self.holdings.items[client])
        return orders


@dataclass(frozen=True, slots=True, eq=False)
class _Begun:
    """A round whose clients are about to train: what the inner world told, and those that will be averaged."""

    report: RoundReport
    cohort: Cohort


class TrainingWorld:
    """Wraps a world: it says who volunteers and how long each takes, here the chosen train and are averaged.

    Reports gain each client's mean training `losses`, and as metrics the test `accuracy` and how many models
    `diverged`: those are not averaged, and their loss is NaN. Only clients that arrived are averaged; the loss of the
    others is NaN too. The clock is the inner world's.
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

    def offer(self, round: int) -> RoundOffer:
        """Who volunteers, and in what condition."""
        return self.inner.offer(round)

    def play(self, offer: RoundOffer, selection: Selection) -> RoundReport:
        """Let the chosen train, average those that arrived, and tell how good the model is now."""
        return play_batched([self], [offer], [selection])[0]

    def state(self) -> dict[str, Any]:
        """The model, and what the inner world remembers."""
        weights = self.federation.learner.saved(self.weights)
        return {"weights": weights, **prefixed("inner", self.inner.state())}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take them back."""
        weights = self.federation.learner.loaded(saved(state, "weights"))
        self.inner.restore(subset(state, "inner"))
        self.weights = weights

    def _begin(self, offer: RoundOffer, selection: Selection) -> _Begun:
        report = self.inner.play(offer, selection)
        back = report.clients[report.with_outcome("arrived")]
        orders = self.federation.orders(back, offer.round)
        return _Begun(report, Cohort(self.weights, orders, np.full(len(back), float(orders.shape[2]))))

    def _finish(self, begun: _Begun, taught: TrainingResult, accuracy: float | None) -> RoundReport:
        report = begun.report
        metrics = {**report.metrics, "diverged": float((~taught.finite).sum())}
        if accuracy is not None:
            metrics["accuracy"] = accuracy
        losses = np.full(len(report.clients), np.nan)
        losses[report.with_outcome("arrived")] = taught.losses
        return replace(report, losses=losses, metrics=metrics)


def play_batched(
    worlds: Sequence[TrainingWorld], offers: Sequence[RoundOffer], selections: Sequence[Selection]
) -> list[RoundReport]:
    """One round of several worlds that share a learner, which trains the chosen of all of them at once."""
    learner = worlds[0].federation.learner
    begun = [world._begin(offer, one) for world, offer, one in zip(worlds, offers, selections, strict=True)]
    taught = learner.train([one.cohort for one in begun])
    for world, result in zip(worlds, taught, strict=True):
        world.weights = result.weights
    due = [
        place
        for place, (world, offer) in enumerate(zip(worlds, offers, strict=True))
        if offer.round % world.federation.evaluate_every == 0
    ]
    accuracies = dict(zip(due, learner.evaluate([worlds[place].weights for place in due]), strict=True))
    return [
        world._finish(one, result, accuracies.get(place))
        for place, (world, one, result) in enumerate(zip(worlds, begun, taught, strict=True))
    ]
