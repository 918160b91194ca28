"""The metrics of a training run reach a tracker."""

from __future__ import annotations

import pytest
from flwr.app import ArrayRecord, MetricRecord

from adapters.flower.conftest import OpenFleet
from adapters.flower.in_process import InProcessGrid, named_nodes, train
from tracking.recording import Broken, Recording

pytestmark = pytest.mark.usefixtures("clock")


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:  # noqa: ARG001
    return MetricRecord({"accuracy": server_round / 10, "confusion": [1.0, 2.0]})


def test_selection_training_and_evaluations_are_tracked_with_the_round_of_the_fleet(open_fleet: OpenFleet) -> None:
    former = Recording()
    scheduler = open_fleet(settings={"cohort_size": 4, "guaranteed_rate": 0.1}, tracker=former)
    grid = InProcessGrid(named_nodes(4, [1.0, 2.5, 0.25, 7.0]))
    train(scheduler, grid, rounds=2)  # two rounds before
    recording = Recording()
    result = train(scheduler, grid, rounds=3, evaluate_fn=evaluate, tracker=recording)
    assert recording.values("round/selected") == {3: 4.0, 4: 4.0, 5: 4.0}
    assert recording.values("server/accuracy") == {2: 0.0, 3: 0.1, 4: 0.2, 5: 0.3}
    losses = {number + 2: metrics["train_loss"] for number, metrics in result.train_metrics_clientapp.items()}
    assert recording.values("train/train_loss") == losses
    assert sorted(recording.values("promise/turns_behind")) == [3, 4, 5]
    names = {name for _, metrics in recording.steps for name in metrics}
    assert any(name.startswith("evaluate/") for name in names)
    assert not any("confusion" in name or "turnout-" in name for name in names)
    train(scheduler, grid, rounds=1)  # untracked: the tracker of the run has replaced the former, and ended with it
    assert (sorted(former.values("round/selected")), former.closed) == ([1, 2], 1)
    assert (max(step for step, _ in recording.steps), recording.closed) == (5, 1)


def test_a_tracker_that_fails_does_not_stop_training(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(settings={"cohort_size": 4})
    broken = Broken()
    train(scheduler, InProcessGrid(named_nodes(4, 1.0)), rounds=3, tracker=broken)
    assert scheduler.round == 3
    assert len(broken.steps) >= 3
    assert broken.closed == 1
