"""Every order of events in a round, with NVFlare's own controllers and task manager."""

from __future__ import annotations

import inspect
import logging
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nvflare.apis.controller_spec import Task, TaskCompletionStatus, TaskOperatorKey
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable
from nvflare.app_common.app_constant import AlgorithmConstants, AppConstants
from nvflare.app_common.workflows.fedavg import FedAvg

from adapters.nvflare.conftest import MakeJob
from adapters.nvflare.controllers import Averaging, OneAfterTheOther, Scaffolding, TwoTasks
from adapters.nvflare.in_process import REQUEST_INTERVAL, Job, Work, always, in_turn
from narrowing import known
from tracking.recording import Recording
from turnout.adapters.nvflare.rounds import ClientDirectory, FleetRounds
from turnout.adapters.nvflare.selection import _content_of, _limit, _model_problem
from turnout.errors import SettingError
from turnout.live import PAPER_FEATURES, FleetReader, Scheduler, Turn
from turnout.live._internals import examine

FAIR: dict[str, Any] = {"guarantee": {"guaranteed_rate": 0.2}, "deadline": 10}


def selected(fleet: str, **settings: Any) -> Any:
    """Returns the options of the selection."""
    return {"fleet": fleet, **FAIR, **settings}


def fedavg(fleet: str, *, num_clients: int = 2, num_rounds: int = 1, **settings: Any) -> Averaging:
    return Averaging(num_clients=num_clients, num_rounds=num_rounds, selection=selected(fleet, **settings))


def turns_of(fleet: str, client: str) -> list[Turn]:
    with FleetReader(fleet) as scheduler:
        return scheduler.history(client)


def turns_in(fleet: str, round: int) -> dict[str, Turn]:
    with FleetReader(fleet) as scheduler:
        return {turn.id: turn for turn in scheduler.history(round=round)}


def kinds_in(fleet: str, round: int) -> dict[str, str | None]:
    return {client: turn.kind for client, turn in turns_in(fleet, round).items()}


def outcomes_in(fleet: str, round: int) -> dict[str, tuple[str | None, str | None]]:
    return {client: (turn.kind, turn.why) for client, turn in turns_in(fleet, round).items()}


def rounds_of(fleet: str) -> int:
    """Returns the number of closed rounds; asserts that the file is sound and no round is open."""
    assert all(finding.ok is not False for finding in examine(Path(fleet)))
    with FleetReader(fleet) as scheduler:
        assert scheduler.open_round() is None
        return scheduler.round


# Results before and after the deadline


def test_results_before_the_deadline_are_aggregated_and_timed_from_the_task_on(make_job: MakeJob, fleet: str) -> None:
    job, controller = make_job(a=always(seconds=1), b=always(seconds=5)), fedavg(fleet)
    job.run(controller)
    assert controller.saved == [1.0]
    turns = turns_in(fleet, 1)
    assert {turn.kind for turn in turns.values()} == {"arrived"}
    for client, seconds in (("a", 1), ("b", 5)):  # a client asks for work at most one interval after the task was sent
        assert seconds <= (turns[client].seconds or 0) <= seconds + REQUEST_INTERVAL + 0.2
    assert rounds_of(fleet) == 1


def test_a_client_beyond_the_deadline_is_late_and_its_next_request_tells_its_time(
    make_job: MakeJob, fleet: str
) -> None:
    job = make_job(a=always(seconds=1), slow=always(seconds=25))
    controller = fedavg(fleet, num_rounds=12)
    job.run(controller)
    first = turns_of(fleet, "slow")[0]
    assert (first.round, first.kind, first.seconds) == (1, "late", 10.0)
    assert 25 <= (first.late_seconds or 0) <= 25 + 2 * REQUEST_INTERVAL
    assert job.clients["slow"].dropped >= 1
    assert controller.saved[0] == 1.0  # the round was aggregated without it
    assert rounds_of(fleet) == 12


def test_a_client_that_is_still_busy_with_a_late_task_is_not_selected(make_job: MakeJob, fleet: str) -> None:
    make_job(a=always(seconds=1), slow=always(seconds=60)).run(fedavg(fleet, num_rounds=8))
    with FleetReader(fleet) as scheduler:
        assert [turn.round for turn in scheduler.history("slow")] == [1]
        assert scheduler.round == 8
        assert scheduler.certificate().promised[scheduler.clients.index("slow")] < 1  # it earned nothing meanwhile


def test_a_deadline_that_is_no_whole_number_is_rounded_up_for_nvflare_only(make_job: MakeJob, fleet: str) -> None:
    job = make_job(a=always(seconds=1), slow=always(silent=True))
    controller = TwoTasks(num_rounds=1, num_clients=2, selection=selected(fleet, deadline=4.5))
    job.after(8, job.abort)
    job.run(controller)
    assert controller.timeouts == [5, 5]
    assert turns_of(fleet, "slow")[0].seconds == 4.5


@pytest.mark.parametrize(("settings", "limits"), [(FAIR, [10, 3]), ({}, [3, 3])], ids=["deadline", "no deadline"])
def test_the_deadline_of_the_fleet_replaces_the_time_limit_of_the_controller(
    make_job: MakeJob, fleet: str, settings: dict[str, Any], limits: list[int]
) -> None:
    class Limited(TwoTasks):
        def run(self) -> None:
            model, cohort = self.load_model(), self.sample_clients(2)
            self.send_model_and_wait(targets=cohort, data=model, timeout=3)
            self.send_model_and_wait(task_name="validate", targets=cohort, data=model, timeout=3)

    job = make_job(a=always(seconds=1), b=always(silent=True))
    controller = Limited(num_rounds=1, num_clients=2, selection={"fleet": fleet, **settings})
    job.run(controller)
    assert controller.timeouts == limits  # a limit of another task is kept
    late = turns_of(fleet, "b")[0]
    assert late.kind == "late"
    assert limits[0] <= (late.seconds or 0) <= limits[0] + 1


def test_an_automatic_deadline_follows_the_learned_times(make_job: MakeJob, fleet: str) -> None:
    script = in_turn(*[Work(seconds=1)] * 3, Work(silent=True))
    job = make_job(a=always(seconds=1), b=script)
    job.run(fedavg(fleet, deadline="auto", num_rounds=5, deadline_ceiling=100.0))
    hung = turns_of(fleet, "b")[3]
    assert hung.kind == "late"
    assert (hung.seconds or 0) < 30
    assert rounds_of(fleet) == 5


def test_the_first_results_end_an_overcommitted_round_and_the_others_are_cut_off(make_job: MakeJob, fleet: str) -> None:
    job = make_job(a=always(seconds=1), b=always(seconds=2), c=always(seconds=8))
    job.run(fedavg(fleet, num_rounds=1, overcommit=1.5))
    assert kinds_in(fleet, 1) == {"a": "arrived", "b": "arrived", "c": "cut_off"}
    assert job.clock.now - job.start < 8


# Failures


@pytest.mark.parametrize(
    ("result", "why"),
    [
        *(
            ({"answer": code}, f"returned {code}")
            for code in (ReturnCode.EXECUTION_EXCEPTION, ReturnCode.TASK_ABORTED, ReturnCode.BAD_TASK_DATA)
        ),
        ({"params": {}}, "returned a model without parameters"),
        ({"params": {"w": np.array([np.nan])}}, "its result cannot be used: its array 'w' contains values that are"),
    ],
)
@pytest.mark.parametrize("first", [True, False], ids=["before the others", "after the others"])
def test_a_result_that_cannot_be_used_is_the_failure_of_that_client_and_the_job_goes_on(
    make_job: MakeJob, fleet: str, result: dict[str, Any], why: str, first: bool
) -> None:
    job = make_job(a=always(seconds=2), b=always(seconds=1 if first else 5, **result))
    controller = fedavg(fleet, num_rounds=2, backoff_after=5)
    job.run(controller)
    assert job.engine.panics == []
    assert controller.saved == [1.0, 2.0]
    assert [turn.kind for turn in turns_of(fleet, "b")] == ["failed"] * 2
    assert all(str(turn.why).startswith(why) for turn in turns_of(fleet, "b"))
    assert job.clock.now - job.start < 20  # no round waited for the deadline


def raise_error(_: Any) -> None:
    raise ValueError("three columns")


def reject(fl_ctx: Any) -> None:
    fl_ctx.set_prop(AppConstants.AGGREGATION_ACCEPTED, False, private=True, sticky=False)


@pytest.mark.parametrize(
    ("refuse", "why"),
    [
        (raise_error, "its result could not be processed: ValueError('three columns')"),
        (reject, "its result was not accepted for aggregation"),
    ],
)
def test_a_result_that_is_not_accepted_is_a_failure(make_job: MakeJob, fleet: str, refuse: Any, why: str) -> None:
    class Picky(Averaging):
        def _process_result(self, client_task: Any, fl_ctx: Any) -> None:
            if client_task.client.name == "b":
                refuse(fl_ctx)
            else:
                super()._process_result(client_task, fl_ctx)

    job = make_job(a=always(seconds=3), b=always(seconds=1))
    controller = Picky(num_clients=2, num_rounds=1, selection=selected(fleet))
    job.run(controller)
    assert controller.saved == [1.0]  # the result of a, which came later, counts
    assert outcomes_in(fleet, 1) == {"a": ("arrived", None), "b": ("failed", why)}


# Clients that are dead or gone


def test_a_client_that_dies_with_its_task_fails_and_the_others_train_on(make_job: MakeJob, fleet: str) -> None:
    job = make_job(a=always(seconds=1), b=always(silent=True))
    job.after(5, lambda: job.kill("b"))
    job.run(fedavg(fleet, num_rounds=10, deadline=200))
    turn = turns_of(fleet, "b")[0]
    assert (turn.kind, turn.why) == ("failed", "was disconnected")
    assert job.clock.now - job.start < 150  # the round ended when NVFlare gave the client up
    assert [turn.round for turn in turns_of(fleet, "b")] == [1]
    assert rounds_of(fleet) == 10


def test_a_client_that_is_disconnected_at_the_deadline_failed_and_is_not_late(make_job: MakeJob, fleet: str) -> None:
    job = make_job(a=always(silent=True), b=always(silent=True))
    job.after(5, lambda: job.kill("b"))
    job.run(fedavg(fleet, deadline=100))
    assert outcomes_in(fleet, 1) == {"a": ("late", None), "b": ("failed", "was disconnected")}


def test_a_task_that_nvflare_cancels_is_a_failure_of_those_without_an_answer(make_job: MakeJob, fleet: str) -> None:
    job = make_job(a=always(seconds=1), b=always(seconds=8))
    job.after(5, lambda: job.communicator.cancel_all_tasks())
    controller = fedavg(fleet)
    job.run(controller)
    assert controller.saved == [1.0]
    assert outcomes_in(fleet, 1) == {"a": ("arrived", None), "b": ("failed", "NVFlare cancelled the task")}


def test_a_dead_client_is_available_again_after_it_asks_for_work(make_job: MakeJob, fleet: str) -> None:
    job = make_job(a=always(seconds=20), b=in_turn(Work(silent=True), Work()))

    def restart() -> None:
        job.clients["b"].asks, job.clients["b"].due = True, 0.0
        with job.engine.new_context() as fl_ctx:
            job.communicator.client_is_active("b", "restarted", fl_ctx)

    job.after(5, lambda: job.kill("b"))
    job.after(120, restart)
    job.run(fedavg(fleet, num_rounds=20, deadline=30))
    turns = turns_of(fleet, "b")
    assert turns[0].kind == "late"
    assert turns[0].late_seconds is None  # the time of the restart says nothing about its speed
    assert turns[-1].kind == "arrived"


def test_a_client_that_does_not_fetch_its_task_fails(make_job: MakeJob, fleet: str) -> None:
    job = make_job(a=always(seconds=1), b=always())

    def stop_asking() -> None:
        job.clients["b"].asks = False

    class Stopping(Averaging):
        def sample_clients(self, num_clients: int | None = None) -> list[str]:
            cohort = super().sample_clients(num_clients)
            stop_asking()
            return cohort

    job.run(Stopping(num_clients=2, num_rounds=1, selection=selected(fleet)))
    turn = turns_of(fleet, "b")[0]
    assert turn.kind == "failed"
    assert str(turn.why).startswith("did not fetch the task within 10 s")


@pytest.mark.parametrize(("asks_after", "patience", "waits"), [(15, 100, (15, 30)), (None, 12, (12, 60))])
def test_the_first_round_waits_for_all_clients_to_ask_for_work_but_not_for_ever(
    make_job: MakeJob, fleet: str, asks_after: int | None, patience: float, waits: tuple[int, int]
) -> None:
    job = make_job(a=always(), b=always())
    job.clients["b"].asks, job.clients["b"].due = asks_after is not None, job.start + (asks_after or 0)
    job.run(fedavg(fleet, patience=patience))
    assert turns_in(fleet, 1).keys() == ({"a"} if asks_after is None else {"a", "b"})
    assert waits[0] < job.clock.now - job.start < waits[1]


def test_the_first_contact_has_no_time_limit_and_nobody_waits_for_a_slow_one(make_job: MakeJob, fleet: str) -> None:
    job = make_job(a=always(), b=always())
    for name, start in (("a", 60), ("b", 90)):
        job.clients[name].due = job.start + start
    controller = fedavg(fleet, num_rounds=20)
    job.run(controller)
    assert controller.saved == [float(number) for number in range(1, 21)]
    turns = turns_of(fleet, "a") + turns_of(fleet, "b")
    assert {turn.kind for turn in turns} == {"arrived"}
    assert turns_in(fleet, 1).keys() == {"a"}
    assert turns_in(fleet, 20).keys() == {"a", "b"}


def test_clients_whose_script_is_slow_to_start_train_after_it_has_started(make_job: MakeJob, fleet: str) -> None:
    """NVFlare fetches the first task before the training script has imported its packages."""
    script = in_turn(Work(seconds=60), Work(seconds=1))
    job, controller = make_job(a=script, b=script), fedavg(fleet, num_rounds=3)
    job.run(controller)
    assert kinds_in(fleet, 1) == {"a": "late", "b": "late"}
    assert kinds_in(fleet, 2) == kinds_in(fleet, 3) == {"a": "arrived", "b": "arrived"}
    assert controller.saved == [0.0, 1.0, 2.0]


# Rounds without results, and rounds without clients


def test_a_round_without_results_keeps_the_model(
    make_job: MakeJob, fleet: str, caplog: pytest.LogCaptureFixture
) -> None:
    script = in_turn(Work(), Work(answer=ReturnCode.EXECUTION_EXCEPTION), Work())
    job = make_job(a=script, b=script)
    controller = fedavg(fleet, num_rounds=3)
    job.run(controller)
    assert job.engine.panics == []
    assert controller.saved == [1.0, 1.0, 2.0]
    assert "nobody contributed to this round: the model is unchanged" in caplog.text


def test_a_round_of_scaffold_in_which_nobody_returns_keeps_model_and_controls(make_job: MakeJob, fleet: str) -> None:
    controls = {AlgorithmConstants.SCAFFOLD_CTRL_DIFF: {"w": np.ones(2)}}
    job = make_job(a=in_turn(Work(params={"w": np.ones(2)}, meta=controls), Work(silent=True)))
    controller = Scaffolding(num_clients=1, num_rounds=2, selection=selected(fleet))
    job.run(controller)
    assert job.engine.panics == []
    assert controller.saved == [1.0, 1.0]
    np.testing.assert_array_equal(controller._global_ctrl_weights["w"], np.ones(2))
    assert [turn.kind for turn in turns_of(fleet, "a")] == ["arrived", "late"]


def test_control_variates_of_scaffold_that_are_not_finite_are_a_failure(make_job: MakeJob, fleet: str) -> None:
    def work(control: float) -> Any:
        controls = {AlgorithmConstants.SCAFFOLD_CTRL_DIFF: {"w": np.full(2, control)}}
        return always(params={"w": np.ones(2)}, meta=controls)

    controller = Scaffolding(num_clients=2, num_rounds=1, selection=selected(fleet))
    make_job(a=work(1.0), b=work(np.nan)).run(controller)
    assert kinds_in(fleet, 1) == {"a": "arrived", "b": "failed"}
    assert np.isfinite(controller._global_ctrl_weights["w"]).all()


def test_a_model_aggregator_is_not_asked_when_nobody_returned(make_job: MakeJob, fleet: str) -> None:
    if "aggregator" not in inspect.signature(FedAvg).parameters:
        pytest.skip("FedAvg of NVFlare 2.7 has no aggregator")
    from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
    from nvflare.app_common.aggregators.model_aggregator import ModelAggregator

    class Last(ModelAggregator):
        def __init__(self) -> None:
            super().__init__()
            self.accepted: list[FLModel] = []

        def accept_model(self, model: FLModel) -> None:
            self.accepted.append(model)

        def aggregate_model(self) -> FLModel:
            return FLModel(params_type=ParamsType.FULL, params=self.accepted[-1].params)

        def reset_stats(self) -> None:
            self.accepted.clear()

    job = make_job(a=in_turn(Work(), Work(answer=ReturnCode.EXECUTION_EXCEPTION), Work()))
    controller = Averaging(num_clients=1, num_rounds=3, aggregator=Last(), selection=selected(fleet))
    job.run(controller)
    assert job.engine.panics == []
    assert controller.saved == [1.0, 1.0, 2.0]


def test_rounds_in_which_every_client_is_backed_off_cost_the_job_no_round(make_job: MakeJob, fleet: str) -> None:
    bad = Work(answer=ReturnCode.EXECUTION_EXCEPTION)
    job = make_job(a=in_turn(bad, bad, bad, Work()))
    controller = fedavg(fleet, num_clients=1, num_rounds=4, backoff_after=1)
    job.run(controller)
    assert [turn.kind for turn in turns_of(fleet, "a")] == ["failed", "failed", "failed", "arrived"]
    assert controller.saved == [0.0, 0.0, 0.0, 1.0]
    assert rounds_of(fleet) == 4 + 1 + 2 + 4  # back-offs of 1, 2 and 4 rounds
    assert job.clock.now - job.start >= 2 * (1 + 2 + 4)  # which are not skipped in no time


def test_the_job_waits_until_a_client_is_there(make_job: MakeJob, fleet: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    job = make_job(a=always())
    job.clients["a"].asks = False

    def arrive() -> None:
        job.clients["a"].asks = True

    job.after(100, arrive)
    controller = fedavg(fleet, num_clients=1, num_rounds=2)
    job.run(controller)
    assert controller.saved == [1.0, 2.0]
    assert "no client has been available for 30 s" in caplog.text


# Tasks that are not the work of a round, and several tasks in a round


def test_only_the_first_task_of_a_cohort_counts_and_both_have_the_deadline(make_job: MakeJob, fleet: str) -> None:
    job = make_job(a=always(seconds=1), b=in_turn(Work(seconds=1), Work(silent=True)))
    controller = TwoTasks(num_rounds=1, num_clients=2, selection=selected(fleet))
    job.run(controller)
    assert controller.evaluated == [1]  # b hung in the evaluation
    assert controller.open_rounds == [False]  # the round was closed with its last outcome
    assert job.clients["b"].names == ["train", "validate"]
    assert kinds_in(fleet, 1) == {"a": "arrived", "b": "arrived"}
    assert rounds_of(fleet) == 1


def test_a_second_task_at_the_same_time_does_not_keep_the_round_open(make_job: MakeJob, fleet: str) -> None:
    class Parallel(TwoTasks):
        def run(self) -> None:
            model, cohort = self.load_model(), self.sample_clients(1)
            for task_name in ("train", "validate"):
                self.send_model(task_name=task_name, targets=cohort, data=model, callback=lambda _: None)
            while self.get_num_standing_tasks():
                self.open_rounds.append(self.scheduler is not None and self.scheduler.open_round is not None)
                time.sleep(1)

    job = make_job(a=in_turn(Work(seconds=1), Work(seconds=6)))
    controller = Parallel(num_rounds=1, num_clients=1, selection=selected(fleet))
    job.run(controller)
    assert job.clients["a"].names == ["train", "validate"]
    assert controller.open_rounds[0]
    assert not controller.open_rounds[-1]  # while the second task is still running
    assert (turns_of(fleet, "a")[0].seconds or 0) < 1 + REQUEST_INTERVAL + 0.2


@pytest.mark.parametrize("goes_on", [True, False], ids=["another round", "the end"])
def test_a_task_that_has_ended_counts_before_nvflare_says_so(make_job: MakeJob, fleet: str, goes_on: bool) -> None:
    class Quick(TwoTasks):
        def run(self) -> None:
            model = self.load_model()
            self.send_model(targets=self.sample_clients(2), data=model, callback=lambda _: None)
            time.sleep(6)
            self.cancel_all_tasks(completion_status=TaskCompletionStatus.TIMEOUT)
            if goes_on:
                self.send_model_and_wait(targets=self.sample_clients(2), data=model)

    job = make_job(a=always(seconds=1), b=always(seconds=30))
    job.run(Quick(num_rounds=1, num_clients=2, selection=selected(fleet)))
    assert job.engine.panics == []
    assert kinds_in(fleet, 1) == {"a": "arrived", "b": "late"}
    assert rounds_of(fleet) == (2 if goes_on else 1)


def test_the_callback_of_the_controller_for_the_end_of_a_task_is_called(make_job: MakeJob, fleet: str) -> None:
    ended: list[str] = []

    class Listening(TwoTasks):
        def broadcast_and_wait(self, task: Any, *args: Any, **kwargs: Any) -> Any:
            task.task_done_cb = lambda task, **_: ended.append(task.name)
            return super().broadcast_and_wait(task, *args, **kwargs)

    make_job(a=always(), b=always()).run(Listening(num_rounds=1, num_clients=2, selection=selected(fleet)))
    assert ended == ["train", "validate"]


def test_tasks_for_one_client_after_the_other_are_one_round(make_job: MakeJob, fleet: str) -> None:
    job = make_job(a=always(seconds=1), b=always(seconds=2), c=always(answer=ReturnCode.EXECUTION_EXCEPTION))
    job.run(OneAfterTheOther(num_rounds=2, num_clients=3, selection=selected(fleet, backoff_after=5)))
    assert rounds_of(fleet) == 2
    assert kinds_in(fleet, 2) == {"a": "arrived", "b": "arrived", "c": "failed"}
    assert (turns_in(fleet, 1)["b"].seconds or 0) < 2 + REQUEST_INTERVAL + 0.5  # since its own task was sent


def test_a_client_to_which_the_controller_sends_nothing_is_not_late(make_job: MakeJob, fleet: str) -> None:
    class Forgetful(TwoTasks):
        def run(self) -> None:
            model = self.load_model()
            for _ in range(2):
                self.send_model_and_wait(targets=self.sample_clients(2)[:1], data=model)

    make_job(a=always(), b=always()).run(Forgetful(num_rounds=1, num_clients=2, selection=selected(fleet)))
    kinds = Counter((turn.kind, turn.why) for turn in turns_in(fleet, 1).values())
    assert kinds == {("arrived", None): 1, ("failed", "the controller sent it no task"): 1}


def test_a_cohort_that_is_sampled_again_without_a_task_is_not_a_round(make_job: MakeJob, fleet: str) -> None:
    class Hesitant(TwoTasks):
        def run(self) -> None:
            model = self.load_model()
            self.cohorts = [self.sample_clients(1) for _ in range(3)]
            self.send_model_and_wait(targets=self.cohorts[-1], data=model)

    job = make_job(a=always(), b=always())
    controller = Hesitant(num_rounds=1, num_clients=1, selection=selected(fleet))
    job.run(controller)
    assert controller.cohorts[0] == controller.cohorts[1] == controller.cohorts[2]
    assert rounds_of(fleet) == 1


def test_tasks_for_other_clients_are_left_alone(make_job: MakeJob, fleet: str) -> None:
    class Everybody(TwoTasks):
        def run(self) -> None:
            model = self.load_model()
            cohort = self.sample_clients(1)
            self.evaluated = [len(self.send_model_and_wait(task_name="validate", data=model))]
            self.send_model_and_wait(targets=cohort, data=model)

    job = make_job(a=always(), b=always())
    controller = Everybody(num_rounds=1, num_clients=1, selection=selected(fleet))
    job.run(controller)
    assert controller.evaluated == [2]
    assert [turn.kind for turn in turns_in(fleet, 1).values()] == ["arrived"]


def test_a_cohort_cannot_be_sampled_while_another_is_working(make_job: MakeJob, fleet: str) -> None:
    class Impatient(TwoTasks):
        def run(self) -> None:
            model = self.load_model()
            self.send_model(targets=self.sample_clients(1), data=model, callback=lambda _: None)
            self.sample_clients(1)

    job = make_job(a=always(seconds=5), b=always())
    job.run(Impatient(num_rounds=1, num_clients=1, selection=selected(fleet)))
    assert "round 1 is still running" in job.engine.panics[0]


# The life of the job and of the fleet


GONE = "was not connected when the server restarted"
ERROR = ReturnCode.EXECUTION_EXCEPTION


@pytest.mark.parametrize(
    ("answer", "again", "a", "b"),
    [
        (ReturnCode.OK, {"a": 1, "b": 1}, ("arrived", None), ("arrived", None)),
        (ReturnCode.OK, {"a": 1}, ("arrived", None), ("failed", GONE)),
        (ReturnCode.OK, {"b": 1}, ("arrived", None), ("arrived", None)),
        (ERROR, {"a": 0, "b": 1}, ("failed", f"returned {ERROR}"), ("arrived", None)),
    ],
    ids=["all are there", "one is gone", "one that has contributed is gone", "one has failed"],
)
def test_the_next_job_continues_a_round_that_was_interrupted(
    make_job: MakeJob, fleet: str, answer: str, again: dict[str, int], a: Any, b: Any
) -> None:
    """`again` are the clients of the next job, and how many tasks each gets."""
    job = make_job(a=always(seconds=1, answer=answer), b=always(seconds=8))
    job.after(6, job.abort)
    job.run(fedavg(fleet, num_rounds=3))
    with FleetReader(fleet) as scheduler:
        assert scheduler.open_round() is not None
        assert {turn.id: turn.kind for turn in scheduler.history()} == {"a": a[0], "b": None}
    seconds = turns_of(fleet, "a")[0].seconds
    job, controller = make_job(**{client: always(seconds=3) for client in again}), fedavg(fleet)
    job.run(controller)
    assert job.engine.panics == []
    assert controller.saved == [1.0]
    assert {name: client.tasks for name, client in job.clients.items()} == again
    assert outcomes_in(fleet, 1) == {"a": a, "b": b}
    assert turns_of(fleet, "a")[0].seconds == seconds  # the first report counts
    assert rounds_of(fleet) == 1


def test_a_job_that_is_aborted_while_it_waits_for_a_task_makes_no_client_late(make_job: MakeJob, fleet: str) -> None:
    job = make_job(a=always(seconds=1), b=always(seconds=8))
    job.after(6, job.abort)
    job.run(TwoTasks(num_rounds=1, num_clients=2, selection=selected(fleet)))
    with FleetReader(fleet) as scheduler:
        assert {turn.id: turn.kind for turn in scheduler.history()} == {"a": "arrived", "b": None}


def test_a_job_that_is_aborted_before_any_report_leaves_no_round(make_job: MakeJob, fleet: str) -> None:
    job = make_job(a=always(seconds=8), b=always(seconds=8))
    job.after(6, job.abort)
    controller = fedavg(fleet)
    job.run(controller)
    assert set(controller.saved) <= {0.0}  # NVFlare 2.7 saves the unchanged model
    assert rounds_of(fleet) == 0


def test_a_job_that_is_aborted_while_it_waits_for_clients_ends(make_job: MakeJob, fleet: str) -> None:
    job = make_job(a=always())
    job.clients["a"].asks = False
    job.after(50, job.abort)
    job.run(fedavg(fleet))
    assert job.clock.now - job.start < 55
    assert rounds_of(fleet) == 0


def test_a_fleet_in_use_stops_the_job_with_the_reason(make_job: MakeJob, fleet: str) -> None:
    with Scheduler.open(fleet, settings={"guaranteed_rate": 0.2, "cohort_size": 2}, deadline=10.0):
        job = make_job(a=always())
        job.run(fedavg(fleet))
    assert "fleet.turnout is" in job.engine.panics[0]


def test_an_infeasible_guarantee_stops_the_job_with_the_largest_feasible_rate(make_job: MakeJob, fleet: str) -> None:
    job = make_job(a=always(), b=always(), c=always(), d=always())
    job.run(fedavg(fleet, num_clients=1, guarantee={"guaranteed_rate": 0.5}))
    assert "0.25" in job.engine.panics[0]


def test_the_cohort_size_is_of_the_guarantee_or_of_the_controller(make_job: MakeJob, fleet: str, folder: Any) -> None:
    own = str(folder / "own.turnout")
    work = {client: always() for client in "abcd"}
    make_job(**work).run(fedavg(fleet, num_clients=3))
    make_job(**work).run(fedavg(own, num_clients=3, guarantee={"cohort_size": 2, "guaranteed_rate": 0.1}))
    assert len(turns_in(fleet, 1)) == 3
    assert len(turns_in(own, 1)) == 2


def test_losses_reach_the_policy(make_job: MakeJob, fleet: str) -> None:
    metrics = {"a": {"train_loss": 0.5}, "b": {"train_loss": float("nan")}}
    job = make_job(**{client: always(metrics=values) for client, values in metrics.items()})
    job.run(Averaging(num_clients=2, num_rounds=1, selection={"fleet": fleet, "deadline": 10, "policy": "oort"}))
    assert {client: turn.loss for client, turn in turns_in(fleet, 1).items()} == {"a": 0.5, "b": None}


def test_metrics_with_the_name_of_a_declared_signal_are_reported(make_job: MakeJob, fleet: str) -> None:
    metrics = {"a": {"utility": 3.5, "other": 1.0}, "b": {"utility": [3.5]}}
    job = make_job(**{client: always(metrics=values) for client, values in metrics.items()})
    selection: Any = {"fleet": fleet, "deadline": 10, "signals": {"utility": [0, 100]}, "loss_key": ""}
    job.run(Averaging(num_clients=2, num_rounds=1, selection=selection))
    turns = {client: (turn.signals, turn.loss) for client, turn in turns_in(fleet, 1).items()}
    assert turns == {"a": ({"utility": 3.5}, None), "b": (None, None)}


def test_the_log_names_all_cohorts_and_outcomes(
    make_job: MakeJob, fleet: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="turnout.nvflare")
    job: Job = make_job(a=always(seconds=1), b=always(answer=ReturnCode.EXECUTION_EXCEPTION))
    job.run(fedavg(fleet, num_rounds=3))
    assert "turnout: round 1 asks a (0.00 behind, never timed), b (0.00 behind, never timed)" in caplog.text
    assert "; failed b: returned EXECUTION_EXCEPTION; promise kept" in caplog.text
    assert ", expected " in caplog.text


def test_models_are_checked_and_other_results_are_not() -> None:
    sent = Task("train", DXO(DataKind.WEIGHTS, data={"mask": np.array([-np.inf])}).to_shareable())
    finite, broken = {"a": 1.0, "mask": np.array([-np.inf])}, {"a": np.array([np.inf])}
    assert _model_problem(None, sent) is None
    for kind, is_model in ((DataKind.WEIGHTS, True), (DataKind.WEIGHT_DIFF, True), (DataKind.METRICS, False)):
        assert _model_problem(DXO(kind, data=finite), sent) is None
        for data in ({}, broken):
            assert (_model_problem(DXO(kind, data=data), sent) is not None) == is_model


def test_only_what_is_in_the_format_of_nvflare_has_a_content() -> None:
    assert _content_of(Shareable({"own": "format"})) is None
    assert known(_content_of(DXO(DataKind.WEIGHTS, data={"a": 1.0}).to_shareable())).data == {"a": 1.0}


def test_results_after_the_end_of_their_round_change_nothing(fleet: str) -> None:
    with Scheduler.open(fleet, settings={"cohort_size": 2}, deadline=10.0) as scheduler:
        rounds = FleetRounds(scheduler, ClientDirectory(PAPER_FEATURES))
        cohort = rounds.select({"a": None, "b": None})
        task = known(rounds.begin(cohort))[0]
        assert not rounds.record_arrival(task, "stranger", 1.0, None)
        rounds.record_failure(task, "stranger", "no reason")
        assert not rounds.record_arrival(task, "a", 1.0, None)
        assert rounds.record_arrival(task, "b", 2.0, None)
        rounds.end(task, TaskCompletionStatus.OK, cohort, [])
        assert scheduler.open_round is None
        assert not rounds.record_arrival(task, "a", 9.0, None)
        rounds.record_failure(task, "b", "too late")
        assert {turn.id: (turn.kind, turn.seconds) for turn in scheduler.history(round=1)} == {
            "a": ("arrived", 1.0),
            "b": ("arrived", 2.0),
        }


def test_the_time_of_a_late_client_is_not_learned_after_its_window(
    fleet: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("turnout.live.retention.LATE_ROUNDS", 1)
    with Scheduler.open(fleet, settings={"cohort_size": 2}, deadline=10.0) as scheduler:
        rounds = FleetRounds(scheduler, ClientDirectory(PAPER_FEATURES))
        for round_ in range(4):
            cohort = rounds.select({"a": None, **({"slow": None} if round_ == 0 else {})})
            begun = known(rounds.begin(cohort))
            rounds.record_arrival(begun[0], "a", 1.0, None)
            rounds.end(begun[0], TaskCompletionStatus.TIMEOUT, cohort, [])
        assert scheduler.history("slow")[0].kind == "late"
        rounds.record_request("slow", None)
        assert scheduler.history("slow")[0].late_seconds is None
    assert "the time of a late client was not learned" in caplog.text


@pytest.mark.parametrize(("deadline", "limit"), [(9.2, 10), (0.1, 1), ("auto", 3), (None, 3)])
@pytest.mark.parametrize("operator", [None, {TaskOperatorKey.TIMEOUT: 3}])
def test_the_deadline_of_a_task_is_limited_in_whole_seconds(deadline: Any, limit: int, operator: Any) -> None:
    task = Task("train", Shareable(), timeout=3, operator=None if operator is None else dict(operator))
    _limit(task, deadline)
    assert task.timeout == limit
    assert (task.operator or {}).get(TaskOperatorKey.TIMEOUT) == (None if operator is None else limit)


# Tracking


def test_rounds_are_tracked_and_the_tracker_is_closed_with_the_job(
    make_job: MakeJob, fleet: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recording, "opened", [])
    controller = fedavg(fleet, num_rounds=3, tracker="tracking.recording:Recording:logs")
    make_job(a=always(seconds=1), b=always(seconds=5)).run(controller)
    (recording,) = Recording.opened
    assert recording.values("round/arrived") == {1: 2.0, 2: 2.0, 3: 2.0}
    assert recording.closed == 1
    with pytest.raises(SettingError, match="tracker must be a text such as 'tensorboard:/srv/logs'"):
        fedavg(fleet, tracker=recording)
