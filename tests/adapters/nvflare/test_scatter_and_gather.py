"""ScatterAndGather, which otherwise asks all clients, with NVFlare's own aggregator and shareable generator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from nvflare.apis.dxo import DataKind
from nvflare.apis.fl_constant import ReturnCode
from nvflare.app_common.abstract.model import ModelLearnable, ModelLearnableKey, make_model_learnable
from nvflare.app_common.abstract.model_persistor import ModelPersistor
from nvflare.app_common.aggregators.intime_accumulate_model_aggregator import InTimeAccumulateWeightedAggregator
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.shareablegenerators.full_model_shareable_generator import FullModelShareableGenerator

from adapters.nvflare.conftest import MakeJob
from adapters.nvflare.in_process import Job, Work, always, in_turn
from adapters.nvflare.test_rounds import kinds_in, outcomes_in
from turnout.adapters.nvflare import FairScatterAndGather
from turnout.live import FleetReader


class Persistor(ModelPersistor):
    """Keeps the model of each round in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.saved: list[float] = []

    def load_model(self, _fl_ctx: Any) -> ModelLearnable:
        return make_model_learnable({"w": np.zeros(2)}, {})

    def save_model(self, model: ModelLearnable, _fl_ctx: Any) -> None:
        self.saved.append(float(model[ModelLearnableKey.WEIGHTS]["w"][0]))


def run(job: Job, fleet: str, **settings: Any) -> list[float]:
    """Runs the controller and returns the saved models."""
    persistor = Persistor()
    aggregator = InTimeAccumulateWeightedAggregator(expected_data_kind=DataKind.WEIGHTS)
    generator = FullModelShareableGenerator()
    job.engine.components = {"aggregator": aggregator, "shareable_generator": generator, "persistor": persistor}
    controller = FairScatterAndGather(
        persistor_id="persistor",
        **{"min_clients": 2, **settings},
        selection={"fleet": fleet, "guarantee": {"guaranteed_rate": 0.1}, "deadline": 10},
    )
    for component in (aggregator, generator, persistor):
        with job.engine.new_context() as fl_ctx:
            component.handle_event("_start_run", fl_ctx)
    job.run(controller)
    return persistor.saved


def test_the_model_goes_to_the_cohort_only(make_job: MakeJob, fleet: str) -> None:
    job = make_job(a=always(), b=always(), c=always(), d=always())
    assert run(job, fleet, num_rounds=6) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert job.engine.panics == []
    assert sum(client.tasks for client in job.clients.values()) == 12
    assert min(client.tasks for client in job.clients.values()) >= 2
    with FleetReader(fleet) as scheduler:
        assert all(len(scheduler.history(round=number)) == 2 for number in range(1, 7))
        assert scheduler.certificate().status == "kept"


def test_min_clients_above_the_number_of_clients_asks_all_of_them(make_job: MakeJob, fleet: str) -> None:
    job = make_job(a=always(), b=always())
    assert run(job, fleet, num_rounds=1, min_clients=1000) == [1.0]
    assert [client.tasks for client in job.clients.values()] == [1, 1]


@pytest.mark.parametrize("bad", [Work(answer=ReturnCode.EXECUTION_EXCEPTION), Work(silent=True)], ids=["error", "late"])
def test_failures_and_rounds_without_results_keep_the_model(make_job: MakeJob, fleet: str, bad: Work) -> None:
    job = make_job(a=in_turn(Work(), bad), b=in_turn(Work(), Work(answer=ReturnCode.EXECUTION_EXCEPTION)))
    saved = run(job, fleet, num_rounds=2)
    assert job.engine.panics == []
    assert saved == [1.0, 1.0]
    assert kinds_in(fleet, 2) == {"a": "late" if bad.silent else "failed", "b": "failed"}


def test_a_result_that_the_aggregator_rejects_is_a_failure(make_job: MakeJob, fleet: str) -> None:
    stale = {AppConstants.CONTRIBUTION_ROUND: 7}
    job = make_job(a=always(), b=always(cookies=stale))
    assert run(job, fleet, num_rounds=1) == [1.0]
    assert job.engine.panics == []
    refused = ("failed", "its result was not accepted for aggregation")
    assert outcomes_in(fleet, 1) == {"a": ("arrived", None), "b": refused}


def test_a_job_that_is_aborted_ends(make_job: MakeJob, fleet: str) -> None:
    job = make_job(a=always())
    job.clients["a"].asks = False
    job.after(40, job.abort)
    assert run(job, fleet, num_rounds=3) == []
    assert job.clock.now - job.start < 45
