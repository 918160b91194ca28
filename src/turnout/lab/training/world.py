"""Worlds in which the selected clients train a model, in rounds or, with buffered updates, without."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from turnout.errors import SettingError, StateError
from turnout.kernel.arrays import IntArray, as_count, as_number, saved_value
from turnout.kernel.randomness import round_rng
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection
from turnout.lab.training.learners.base import Cohort, Learner, TrainingResult, Weights
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
        return begin_rounds([self], [offer], [selection])()[0]

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


def begin_rounds(
    worlds: Sequence[TrainingWorld], offers: Sequence[RoundOffer], selections: Sequence[Selection]
) -> Callable[[], list[RoundReport]]:
    """Begins a round in each of several worlds that share a learner, and trains all their cohorts in one call.

    Args:
        worlds: The worlds.
        offers: The offer of each world.
        selections: What was selected from each offer.

    Returns:
        A function that waits for the end of training, and returns the report of each world.
    """
    played = list(zip(worlds, offers, selections, strict=True))
    started = [world._start_round(offer, selection) for world, offer, selection in played]
    evaluated = [
        index for index, (world, offer, _) in enumerate(played) if offer.round % world.federation.evaluate_every == 0
    ]
    finish_training = worlds[0].federation.learner.begin([start.cohort for start in started], evaluated)

    def finish() -> list[RoundReport]:
        results, measured = finish_training()
        accuracies, reports = dict(zip(evaluated, measured, strict=True)), []
        for index, (world, start, result) in enumerate(zip(worlds, started, results, strict=True)):
            world.weights = result.weights
            reports.append(world._complete_report(start.report, result, accuracies.get(index)))
        return reports

    return finish


#: The metrics that a turn has in addition to those of the inner world.
STALENESS, VERSION = "staleness", "version"


@dataclass(frozen=True, slots=True, eq=False)
class _EndedTurn:
    """A turn before training: the report of the inner world, the staleness, and the cohort of the one client.

    The cohort is None if the update did not arrive.
    """

    report: RoundReport
    staleness: int
    cohort: Cohort | None


class BufferedTraining(FederatedWorld):
    """Wraps a world: the inner world determines availability and exchange times, this one trains without rounds.

    The model has versions, from 0. A client trains on the version at the start of its turn. Its update is discounted by
    (1 + staleness)^−`discount`, where the staleness is the number of versions since then.

    *FedBuff* (Nguyen et al. 2022): when `updates_per_version` updates have arrived, the next version is the last one
    plus the mean of the discounted differences between trained and received weights. *FedAsync*
    (Xie et al. 2019), with `mixing`: every update makes a version, (1 − a) · model + a · trained weights, where a is
    `mixing` times the discount.

    The report of a turn gains its training loss, the metrics `staleness` and `version` (after its update), and the test
    `accuracy` if its update made a version that is evaluated. Updates that fail, are late or are not finite do not
    count.

    Args:
        inner: The inner world.
        federation: The learner and the data; `evaluate_every` counts versions.
        updates_per_version: The number of updates of a version.
        discount: The exponent of the discount for staleness.
        mixing: The weight of a fresh update, for FedAsync; None for FedBuff.
    """

    needs_slots = True

    def __init__(
        self,
        inner: World,
        federation: Federation,
        *,
        updates_per_version: int = 8,
        discount: float = 0.5,
        mixing: float | None = None,
    ) -> None:
        super().__init__(inner, federation)
        self.updates_per_version = as_count("updates_per_version", updates_per_version, SettingError)
        self.discount = as_number("discount", discount, SettingError, least=0)
        self.mixing = None if mixing is None else as_number("mixing", mixing, SettingError, above=0, most=1)
        if mixing is not None and self.updates_per_version != 1:
            raise SettingError(
                f"mixing makes a version of every update, but updates_per_version is {updates_per_version}: set it to 1"
            )
        self.version = 0
        self._received: dict[int, int] = {}  # the version that each training client received
        self._versions: dict[int, Weights] = {0: self.weights}  # those that are still needed
        self._sum: Weights | None = None  # of the buffered differences
        self._buffered = 0

    def play(self, offer: RoundOffer, selection: Selection) -> RoundReport:
        """Starts the turn of one client, which receives the present version of the model."""
        report = self.inner.play(offer, selection)
        (client,) = report.clients.tolist()
        if client in self._received:
            raise StateError(f"client {client} is training already")
        self._received[client] = self.version
        self._versions[self.version] = self.weights
        return report

    def finish(self, report: RoundReport) -> RoundReport:
        """Trains the client of a turn that has ended, and adds its update to the buffer."""
        return finish_batched([self], [report])[0]

    def state(self) -> dict[str, Any]:
        """Returns the model, the versions that clients train on, the sum of the updates, and the inner state."""
        saved = self.federation.learner.saved
        numbers = sorted(self._versions)
        return {
            "weights": saved(self.weights),
            "version": self.version,
            "versions": np.array(numbers, dtype=np.int64),
            "models": np.array([saved(self._versions[number]) for number in numbers]),
            "training": np.array(list(self._received), dtype=np.int64),
            "received": np.array(list(self._received.values()), dtype=np.int64),
            "sum": np.empty(0) if self._sum is None else saved(self._sum),
            "buffered": self._buffered,
            **prefixed("inner", self.inner.state()),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` returned; changes nothing if the state does not fit."""
        loaded = self.federation.learner.loaded
        weights = loaded(saved_value(state, "weights"))
        models = [loaded(model) for model in saved_value(state, "models")]
        versions = dict(zip(np.asarray(saved_value(state, "versions")).tolist(), models, strict=True))
        training = np.asarray(saved_value(state, "training")).tolist()
        received = dict(zip(training, np.asarray(saved_value(state, "received")).tolist(), strict=True))
        if not set(received.values()) <= set(versions):
            raise StateError("the saved state lacks the model of a client that is training")
        buffered = as_count("buffered", int(saved_value(state, "buffered")), StateError, least=0)
        total = saved_value(state, "sum")
        self.inner.restore(subset(state, "inner"))
        self.weights, self._versions, self._received, self._buffered = weights, versions, received, buffered
        self.version = int(saved_value(state, "version"))
        self._sum = loaded(total) if len(total) else None

    def _end_turn(self, report: RoundReport) -> _EndedTurn:
        """Ends a turn before its client trains; a client that did not arrive does not train."""
        (client,) = report.clients.tolist()
        received = self._received.pop(client, None)
        if received is None:
            raise StateError(f"client {client} is not training")
        cohort = None
        if report.with_outcome("arrived").all():
            orders = self.federation.orders(report.clients, report.round)
            cohort = Cohort(self._versions[received], orders, np.ones(1))
        return _EndedTurn(report, self.version - received, cohort)

    def _use_result(self, ended: _EndedTurn, result: TrainingResult) -> bool:
        """Adds the update of a client, unless it is not finite; returns whether it made a version to be evaluated."""
        assert ended.cohort is not None
        if not result.finite[0] or not self._add(ended.cohort.weights, result.weights, ended.staleness):
            return False
        self.version += 1
        return self.version % self.federation.evaluate_every == 0

    def _complete_report(self, ended: _EndedTurn, result: TrainingResult | None, accuracy: float | None) -> RoundReport:
        metrics = {**ended.report.metrics, STALENESS: float(ended.staleness)}
        if result is not None:
            metrics["diverged"] = float((~result.finite).sum())
        if accuracy is not None:
            metrics[self.federation.metric] = accuracy
        metrics[VERSION] = float(self.version)
        self._drop_versions()
        loss = np.nan if result is None else float(result.losses[0])
        return replace(ended.report, losses=np.array([loss]), metrics=metrics)

    def _add(self, start: Weights, trained: Weights, stale: int) -> bool:
        """Adds an update; returns whether it made a version."""
        fresh = (1.0 + stale) ** -self.discount
        if self.mixing is not None:
            share = self.mixing * fresh
            self.weights = (1.0 - share) * self.weights + share * trained
            return True
        difference = fresh * (trained - start)
        self._sum = difference if self._sum is None else self._sum + difference
        self._buffered += 1
        if self._buffered < self.updates_per_version:
            return False
        self.weights = self.weights + (1.0 / self.updates_per_version) * self._sum
        self._sum, self._buffered = None, 0
        return True

    def _drop_versions(self) -> None:
        needed = {self.version, *self._received.values()}
        self._versions = {number: model for number, model in self._versions.items() if number in needed}
        self._versions[self.version] = self.weights


def federated_world(
    inner: World, federation: Federation, updates_per_version: int | None = None, **settings: Any
) -> TrainingWorld | BufferedTraining:
    """Returns the world that trains in rounds, or without rounds if it has a `updates_per_version`.

    Args:
        inner: The world that determines availability and exchange times.
        federation: The learner and the data.
        updates_per_version: The number of updates of a version of the model, if there are no rounds.
        **settings: `discount` and `mixing`, without rounds.
    """
    if updates_per_version is not None:
        return BufferedTraining(inner, federation, updates_per_version=updates_per_version, **settings)
    if settings:
        raise SettingError(
            f"{', '.join(settings)} can be set for training without rounds only: set updates_per_version, too"
        )
    return TrainingWorld(inner, federation)


def finish_batched(worlds: Sequence[BufferedTraining], reports: Sequence[RoundReport]) -> list[RoundReport]:
    """Ends one turn in each of several worlds that share a learner, and trains all their clients in one call."""
    learner = worlds[0].federation.learner
    ended = [world._end_turn(report) for world, report in zip(worlds, reports, strict=True)]
    trained = [index for index, turn in enumerate(ended) if turn.cohort is not None]
    cohorts = [turn.cohort for turn in ended if turn.cohort is not None]
    results = dict(zip(trained, learner.train(cohorts) if cohorts else [], strict=True))
    evaluated = [index for index, result in results.items() if worlds[index]._use_result(ended[index], result)]
    models = [worlds[index].weights for index in evaluated]
    accuracies = dict(zip(evaluated, learner.evaluate(models) if models else [], strict=True))
    return [
        world._complete_report(turn, results.get(index), accuracies.get(index))
        for index, (world, turn) in enumerate(zip(worlds, ended, strict=True))
    ]
