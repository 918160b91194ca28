"""A job of NVFlare in one thread: the real controllers and the real task manager, with scripted clients and a clock.

Whenever a controller sleeps, the clock advances and the clients act: they ask for work every two seconds, train for
as long as their script says, ask whether the task still exists, and submit their result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from nvflare.apis.client import Client
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.impl.controller import Controller
from nvflare.apis.impl.wf_comm_server import WFCommServer
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from turnout.adapters.nvflare.status import STATUS

TICK = 0.1
MAX_JOB = 5_000.0  # in simulated seconds: a job that takes longer hangs
REQUEST_INTERVAL = 2.0


class Clock:
    """A clock that advances only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.on_tick: Callable[[], None] = lambda: None

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        for _ in range(max(round(seconds / TICK), 1)):
            self.now += TICK
            self.on_tick()


@dataclass
class Work:
    """What a client does with a task.

    `answer` is a return code of NVFlare, or "OK" for a trained model; `silent` clients never answer.
    """

    seconds: float = 1.0
    answer: str = ReturnCode.OK
    params: Mapping[str, Any] | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    silent: bool = False
    meta: Mapping[str, Any] = field(default_factory=dict)
    cookies: Mapping[str, Any] = field(default_factory=dict)  # in place of those of the task


@dataclass
class ScriptedClient:
    """A client of the job; `work` returns what it does with its n-th task, counted from 1."""

    client: Client
    work: Callable[[int], Work]
    status: Mapping[str, Any] | None = None
    asks: bool = True  # whether it asks for work
    tasks: int = 0
    names: list[str] = field(default_factory=list)  # of the tasks that it took
    dropped: int = 0  # results that the server did not want any more
    due: float = 0.0
    busy_with: tuple[str, str, Work, Shareable] | None = None

    @property
    def name(self) -> str:
        return str(self.client.name)


class Engine:
    """The part of NVFlare's server engine that controllers use."""

    def __init__(self, clients: Iterable[Client]) -> None:
        self.clients = list(clients)
        self.components: dict[str, Any] = {}
        self.handlers: list[Any] = []
        self.panics: list[str] = []
        self._contexts = FLContextManager(self, "server", "job-1", {}, {})

    def get_clients(self) -> list[Client]:
        return list(self.clients)

    def get_component(self, component_id: str) -> Any:
        return self.components.get(component_id)

    def new_context(self) -> Any:
        return self._contexts.new_context()

    def persist_components(self, _fl_ctx: FLContext, **_options: Any) -> None:
        pass

    def get_cell(self) -> None:
        return None

    def fire_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.FATAL_SYSTEM_ERROR:
            self.panics.append(str(fl_ctx.get_prop(FLContextKey.EVENT_DATA)))
        for handler in self.handlers:
            handler.handle_event(event_type, fl_ctx)


class Job:
    """Runs a controller with scripted clients."""

    def __init__(self, clock: Clock, work: Mapping[str, Callable[[int], Work]]) -> None:
        self.clock = clock
        self.clients = {name: ScriptedClient(Client(name, "token"), script) for name, script in work.items()}
        self.engine = Engine(client.client for client in self.clients.values())
        self.signal = Signal()
        self.at: list[tuple[float, Callable[[], None]]] = []  # what happens at which time
        clock.on_tick = self._tick
        self.start = clock.now

    def run(self, controller: Controller) -> None:
        """Runs a controller from its start to its stop, as NVFlare's server does."""
        self.communicator = WFCommServer()
        self.communicator._engine = self.engine  # initialize_run would also start a thread
        controller.set_communicator(self.communicator)
        self.controller = controller
        self.engine.handlers = [controller]
        try:
            with self.engine.new_context() as fl_ctx:
                controller.initialize(fl_ctx)
            with self.engine.new_context() as fl_ctx:
                controller.control_flow(self.signal, fl_ctx)
        finally:
            with self.engine.new_context() as fl_ctx:
                controller.stop_controller(fl_ctx)

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Lets something happen after so many seconds of the job."""
        self.at.append((self.start + seconds, action))

    def kill(self, name: str) -> None:
        """Ends a client: it never asks or answers again, and NVFlare learns that its job is dead."""
        client = self.clients[name]
        client.asks, client.busy_with = False, None
        with self.engine.new_context() as fl_ctx:
            self.communicator.process_dead_client_report(name, fl_ctx)

    def abort(self) -> None:
        """Aborts the job."""
        self.signal.trigger(True)

    def _tick(self) -> None:
        assert self.clock.now < self.start + MAX_JOB, "the job hangs"
        for due in [entry for entry in self.at if entry[0] <= self.clock.now]:
            self.at.remove(due)
            due[1]()
        for client in self.clients.values():
            if client.asks and client.due <= self.clock.now:
                self._act(client)
        self.communicator._check_dead_clients()
        self.communicator.check_tasks()
        if self.engine.panics:
            self.signal.trigger(True)

    def _act(self, client: ScriptedClient) -> None:
        if client.busy_with is not None:
            self._submit(client)
        with self._request_from(client) as fl_ctx:
            self.engine.fire_event(EventType.BEFORE_PROCESS_TASK_REQUEST, fl_ctx)
            name, task_id, data = self.communicator.process_task_request(client.client, fl_ctx)
        client.due = self.clock.now + REQUEST_INTERVAL
        if name:
            client.tasks += 1
            client.names.append(name)
            work = client.work(client.tasks)
            client.due = float("inf") if work.silent else self.clock.now + work.seconds
            client.busy_with = (name, task_id, work, data)

    def _submit(self, client: ScriptedClient) -> None:
        assert client.busy_with is not None
        name, task_id, work, data = client.busy_with
        client.busy_with = None
        with self._request_from(client) as fl_ctx:
            if self.communicator.process_task_check(task_id, fl_ctx) is None:
                client.dropped += 1
                return
            self.communicator.process_submission(client.client, name, task_id, self._result(work, data), fl_ctx)

    def _result(self, work: Work, data: Shareable) -> Shareable:
        if work.answer != ReturnCode.OK:
            return make_reply(work.answer)
        params = work.params
        if params is None:
            params = {key: np.asarray(value) + 1 for key, value in FLModelUtils.from_shareable(data).params.items()}
        meta = {"NUM_STEPS_CURRENT_ROUND": 1, **work.meta}
        model = FLModel(params_type=ParamsType.FULL, params=dict(params), metrics=dict(work.metrics) or None, meta=meta)
        result = FLModelUtils.to_shareable(model)
        for cookie, value in {**(data.get_cookie_jar() or {}), **work.cookies}.items():
            result.add_cookie(cookie, value)
        return result

    @contextmanager
    def _request_from(self, client: ScriptedClient) -> Iterator[FLContext]:
        """Opens the context of a request, with the public properties of the client as its peer's."""
        peer = FLContext()
        peer.set_prop(ReservedKey.IDENTITY_NAME, client.name, private=False, sticky=False)
        if client.status is not None:
            peer.set_prop(STATUS, dict(client.status), private=False, sticky=False)
        with self.engine.new_context() as fl_ctx:
            fl_ctx.set_peer_context(peer)
            yield fl_ctx


def always(**work: Any) -> Callable[[int], Work]:
    """Returns a script by which a client does the same with every task."""
    return lambda _: Work(**work)


def in_turn(*works: Work) -> Callable[[int], Work]:
    """Returns a script with the work of each task; the last one is repeated."""
    return lambda number: works[min(number, len(works)) - 1]


def patch_clock(clock: Clock, setattr_: Callable[[Any, str, Any], None]) -> None:
    """Replaces the functions of the module `time`."""
    for name in ("time", "monotonic"):
        setattr_(time, name, clock.time)
    setattr_(time, "sleep", clock.sleep)
