from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from turnout import RoundOffer, RoundReport, Selection, make_policy
from turnout.kernel.errors import SettingError
from turnout.lab import Federation, NumpyLearner, Training, TrainingWorld, load_dataset, partition
from turnout.lab.world import training_world
from turnout.policies.fleet import SmallFleet
from turnout.simulator import PaperWorld, RunPlan, make_world, play, play_into, play_plan, sweep
from turnout.store import RoundColumns, RunStore

DIGITS = load_dataset("digits")


def small_world(*, gamma: float = 1.0, seed: int = 0, rate: float = 0.1, every: int = 1) -> TrainingWorld:
    holdings = partition(DIGITS.train_labels, items=100, gamma=gamma, seed=seed)
    learner = NumpyLearner(DIGITS, holdings, Training(rate=rate), hidden=16)
    return TrainingWorld(PaperWorld(seed), Federation(learner, holdings, seed, every))


def test_the_model_learns_the_digits() -> None:
    records = list(play(make_policy("random", 40), small_world(rate=0.5), 60))
    accuracies = [record.report.metrics["accuracy"] for record in records]
    assert accuracies[0] < 0.6
    assert accuracies[-1] > 0.92
    losses = [np.nanmean(record.report.losses) for record in records if record.report.losses is not None]
    assert losses[-1] < losses[0] / 3


def test_the_clock_is_the_inner_worlds() -> None:
    trained = [record.report for record in play(make_policy("rbcsf", 40), small_world(), 20)]
    plain = [record.report for record in play(make_policy("rbcsf", 40), PaperWorld(0), 20)]
    for one, other in zip(trained, plain, strict=True):
        assert one.clients.tolist() == other.clients.tolist()
        assert one.exchange_times.tolist() == other.exchange_times.tolist()


def test_clients_of_a_single_class_train_too() -> None:
    records = list(play(make_policy("random", 40), small_world(gamma=1e-3), 10))
    assert all(record.report.metrics["diverged"] == 0 for record in records)


def test_diverged_models_are_told_and_not_averaged() -> None:
    world = small_world(rate=1e200)
    before = world.weights.copy()
    (record,) = play(make_policy("random", 40), world, 1)
    assert record.report.metrics["diverged"] == 8
    assert record.report.losses is not None
    assert np.isnan(record.report.losses).all()
    np.testing.assert_array_equal(world.weights, before)


def test_accuracy_is_measured_as_often_as_wanted() -> None:
    records = list(play(make_policy("random", 40), small_world(every=3), 7))
    assert ["accuracy" in record.report.metrics for record in records] == [False, False, True] * 2 + [False]


def test_a_round_without_anybody_changes_nothing() -> None:
    world = small_world()
    before = world.weights.copy()
    offer = world.offer(1)
    report = world.play(offer, Selection(1, np.empty(0, dtype=np.int64)))
    np.testing.assert_array_equal(world.weights, before)
    assert report.duration == 0
    assert "accuracy" in report.metrics


class HalfLost:
    """A world in which every second client is late."""

    def __init__(self) -> None:
        self.fleet = SmallFleet()
        self.clients = 40
        self.availability = np.full(40, 0.8)

    def offer(self, round: int) -> RoundOffer:  # noqa: A002
        return self.fleet.offer(round)

    def play(self, offer: RoundOffer, selection: Selection) -> RoundReport:
        chosen = selection.clients
        outcomes = ["arrived" if place % 2 else "late" for place in range(len(chosen))]
        return RoundReport(offer.round, chosen, offer.contexts[chosen], np.ones(len(chosen)), outcomes=outcomes)

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        pass


def test_only_those_who_arrived_are_averaged() -> None:
    holdings = partition(DIGITS.train_labels, items=50)
    learner = NumpyLearner(DIGITS, holdings, hidden=0)
    world = TrainingWorld(HalfLost(), Federation(learner, holdings))
    start = world.weights.copy()
    offer = world.offer(1)
    world.play(offer, Selection(1, np.array([3, 7, 11, 19])))
    expected = learner.train(start, [7, 19], seed=0, round=1).weights.mean(axis=0)
    np.testing.assert_allclose(world.weights, expected, rtol=1e-12)


def test_a_resumed_run_is_the_run_it_would_have_been() -> None:
    policy, world = make_policy("rbcsf", 40), small_world()
    whole = list(play(policy, world, 30))
    first_policy, first_world = make_policy("rbcsf", 40), small_world()
    first = list(play(first_policy, first_world, 13))
    second_policy, second_world = make_policy("rbcsf", 40), small_world()
    second_policy.restore(first_policy.state())
    second_world.restore(first_world.state())
    second = list(play(second_policy, second_world, 30, first=14))
    assert (
        RoundColumns.from_records([*first, *second], clients=40).to_bytes()
        == RoundColumns.from_records(whole, clients=40).to_bytes()
    )


def test_data_for_another_number_of_clients_is_refused() -> None:
    holdings = partition(DIGITS.train_labels, clients=10, items=50)
    with pytest.raises(SettingError, match="split over 10 clients, the world has 40"):
        TrainingWorld(PaperWorld(), Federation(NumpyLearner(DIGITS, holdings), holdings))


SETTINGS = {"dataset": "digits", "gamma": 0.5, "items": 60, "hidden": 4, "world": {"clients": 20}}


def a_plan(seed: int = 0) -> RunPlan:
    return RunPlan("random", 12, seed, {"cohort_size": 4}, world="training", world_settings=SETTINGS)


def test_a_training_run_is_planned_saved_resumed_and_swept_like_any_other(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(done: int) -> None:
        if done == 5:
            raise Stop

    with RunStore(tmp_path / "runs.turnout") as store:
        with pytest.raises(Stop):
            play_into(store, a_plan(), every=5, watch=stop)
        run = play_into(store, a_plan(), every=5)
        assert store.columns(run).to_bytes() == play_plan(a_plan()).to_bytes()
        swept = sweep([a_plan(0), a_plan(1), a_plan(2)], store, workers=2)
        assert swept[0] == run
        for number, seed in zip(swept, range(3), strict=True):
            assert store.columns(number).to_bytes() == play_plan(a_plan(seed)).to_bytes()


def test_iid_is_a_gamma_and_nonsense_is_not() -> None:
    world = training_world(gamma="iid", items=50, hidden=0)
    assert (world.federation.holdings.counts == 5).all()
    with pytest.raises(SettingError, match="gamma must be a number or 'iid', not 'even'"):
        training_world(gamma="even")


def test_settings_of_the_training_world_are_known_by_name() -> None:
    with pytest.raises(SettingError, match=r"the world training has no setting 'datset' \(did you mean 'dataset'\?\)"):
        make_world("training", 0, datset="digits")
