"""A mixin for controllers: a scheduler selects the cohorts, and every outcome is reported to it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal

from nvflare.apis.controller_spec import ClientTask, Task, TaskCompletionStatus, TaskOperatorKey
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.app_common.app_constant import AlgorithmConstants, AppConstants

from turnout.adapters.common.fleet import Fleet
from turnout.adapters.common.models import as_loss, as_signals, model_problem
from turnout.adapters.nvflare.fleet import FleetPlan, SelectionOptions, as_stored
from turnout.adapters.nvflare.internals import EmptyRounds
from turnout.adapters.nvflare.rounds import ClientDirectory, FleetRounds, RoundTask, SiteGroups
from turnout.adapters.nvflare.status import read_status
from turnout.errors import SettingError
from turnout.kernel.arrays import as_number
from turnout.live import PAPER_FEATURES, Features
from turnout.log import get_log

log = get_log("turnout.nvflare")
POLL = 0.2  # seconds between two checks whether a client is available
EMPTY_ROUND_PAUSE = 2.0  # seconds between two rounds in which every available client is backed off
PROGRESS_INTERVAL = 30.0  # seconds between two log lines while no client is available


class FairSelection(EmptyRounds):
    """Makes a controller train on the clients that a scheduler selects: `class Mine(FairSelection, FedAvg)`.

    `sample_clients` returns the cohort of the next round. The first task that is sent to its clients is the work of the
    round: it ends at the deadline, or as soon as enough results have arrived, and every outcome is reported.

    A subclass may declare other `features`.

    Args:
        args: The arguments of the controller.
        selection: The options of the selection, such as `{"fleet": "/srv/fleet.turnout", "deadline": 600}`: plain
            values, because NVFlare stores them in the job. Without a `cohort_size` in the guarantee, a round has as
            many clients as the controller asks for. NVFlare rounds a deadline up to whole seconds.
        kwargs: The keyword arguments of the controller.
    """

    features: ClassVar[Features] = PAPER_FEATURES

    def __init__(self, *args: Any, selection: SelectionOptions, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.prepare_selection(selection)

    def prepare_selection(self, selection: SelectionOptions) -> None:
        """Checks the options, and prepares the selection."""
        if not isinstance(selection, Mapping):
            raise SettingError(f"selection must be a mapping, got {selection!r}")
        self.selection = as_stored(selection)  # NVFlare writes it into the job, and finds it under this name
        options = dict(self.selection)
        quota, self._loss_key = options.pop("quota", None), options.pop("loss_key", "train_loss")
        self._patience = as_number("patience", options.pop("patience", 30.0), SettingError, least=0)
        self._groups = SiteGroups(options.pop("groups", None), options.pop("eligible", None), bool(quota))
        self._plan = FleetPlan(options, self.features, quota)
        self._directory = ClientDirectory(self.features)
        self._rounds: FleetRounds | None = None
        self._tasks: list[tuple[Task, RoundTask]] = []
        self._signal: Signal | None = None

    @property
    def scheduler(self) -> Fleet | None:
        """The scheduler of the fleet; None before the first selection."""
        return None if self._rounds is None else self._rounds.scheduler

    # The life of the controller

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Runs the controller."""
        self._signal, self._job_engine = abort_signal, fl_ctx.get_engine()
        super().control_flow(abort_signal, fl_ctx)

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Closes the last round and the file of the fleet."""
        try:
            super().stop_controller(fl_ctx)
        finally:
            rounds, self._rounds = self._rounds, None
            if rounds is not None:
                self._settle(rounds)
                rounds.close()
                rounds.scheduler.close()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Notes which clients ask for work, with which status, and which are disconnected."""
        super().handle_event(event_type, fl_ctx)
        if event_type == EventType.BEFORE_PROCESS_TASK_REQUEST:
            peer = fl_ctx.get_peer_context()
            if isinstance(peer, FLContext):
                (self._rounds or self._directory).record_request(peer.get_identity_name(), read_status(peer))
        elif event_type == EventType.CLIENT_DISCONNECTED:
            self._directory.remove(fl_ctx.get_prop(FLContextKey.DISCONNECTED_CLIENT_NAME))

    # Selection

    def sample_clients(self, num_clients: int | None = None) -> list[str]:
        """Returns the cohort of the next round; waits while no client is available.

        Args:
            num_clients: The number of clients, if `guarantee` has no `cohort_size`. The first call decides: the size of
                a cohort is a setting of the fleet.

        Returns:
            The names of the clients; an empty list only if the job was aborted.
        """
        rounds = self._open_fleet(num_clients)
        self._settle(rounds)
        waiting_since = last_logged = time.monotonic()
        while not self._is_aborted:
            available = [name for name in self._client_names() if self._directory.is_free(name)]
            if available:
                cohort = rounds.select(self._directory.statuses(available, self._groups.configurations))
                if cohort:
                    return cohort
                self._wait(EMPTY_ROUND_PAUSE)
                continue
            if time.monotonic() - last_logged >= PROGRESS_INTERVAL:
                last_logged = time.monotonic()
                log.info("turnout: no client has been available for %.0f s", last_logged - waiting_since)
            self._wait(POLL)
        return []

    # Tasks

    def broadcast(
        self,
        task: Task,
        fl_ctx: FLContext,
        targets: Any = None,
        min_responses: int = 1,
        wait_time_after_min_received: int = 0,
    ) -> Any:
        """Sends a task; if it is the work of a round, its outcomes are reported and it ends at the deadline."""
        if self._watch(task, targets):
            min_responses = wait_time_after_min_received = 0  # the round decides how many results are enough
        return super().broadcast(task, fl_ctx, targets, min_responses, wait_time_after_min_received)

    def broadcast_and_wait(
        self,
        task: Task,
        fl_ctx: FLContext,
        targets: Any = None,
        min_responses: int = 1,
        wait_time_after_min_received: int = 0,
        abort_signal: Signal | None = None,
    ) -> Any:
        """Does the same as `broadcast`, and waits until the task has ended."""
        if self._watch(task, targets):
            min_responses = wait_time_after_min_received = 0
        return super().broadcast_and_wait(
            task, fl_ctx, targets, min_responses, wait_time_after_min_received, abort_signal
        )

    # Private

    @property
    def _is_empty(self) -> bool:
        return self._rounds is not None and not self._rounds.contributions

    @property
    def _is_aborted(self) -> bool:
        return self._signal is not None and bool(self._signal.triggered)

    def _client_names(self) -> list[str]:
        """Returns the names of all clients of the job that may be selected, in a reproducible order."""
        clients = {client.name: client for client in self._job_engine.get_clients()}
        self._groups.learn(clients.values())
        return [name for name in sorted(clients) if self._groups.is_eligible(name)]

    def _open_fleet(self, num_clients: int | None) -> FleetRounds:
        """Opens the fleet before the first selection, and waits until every client has asked for work."""
        if self._rounds is None:
            names = self._client_names()
            groups = {name: group for name in names if (group := self._groups.group_of(name)) is not None}
            self._rounds = FleetRounds(self._plan.open(names, groups, num_clients), self._directory)
            start = time.monotonic()
            while not self._is_aborted and not all(map(self._directory.is_known, self._client_names())):
                if time.monotonic() - start >= self._patience:
                    break
                self._wait(POLL)
        return self._rounds

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._is_aborted and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, POLL))

    def _watch(self, task: Task, targets: Any) -> bool:
        """Sets the deadline of a task, and reports its outcomes if it is the work of the round."""
        rounds = self._rounds
        if rounds is None:
            return False
        names = [target if isinstance(target, str) else target.name for target in targets or ()]
        begun = rounds.begin(names)
        if begun is None:
            if not task.timeout:
                _limit(task, rounds.scheduler.settings.deadline)
            return False
        watched, deadline = begun
        _limit(task, deadline)  # also if the controller has a limit of its own: late clients are judged by the deadline
        self._tasks.append((task, watched))
        received, done = task.result_received_cb, task.task_done_cb

        def result_received(client_task: ClientTask, fl_ctx: FLContext) -> None:
            self._receive(rounds, watched, client_task, fl_ctx, received)

        def task_done(task: Task, fl_ctx: FLContext) -> None:
            self._end(rounds, task, watched)
            if done is not None:
                done(task=task, fl_ctx=fl_ctx)

        task.result_received_cb, task.task_done_cb = result_received, task_done
        return True

    def _receive(
        self, rounds: FleetRounds, watched: RoundTask, client_task: ClientTask, fl_ctx: FLContext, received: Any
    ) -> None:
        """Passes a result on to the controller, and reports the outcome of the client."""
        name, result, seconds = client_task.client.name, client_task.result, time.monotonic() - watched.started
        code, content = result.get_return_code(default=ReturnCode.OK), _content_of(result)
        problem = _model_problem(content, client_task.task) if code == ReturnCode.OK else f"returned {code}"
        reported = self._reported(content, rounds.scheduler.settings.signals)
        if problem is None and received is not None:
            try:
                received(client_task=client_task, fl_ctx=fl_ctx)
            except Exception as error:  # one bad result must not end the round of the others
                log.exception("turnout: the result of %s could not be processed", name)
                problem = f"its result could not be processed: {error!r}"
        if problem is not None:
            client_task.result = None
        elif fl_ctx.get_prop(AppConstants.AGGREGATION_ACCEPTED) is False:
            problem = "its result was not accepted for aggregation"
        if problem is not None:
            rounds.record_failure(watched, name, problem)
        elif rounds.record_arrival(watched, name, seconds, *reported):
            self.cancel_task(client_task.task, completion_status=TaskCompletionStatus.OK, fl_ctx=fl_ctx)

    def _reported(self, content: DXO | None, declared: Iterable[str]) -> tuple[float | None, dict[str, float]]:
        """Returns the training loss in a result, None if it is missing or not finite, and the declared signals."""
        metrics = None if content is None else content.get_meta_prop(MetaKey.INITIAL_METRICS)
        if not isinstance(metrics, Mapping):
            return None, {}
        return as_loss(metrics.get(self._loss_key)) if self._loss_key else None, as_signals(metrics, declared)

    def _settle(self, rounds: FleetRounds) -> None:
        """Accounts for tasks that have ended although NVFlare has not called their callback yet."""
        for task, watched in list(self._tasks):
            if task.completion_status is not None:
                self._end(rounds, task, watched)

    def _end(self, rounds: FleetRounds, task: Task, watched: RoundTask) -> None:
        took = [client_task.client.name for client_task in list(task.client_tasks)]
        gone = [name for name in watched.targets if self.get_client_disconnect_time(name)]
        self._tasks = [pair for pair in self._tasks if pair[1] is not watched]
        rounds.end(watched, task.completion_status, took, gone)


def _content_of(result: Shareable) -> DXO | None:
    """Returns the content of a result; None if it is not in NVFlare's own format."""
    try:
        return from_shareable(result)
    except ValueError:
        return None


def _model_problem(content: DXO | None, task: Task) -> str | None:
    """Returns why the parameters in a result cannot be aggregated; None if they can, or if it should hold none."""
    if content is None or content.data_kind not in (DataKind.WEIGHTS, DataKind.WEIGHT_DIFF):
        return None
    if not isinstance(content.data, Mapping):
        return None
    if not content.data:  # some controllers skip it silently, others end the job
        return "returned a model without parameters"

    def sent() -> list[Mapping[str, Any]]:
        model = _content_of(task.data)
        return [model.data] if model is not None and isinstance(model.data, Mapping) else []

    controls = content.get_meta_prop(AlgorithmConstants.SCAFFOLD_CTRL_DIFF)
    problem = model_problem(content.data, sent)
    if problem is None and isinstance(controls, Mapping):
        problem = model_problem(controls, list)
    return None if problem is None else f"its result cannot be used: {problem}"


def _limit(task: Task, deadline: float | Literal["auto"] | None) -> None:
    """Sets the time limit of a task to the deadline, if there is one, in whole seconds."""
    if not isinstance(deadline, int | float):
        return
    task.timeout = max(math.ceil(deadline), 1)
    if task.operator:
        task.operator[TaskOperatorKey.TIMEOUT] = task.timeout
