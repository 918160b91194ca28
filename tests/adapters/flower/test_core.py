"""The core trains without the parts around it: checks, groups, resume, slots and simulated worlds."""

from __future__ import annotations

import pytest
from flwr.serverapp.strategy import FedAvg

from adapters.flower.conftest import OpenFleet
from adapters.flower.in_process import InProcessGrid, model, named_nodes, open_to_all, turns_of
from turnout.adapters.flower import ExchangeSettings
from turnout.adapters.flower.core.exchange import Exchange
from turnout.adapters.flower.core.messages import Messenger
from turnout.adapters.flower.core.nodes import NodeDirectory
from turnout.adapters.flower.core.parts import Aggregator, Judge, Parts
from turnout.adapters.flower.core.progress import Progress
from turnout.adapters.flower.core.training import Training
from turnout.live import PAPER_FEATURES


@pytest.mark.usefixtures("clock")
def test_the_core_alone_trains_and_evaluates_on_the_selected_clients(open_fleet: OpenFleet) -> None:
    scheduler, grid = open_fleet(), InProcessGrid(named_nodes(4))
    strategy: FedAvg = open_to_all()
    progress, nodes = Progress(scheduler), NodeDirectory(PAPER_FEATURES, 30.0)
    progress.begin(model(0.0), 4)
    judge, aggregator = Judge(), Aggregator(strategy)
    settings, messenger = ExchangeSettings(), Messenger(grid, 0.25)
    parts = Parts(strategy, scheduler, nodes, settings, messenger, judge, aggregator, progress)
    result = Training(parts, Exchange(parts)).run()
    assert [len(cohort) for cohort in grid.asked("train")] == [2] * 4
    assert sum(turns_of(scheduler).values()) == 8
    assert len(turns_of(scheduler)) == 4
    assert list(result.train_metrics_clientapp) == list(result.evaluate_metrics_clientapp) == [1, 2, 3, 4]
    assert list(scheduler.path.parent.glob("*.run.*")) == []
