"""The devices of an edge job: real assessor and model manager of NVFlare, with scripted devices and a clock."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.edge.assessors.buff_device_manager import BuffDeviceManager
from nvflare.edge.assessors.buff_model_manager import BuffModelManager
from nvflare.edge.assessors.model_update import ModelUpdateAssessor
from nvflare.edge.mud import Device, ModelUpdate, StateUpdateReply, StateUpdateReport
from nvflare.edge.tools.edge_job import EdgeJob

from adapters.nvflare.in_process import Clock
from narrowing import known
from tracking.recording import Recording
from turnout.errors import SettingError
from turnout.live import FleetReader, Scheduler

pytest.importorskip("turnout.adapters.nvflare.edge", reason="edge jobs need NVFlare 2.9", exc_type=ImportError)

from turnout.adapters.nvflare.edge import FairDeviceManager, fill_fairly

GUARANTEE = {"guaranteed_rate": "1/16", "tolerance": 1.0}


class EdgeServer:
    """A server whose only child reports every second which devices it has and which updates have arrived."""

    def __init__(self, clock: Clock, manager: Any, seconds: dict[str, float], updates_per_version: int = 2) -> None:
        self.clock, self.manager, self.seconds = clock, manager, seconds
        self.models = BuffModelManager(num_updates_for_model=updates_per_version)
        self.assessor = ModelUpdateAssessor("persistor", "models", "devices", max_model_version=1000)
        self.assessor.model_manager, self.assessor.device_manager = self.models, manager
        self.context = FLContext()
        self.models.fire_event = lambda *_, **__: None
        self.aggregated, generate = 0, self.models.generate_new_model

        def count_updates(context: FLContext) -> None:
            self.aggregated += self.waiting
            generate(context)

        self.models.generate_new_model = count_updates
        self.models.initialize_model(DXO(DataKind.WEIGHTS, data={"w": np.zeros(2)}), self.context)
        self.training: dict[str, tuple[int, float]] = {}  # by device: its selection id, and when it is done
        self.last: dict[str, int] = {}  # the last selection id of each device
        self.busiest = 0

    @property
    def waiting(self) -> int:
        """The number of updates that are not aggregated yet."""
        return sum(state.aggregator.count for state in self.models.updates.values())

    def run(self, ticks: int) -> None:
        for tick in range(ticks):
            self.clock.now += 1.0
            self.report(with_devices=tick == 0 or tick % 5 == 0)

    def report(self, *, with_devices: bool) -> None:
        now = self.clock.now
        done = {device: version for device, (version, end) in self.training.items() if end <= now}
        updates: dict[int, ModelUpdate] = {}
        for version in set(done.values()):
            devices = {device: now for device, own in done.items() if own == version}
            values = {"dict": {"w": np.ones(2) * len(devices)}, "count": len(devices)}
            content = DXO(DataKind.WEIGHT_DIFF, data=values).to_shareable()
            updates[version] = ModelUpdate(version, content, devices)
        for device in done:
            del self.training[device]
        known = {name: Device(name, "leaf", now, None) for name in self.seconds} if with_devices else None
        sent = StateUpdateReport(self.models.current_model_version, 0, updates, known).to_shareable()
        _, reply = self.assessor.process_child_update(sent, self.context)
        assert isinstance(reply, Shareable)
        selection = StateUpdateReply.from_shareable(reply).device_selection or {}
        for device, version in selection.items():
            if device not in self.training and self.last.get(device) != version and device in self.seconds:
                self.last[device] = version  # a device trains once with the same selection id
                self.training[device] = (version, now + self.seconds[device])
        self.busiest = max(self.busiest, len(self.training))


def manager_of(fleet: str, device_selection_size: int = 3, clients: int = 1, **settings: Any) -> FairDeviceManager:
    selection: Any = {"fleet": fleet, "guarantee": GUARANTEE, **settings}
    return FairDeviceManager(device_selection_size, selection, initial_min_client_num=clients)


def server(clock: Clock, fleet: str, seconds: dict[str, float], **settings: Any) -> EdgeServer:
    return EdgeServer(clock, manager_of(fleet, **settings), seconds)


def fleet_of(edge: EdgeServer) -> Scheduler:
    scheduler = edge.manager.scheduler
    assert isinstance(scheduler, Scheduler)
    return scheduler


def close(edge: EdgeServer) -> None:
    edge.manager.handle_event(EventType.END_RUN, edge.context)
    assert edge.manager.scheduler is None


def phones(count: int) -> dict[str, float]:
    return {f"phone-{n}": 2.0 + 3 * (n % 4) for n in range(count)}


def test_devices_get_their_share_and_the_slots_stay_filled(clock: Clock, fleet: str) -> None:
    edge = server(clock, fleet, phones(12))
    edge.run(300)
    scheduler = fleet_of(edge)
    turns = [scheduler.history(round=number)[0] for number in range(1, scheduler.round + 1)]
    assert edge.busiest == 3
    assert len(turns) > 120
    assert {turn.kind for turn in turns} <= {"arrived", None}
    assert edge.models.current_model_version > 60
    counts = Counter(turn.id for turn in turns)
    assert min(counts[name] for name in phones(12)) >= len(turns) / 16 - 1
    assert counts["phone-0"] > counts["phone-3"]  # the fast ones train more often
    assert scheduler.certificate().status == "kept"
    assert {round(turn.seconds or 0) for turn in scheduler.history("phone-1") if turn.kind} == {5}
    close(edge)


def test_no_update_is_lost_because_its_version_is_removed(clock: Clock, fleet: str) -> None:
    seconds = {"a": 2.0, "b": 3.0, "c": 4.0, "d": 5.0, "e": 7.0, "slow": 41.0}
    edge = EdgeServer(clock, manager_of(fleet), seconds, updates_per_version=4)
    edge.run(200)
    scheduler = fleet_of(edge)
    arrived = sum(scheduler.history(round=number)[0].kind == "arrived" for number in range(1, scheduler.round + 1))
    assert len(scheduler.history("slow")) > 1
    assert edge.aggregated > 100
    assert arrived == edge.aggregated + edge.waiting
    close(edge)


@pytest.mark.parametrize("takes", [1e9, 25.0])
def test_a_late_device_loses_its_slot_and_its_time_is_learned(clock: Clock, fleet: str, takes: float) -> None:
    edge = server(clock, fleet, {**phones(8), "phone-0": takes}, deadline=20.0, backoff_after=1)
    edge.run(200)
    scheduler = fleet_of(edge)
    late = scheduler.history("phone-0")
    assert {turn.kind for turn in late if turn.kind} == {"late"}
    assert late[0].late_seconds == (None if takes > 1000 else pytest.approx(takes, abs=1.1))
    assert len(edge.manager.current_selection) == 3
    assert scheduler.round > 60
    close(edge)


def test_no_device_gets_a_second_turn_on_the_same_version(clock: Clock, fleet: str) -> None:
    """NVFlare's devices ignore one, and would hold the slot for ever."""
    edge = EdgeServer(clock, manager_of(fleet, 2), dict.fromkeys(("a", "b", "c", "d"), 2.0), updates_per_version=3)
    edge.run(100)
    assert edge.models.current_model_version > 15
    close(edge)


def test_the_next_job_begins_with_the_turns_that_were_running(clock: Clock, fleet: str) -> None:
    edge = server(clock, fleet, phones(8))
    edge.run(50)
    running = fleet_of(edge).running()
    close(edge)
    gone = running[0].client
    edge = server(clock, fleet, {name: value for name, value in phones(8).items() if name != gone})
    edge.run(50)
    scheduler = fleet_of(edge)
    assert scheduler.history(round=running[0].id)[0].why == "was not connected when the server restarted"
    assert {scheduler.history(round=turn.id)[0].kind for turn in running[1:]} == {"arrived"}
    close(edge)


def test_nothing_is_selected_before_enough_devices_of_enough_clients_are_known(clock: Clock, fleet: str) -> None:
    for seconds, settings in ((phones(2), {}), (phones(6), {"clients": 2})):
        edge = server(clock, fleet, seconds, **settings)
        edge.run(10)  # all devices belong to one client
        assert edge.manager.scheduler is None
        assert edge.manager.current_selection == {}
        assert not Path(fleet).exists()
    edge.manager.update_available_devices({"other": Device("other", "leaf-2", clock.now, None)}, edge.context)
    assert edge.manager.has_enough_devices_and_clients(edge.context)


def test_a_fleet_without_devices_gives_no_turn_and_a_stranger_ends_none(clock: Clock, fleet: str) -> None:
    edge = server(clock, fleet, phones(6))
    edge.manager.handle_event(EventType.START_RUN, edge.context)
    edge.manager.handle_event(EventType.END_RUN, edge.context)  # before the first selection: nothing is open
    edge.manager.fill_selection(1, edge.context)
    assert fleet_of(edge).round == 0
    edge.run(2)
    turns = fleet_of(edge).running()
    edge.manager.remove_devices_from_selection(["stranger"], edge.context)
    assert fleet_of(edge).running() == turns
    assert edge.manager._reported == set()
    close(edge)


# Jobs


def test_the_device_manager_of_a_job_is_replaced_and_can_be_rebuilt_from_its_arguments(fleet: str) -> None:
    job = EdgeJob("edge", "edge")
    job.to_server(BuffDeviceManager(5, initial_min_client_num=2, min_hole_to_fill=3), id="device_manager")
    fill_fairly(job, fleet=fleet, guarantee={"guaranteed_rate": 0.01}, deadline=60.0, backoff_after=2)
    manager = job._deploy_map["server"].app_config.components["device_manager"]
    assert isinstance(manager, FairDeviceManager)
    assert (manager.device_selection_size, manager.initial_min_client_num, manager.min_hole_to_fill) == (5, 2, 3)
    options = {"fleet": fleet, "guarantee": {"guaranteed_rate": 0.01}, "deadline": 60.0, "backoff_after": 2}
    assert manager.selection == options


@pytest.mark.parametrize(
    ("managers", "problem"),
    [([], "this one has 0"), ([BuffDeviceManager(5, device_reuse=False)], "device_reuse must be True")],
)
def test_a_job_without_such_a_manager_is_refused(fleet: str, managers: list[Any], problem: str) -> None:
    job = EdgeJob("edge", "edge")
    for manager in managers:
        job.to_server(manager, id="device_manager")
    with pytest.raises(SettingError, match=problem):
        fill_fairly(job, fleet=fleet, guarantee={"guaranteed_rate": 0.01})


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"fleet": "relative.turnout"}, "absolute path"),
        ({"guarantee": {"guaranteed_rate": 2}}, "guaranteed_rate"),
        ({"device_selection_size": 0}, "device_selection_size"),
    ],
)
def test_invalid_arguments_are_refused(fleet: str, settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        manager_of(**{"fleet": fleet, **settings})


def test_the_properties_of_a_device_are_its_status(fleet: str) -> None:
    manager = manager_of(fleet, 1)
    described = {
        "a": Device("a", "leaf", 1.0, {"free_cpu": 2.0, "bandwidth": 3.0}),
        "b": Device("b", "leaf", 1.0, None),
    }
    manager.update_available_devices(described, FLContext())
    assert manager.has_enough_devices_and_clients(FLContext())
    manager.fill_selection(1, FLContext())
    with FleetReader(fleet) as reader:
        contexts = known(known(reader.offer(1)).whole_contexts())
        assert contexts[reader.clients.index("a"), 0] == 0.5  # 1 / free_cpu
        assert contexts[reader.clients.index("b"), 0] != 0.5
    manager.handle_event(EventType.END_RUN, FLContext())


def test_turns_of_devices_are_tracked(clock: Clock, fleet: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recording, "opened", [])
    edge = server(clock, fleet, phones(12), tracker="tracking.recording:Recording:logs")
    edge.run(60)
    turns = fleet_of(edge).round
    close(edge)
    (recording,) = Recording.opened
    assert sum(recording.values("turns/given").values()) == turns > 3
    assert recording.closed == 1
