"""Training without rounds: FedBuff and FedAsync."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from turnout import make_policy
from turnout.errors import SettingError, StateError
from turnout.kernel.rounds import RoundRecord
from turnout.kernel.slots.turns import FINISHED, STARTED
from turnout.lab import RoundColumns, RunPlan, SlotRun
from turnout.lab.analysis.learning_curves import LearningCurve
from turnout.lab.training.buffered import BufferedTraining
from turnout.lab.training.learner_cache import training_world
from turnout.lab.training.learners.base import Cohort

DIGITS: dict[str, Any] = {"dataset": "digits", "items": 20, "hidden": 8, "batch": 10, "rate": 0.2}


def buffered(seed: int = 0, **settings: Any) -> BufferedTraining:
    world = training_world(seed, **{**DIGITS, "updates_per_version": 4, **settings})
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
        RunPlan("random", 5, world="training", world_settings=DIGITS, concurrency=3).start()
    with pytest.raises(SettingError, match="this world has no rounds: set the concurrency"):
        RunPlan("random", 5, world="training", world_settings={**DIGITS, "updates_per_version": 3}).start()
    with pytest.raises(SettingError, match="mixing makes a version of every update, but updates_per_version is 4"):
        buffered(mixing=0.5)
    with pytest.raises(SettingError, match="mixing is a setting of training without rounds"):
        training_world(**DIGITS, mixing=0.5)
    with pytest.raises(SettingError, match="the data is split over 40 clients, the world has 12"):
        BufferedTraining(training_world(**DIGITS, world={"clients": 12}).inner, buffered().federation)


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
