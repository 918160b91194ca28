from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from turnout import RoundOffer, RoundReport, Selection, make_policy
from turnout.errors import SettingError, StateError
from turnout.kernel.arrays import FloatArray
from turnout.lab import (
    Federation,
    Learner,
    NumpyLearner,
    PaperWorld,
    Training,
    TrainingWorld,
    World,
    load_dataset,
    make_world,
    partition,
    play,
)
from turnout.lab.training.learner_cache import LearnerCache, training_world
from turnout.lab.training.world import BegunRounds
from turnout.policies.check_support import SmallFleet

DIGITS = load_dataset("digits")


def small_world(*, gamma: float = 1.0, seed: int = 0, rate: float = 0.1, every: int = 1) -> TrainingWorld:
    split = partition(DIGITS.train_labels, items=100, gamma=gamma, seed=seed)
    learner = NumpyLearner(DIGITS, Training(learning_rate=rate), hidden=16)
    return TrainingWorld(PaperWorld(seed), Federation(learner, split, seed, every))


def test_the_model_learns_the_digits_and_is_measured_in_every_nth_round() -> None:
    records = list(play(make_policy("random", 40), small_world(rate=0.5), 60))
    accuracies = [record.report.metrics["accuracy"] for record in records]
    assert accuracies[0] < 0.6
    assert accuracies[-1] > 0.92
    losses = [np.nanmean(record.report.losses) for record in records if record.report.losses is not None]
    assert losses[-1] < losses[0] / 3
    records = list(play(make_policy("random", 40), small_world(gamma=1e-3), 10))
    assert all(record.report.metrics["diverged"] == 0 for record in records)
    records = list(play(make_policy("random", 40), small_world(every=3), 7))
    assert ["accuracy" in record.report.metrics for record in records] == [False, False, True] * 2 + [False]


def test_exchange_times_are_those_of_the_inner_world() -> None:
    trained = [record.report for record in play(make_policy("rbcsf", 40), small_world(), 20)]
    plain = [record.report for record in play(make_policy("rbcsf", 40), PaperWorld(0), 20)]
    for ours, inner in zip(trained, plain, strict=True):
        assert ours.clients.tolist() == inner.clients.tolist()
        assert ours.exchange_times.tolist() == inner.exchange_times.tolist()


def test_diverged_models_are_reported_and_not_averaged() -> None:
    world = small_world(rate=1e200)
    before = world.weights.copy()
    (record,) = play(make_policy("random", 40), world, 1)
    assert record.report.metrics["diverged"] == 8
    assert record.report.losses is not None
    assert np.isnan(record.report.losses).all()
    np.testing.assert_array_equal(world.weights, before)


def test_without_clients_or_arrivals_the_model_is_unchanged() -> None:
    world = small_world()
    before = world.weights.copy()
    offer = world.offer(1)
    report = world.play(offer, Selection(1, np.empty(0, dtype=np.int64)))
    np.testing.assert_array_equal(world.weights, before)
    assert report.duration == 0
    assert "accuracy" in report.metrics
    split = partition(DIGITS.train_labels, items=50)
    world = TrainingWorld(LateWorld(all_late=True), Federation(NumpyLearner(DIGITS, hidden=4), split))
    before = world.weights.copy()
    report = world.play(world.offer(1), Selection(1, np.array([3, 7])))
    np.testing.assert_array_equal(world.weights, before)
    assert report.losses is not None
    assert np.isnan(report.losses).tolist() == [True, True]
    assert report.metrics["diverged"] == 0


class LateWorld(World):
    """A world in which every second client is late, or every client."""

    def __init__(self, *, all_late: bool = False) -> None:
        self.all_late = all_late
        self.fleet = SmallFleet()

    @property
    def clients(self) -> int:
        return 40

    @property
    def availability(self) -> FloatArray:
        return np.full(40, 0.8)

    def offer(self, round: int) -> RoundOffer:
        return self.fleet.offer(round)

    def play(self, offer: RoundOffer, selection: Selection) -> RoundReport:
        chosen = selection.clients
        outcomes = ["arrived" if index % 2 and not self.all_late else "late" for index in range(len(chosen))]
        return RoundReport(offer.round, chosen, offer.contexts[chosen], np.ones(len(chosen)), outcomes=outcomes)

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        pass


def test_only_clients_that_arrived_are_averaged() -> None:
    split = partition(DIGITS.train_labels, items=50)
    learner = NumpyLearner(DIGITS, hidden=0)
    world = TrainingWorld(LateWorld(), Federation(learner, split))
    start = world.weights.copy()
    offer = world.offer(1)
    report = world.play(offer, Selection(1, np.array([3, 7, 11, 19])))
    orders = world.federation.orders(np.array([7, 19]), 1)
    models, losses = learner.train_clients(start, orders)
    np.testing.assert_allclose(world.weights, models.mean(axis=0), rtol=1e-12)
    assert report.losses is not None
    assert np.isnan(report.losses).tolist() == [True, False, True, False]
    assert report.losses[[1, 3]].tolist() == losses.tolist()


def test_a_batched_round_equals_separate_rounds() -> None:
    with LearnerCache():
        worlds = [training_world(seed, items=50, evaluate_every=2) for seed in (0, 1, 2) * 2]
    of_rounds = [world for world in worlds if isinstance(world, TrainingWorld)]
    batched, alone = of_rounds[:3], of_rounds[3:]
    for rounds in ((1, 1, 1), (2, 3, 4)):
        offers = [world.offer(round_) for world, round_ in zip(batched, rounds, strict=True)]
        chosen = [np.flatnonzero(offer.available)[:count] for offer, count in zip(offers, (3, 0, 2), strict=True)]
        selections = [Selection(round_, rows) for round_, rows in zip(rounds, chosen, strict=True)]
        reports = BegunRounds(batched, offers, selections).finish()
        for world, offer, selection, report in zip(alone, offers, selections, reports, strict=True):
            assert report == world.play(offer, selection)
            assert ("accuracy" in report.metrics) == (report.round % 2 == 0)
    for world, separate in zip(batched, alone, strict=True):
        np.testing.assert_array_equal(world.weights, separate.weights)


def test_a_state_that_does_not_fit_is_rejected_and_changes_nothing() -> None:
    world, larger = training_world(items=50, hidden=4), training_world(items=50, hidden=5)
    before = world.weights.copy()
    with pytest.raises(StateError, match="they belong to another model"):
        world.restore(larger.state())
    with pytest.raises(StateError, match="has no 'weights'"):
        world.restore({})
    with pytest.raises(StateError, match="has no 'trained'"):
        world.restore({"weights": 2 * before})
    np.testing.assert_array_equal(world.weights, before)


@pytest.mark.parametrize("setting", [{"evaluate_every": 0}, {"seed": -1}])
def test_invalid_federation_settings_are_rejected(setting: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=next(iter(setting))):
        Federation(NumpyLearner(DIGITS), partition(DIGITS.train_labels, items=50), **setting)


def test_the_settings_of_a_training_world_reach_its_federation() -> None:
    training = {"epochs": 2, "batch": 7, "rate": 0.3, "momentum": 0.5, "weight_decay": 0.01, "proximal": 0.2}
    world = make_world("training", 4, items=50, hidden=3, evaluate_every=6, world={"clients": 20}, **training)
    assert isinstance(world, TrainingWorld)
    federation = world.federation
    assert federation.learner.training == Training(2, 7, 0.3, 0.5, 0.01, 0.2)
    assert isinstance(federation.learner, NumpyLearner)
    assert federation.learner.network.hidden == (3,)
    assert (federation.seed, federation.evaluate_every) == (4, 6)
    assert world.clients == federation.partition.clients == len(world.availability) == 20
    assert np.array_equal(
        federation.partition.items, partition(DIGITS.train_labels, clients=20, items=50, seed=4).items
    )
    assert np.array_equal(world.weights, federation.learner.initial_weights(4))


def test_clients_can_be_sorted_by_class_so_that_their_speed_depends_on_their_data() -> None:
    counts = training_world(items=50, hidden=4, gamma=0.1, by_class=True).federation.partition.counts
    assert (np.diff(counts.argmax(axis=1)) >= 0).all()
    unsorted = training_world(items=50, hidden=4, gamma=0.1).federation.partition.counts
    assert sorted(counts.tolist()) == sorted(unsorted.tolist()) != unsorted.tolist()


def test_settings_of_the_training_world_are_checked() -> None:
    with pytest.raises(SettingError, match="model must be one of mlp, cnn, not 'resnet'"):
        training_world(model="resnet")
    with pytest.raises(SettingError, match=r"the world training has no setting 'datset' \(did you mean 'dataset'\?\)"):
        make_world("training", 0, datset="digits")
    split = partition(DIGITS.train_labels, clients=10, items=50)
    with pytest.raises(SettingError, match="split over 10 clients, the world has 40"):
        TrainingWorld(PaperWorld(), Federation(NumpyLearner(DIGITS), split))
    world = training_world(gamma="iid", items=50, hidden=0)
    assert (world.federation.partition.counts == 5).all()
    with pytest.raises(SettingError, match="gamma must be a number or 'iid', not 'even'"):
        training_world(gamma="even")


def test_worlds_with_equal_training_share_a_learner_while_a_cache_is_open() -> None:
    def build_learner(**settings: Any) -> Learner:
        return training_world(items=50, **settings).federation.learner

    with LearnerCache():
        first = build_learner(seed=0, gamma=0.5)
        assert build_learner(seed=1, gamma=2.0) is first
        assert build_learner(rate=0.2) is not first
        assert build_learner(hidden=7) is not first
        with LearnerCache():
            assert build_learner() is not first
        assert build_learner() is first
    assert build_learner() is not first
    assert build_learner() is not build_learner()
