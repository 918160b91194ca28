"""Worlds that train, in rounds and without rounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from turnout import RoundOffer, RoundReport, Selection, make_policy
from turnout.errors import SettingError, StateError
from turnout.kernel.arrays import FloatArray
from turnout.kernel.rounds import RoundRecord
from turnout.kernel.slots.turns import FINISHED, STARTED
from turnout.lab import (
    Federation,
    Learner,
    NumpyLearner,
    PaperWorld,
    RoundColumns,
    RunPlan,
    SlotRun,
    Training,
    TrainingWorld,
    World,
    load_dataset,
    make_world,
    partition,
    play,
)
from turnout.lab.analysis.statistics import LearningCurve
from turnout.lab.training.learner_cache import LearnerCache, training_world
from turnout.lab.training.learners.base import Cohort
from turnout.lab.training.world import BufferedTraining, begin_rounds
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
        reports = begin_rounds(batched, offers, selections)()
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


SETTINGS: dict[str, Any] = {"dataset": "digits", "items": 20, "hidden": 8, "batch": 10, "rate": 0.2}


def buffered(seed: int = 0, **settings: Any) -> BufferedTraining:
    world = training_world(seed, **{**SETTINGS, "updates_per_version": 4, **settings})
    assert isinstance(world, BufferedTraining)
    return world


def run_of(world: BufferedTraining, slots: int = 5) -> SlotRun:
    return SlotRun(make_policy("random", 40, cohort_size=1), world, slots)


def by_end(records: list[RoundRecord]) -> list[RoundRecord]:
    return sorted(records, key=lambda record: (record.report.metrics[FINISHED], record.round))


def literal_model(world: BufferedTraining, records: list[RoundRecord]) -> tuple[np.ndarray, list[int]]:
    """Returns the final model and the staleness of each update, event by event, from all models ever made."""
    learner, models = world.federation.learner, [world.federation.learner.initial_weights(world.federation.seed)]
    received: dict[int, int] = {}
    stale, buffer = [], []
    # A turn that begins at the moment at which another one ends begins afterwards.
    events = sorted(
        [(record.report.metrics[FINISHED], 0, record.round, record) for record in records]
        + [(record.report.metrics[STARTED], 1, record.round, record) for record in records],
        key=lambda event: event[:3],
    )
    for _, is_start, decision, record in events:
        if is_start:
            received[decision] = len(models) - 1
            continue
        age = len(models) - 1 - received[decision]
        stale.append(age)
        start = models[received[decision]]
        orders = world.federation.orders(record.report.clients, decision)
        trained = learner.train([Cohort(start, orders, np.ones(1))])[0].weights
        weight = 1 / np.sqrt(1 + age)
        if world.mixing is not None:
            models.append((1 - world.mixing * weight) * models[-1] + world.mixing * weight * trained)
            continue
        buffer.append(weight * (trained - start))
        if len(buffer) == world.updates_per_version:
            models.append(models[-1] + np.mean(buffer, axis=0))
            buffer = []
    return models[-1], stale


@pytest.mark.parametrize("settings", [{}, {"updates_per_version": 1, "mixing": 0.6}], ids=["FedBuff", "FedAsync"])
def test_the_model_equals_a_literal_computation(settings: dict[str, Any]) -> None:
    world = buffered(**settings)
    records = list(run_of(world).play(40))
    expected, stale = literal_model(buffered(**settings), records)
    assert np.allclose(world.weights, expected, atol=1e-12)
    ended = by_end(records)
    assert [record.report.metrics["staleness"] for record in ended] == stale
    assert max(stale) > 0
    versions = [record.report.metrics["version"] for record in ended]
    assert versions == [float((index + 1) // world.updates_per_version) for index in range(40)]
    assert all(np.isfinite(record.report.losses).all() for record in records if record.report.losses is not None)


def test_the_accuracy_of_versions_is_measured_and_rises() -> None:
    world = buffered(evaluate_every=2)
    columns = RoundColumns.from_records(run_of(world).play(240), clients=40)
    measured = ~np.isnan(columns.metrics["accuracy"])
    assert measured.sum() == 240 // 4 // 2
    curve = LearningCurve.of(columns)
    assert (np.diff(curve.minutes) >= 0).all()
    assert curve.length == 240
    assert curve.duration == columns.metrics[FINISHED].max() / 60
    assert curve.accuracies[0] < 0.4 < 0.7 < curve.final
    assert curve.accuracies[-1] == world.federation.learner.evaluate([world.weights])[0]


def test_updates_that_do_not_arrive_or_diverge_do_not_count() -> None:
    world = buffered(rate=1e200)
    records = list(run_of(world).play(30))
    assert world.version == 0
    assert sum(record.report.metrics["diverged"] for record in records) == 30
    lost = buffered()
    run = run_of(lost)
    real_play = lost.inner.play

    def fail(offer: Any, selection: Any) -> Any:
        return replace(real_play(offer, selection), outcomes=["failed"])

    lost.inner.play = fail  # type: ignore[method-assign]
    records = list(run.play(20))
    assert lost.version == 0
    assert all(np.isnan(record.report.losses[0]) for record in records if record.report.losses is not None)
    assert not any("diverged" in record.report.metrics for record in records)


def test_no_more_models_are_kept_than_clients_train_on() -> None:
    world = buffered(updates_per_version=1)
    run = run_of(world, slots=3)
    for _ in range(50):
        run.decide()
        assert len(world._versions) <= 4
    state = world.state()
    state["received"] = state["received"] + 1000
    with pytest.raises(StateError, match="lacks the model of a client that is training"):
        buffered(updates_per_version=1).restore(state)


def test_rounds_and_turns_are_not_confused() -> None:
    with pytest.raises(SettingError, match="this world averages the models of a cohort, so it needs rounds"):
        RunPlan("random", 5, world="training", world_settings=SETTINGS, concurrency=3).start()
    with pytest.raises(SettingError, match="this world has no rounds: set the concurrency"):
        RunPlan("random", 5, world="training", world_settings={**SETTINGS, "updates_per_version": 3}).start()
    with pytest.raises(SettingError, match="mixing makes a version of every update, but updates_per_version is 4"):
        buffered(mixing=0.5)
    with pytest.raises(SettingError, match="mixing is a setting of training without rounds"):
        training_world(**SETTINGS, mixing=0.5)
    with pytest.raises(SettingError, match="the data is split over 40 clients, the world has 12"):
        BufferedTraining(training_world(**SETTINGS, world={"clients": 12}).inner, buffered().federation)


def test_a_client_cannot_have_two_turns_and_must_have_one_to_end_it() -> None:
    world = buffered()
    offer = world.offer(1)
    selection = make_policy("random", 40, cohort_size=1).ask(offer)
    report = world.play(offer, selection)
    with pytest.raises(StateError, match="is training already"):
        world.play(offer, selection)
    world.finish(report)
    with pytest.raises(StateError, match="is not training"):
        world.finish(report)
