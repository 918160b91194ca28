"""The metrics of a training run reach a tracker."""

from __future__ import annotations

import pytest
from flwr.app import ArrayRecord, MetricRecord

from adapters.flower.conftest import OpenFleet
from adapters.flower.in_process import InProcessGrid, model, named_nodes, open_to_all
from tracking.recording import Broken, Recording
from turnout.adapters.flower import FairSelection
from turnout.live._internals import session_of

pytestmark = pytest.mark.usefixtures("clock")


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:  # noqa: ARG001
    return MetricRecord({"accuracy": server_round / 10, "confusion": [1.0, 2.0]})


def test_selection_training_and_evaluations_are_tracked_with_the_round_of_the_fleet(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(settings={"cohort_size": 4, "guaranteed_rate": 0.1})
    grid = InProcessGrid(named_nodes(4, [1.0, 2.5, 0.25, 7.0]))
    FairSelection(open_to_all(), scheduler).start(grid, model(0.0), num_rounds=2)  # two rounds before
    recording = Recording()
    fair = FairSelection(open_to_all(), scheduler, tracker=recording)
    result = fair.start(grid, model(0.0), num_rounds=3, evaluate_fn=evaluate)
    assert recording.values("round/selected") == {3: 4.0, 4: 4.0, 5: 4.0}
    assert recording.values("server/accuracy") == {2: 0.0, 3: 0.1, 4: 0.2, 5: 0.3}
    train = {number + 2: metrics["train_loss"] for number, metrics in result.train_metrics_clientapp.items()}
    assert recording.values("train/train_loss") == train
    assert sorted(recording.values("promise/turns_behind")) == [3, 4, 5]
    names = {name for _, metrics in recording.steps for name in metrics}
    assert any(name.startswith("evaluate/") for name in names)
    assert not any("confusion" in name or "turnout-" in name for name in names)
    assert recording.closed == 1
    assert session_of(scheduler).tracker is None


def test_a_tracker_that_fails_does_not_stop_training(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(settings={"cohort_size": 4})
    broken = Broken()
    FairSelection(open_to_all(), scheduler, tracker=broken).start(
        InProcessGrid(named_nodes(4, 1.0)), model(0.0), num_rounds=3
    )
    assert scheduler.round == 3
    assert len(broken.steps) >= 3
    assert broken.closed == 1
