"""Fair selection of devices in `nvflare.edge`, where a server without rounds keeps a number of devices training."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NamedTuple, Unpack

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_context import FLContext
from nvflare.edge.assessors.buff_device_manager import BuffDeviceManager
from nvflare.job_config.api import FedJob
from nvflare.recipe.spec import Recipe

from turnout.adapters.common.fleet import Fleet, keep_turns
from turnout.adapters.common.requirement import require_framework
from turnout.adapters.common.round_texts import join_first
from turnout.adapters.nvflare.fleet import FleetOptions, FleetPlan, as_stored
from turnout.adapters.nvflare.internals import components_of, expect_package, job_of
from turnout.adapters.nvflare.rounds import ClientDirectory
from turnout.errors import SettingError
from turnout.live import PAPER_FEATURES, Features, RunningTurn
from turnout.log import get_log

#: The edge jobs of NVFlare 2.7 fail if an update arrives whose version of the model is not used any more.
OLDEST = (2, 9)
require_framework("nvflare", "NVFlare", OLDEST, "pip install 'nvflare>=2.9'")

log = get_log("turnout.nvflare")
SHORTEST = 1e-6  # seconds: an exchange time must be positive, even below the resolution of the clock


class DeviceTurn(NamedTuple):
    """A turn that a device was given, and when, by the monotonic clock."""

    turn: RunningTurn
    given: float

    @property
    def is_overdue(self) -> bool:
        """Whether its deadline has passed."""
        return self.turn.deadline is not None and time.monotonic() - self.given >= self.turn.deadline


class FairDeviceManager(BuffDeviceManager):
    """Fills the selection of an edge job with the devices that a scheduler gives turns, in place of random ones.

    A device trains at most once on each version of the model, as NVFlare demands: it is not available for a second turn
    before the next version. NVFlare does not report that a device has failed, so without a deadline a lost device holds
    its slot for good.

    Args:
        device_selection_size: The number of devices that train at any time, which is the concurrency of the fleet.
        selection: The options of the fleet, such as `{"fleet": "/srv/edge.turnout", "deadline": 300}`: plain values,
            because NVFlare stores them in the job. `guaranteed_rate` is a share of all turns.
        initial_min_client_num: The number of leaf clients whose devices must be known before the first turn.
        min_hole_to_fill: The number of free slots before they are filled.
    """

    features: ClassVar[Features] = PAPER_FEATURES

    def __init__(
        self,
        device_selection_size: int,
        selection: FleetOptions,
        initial_min_client_num: int = 1,
        min_hole_to_fill: int = 1,
    ) -> None:
        super().__init__(device_selection_size, initial_min_client_num, min_hole_to_fill)
        self.selection = as_stored(selection)  # NVFlare writes it into the job, and finds it under this name
        self._plan = FleetPlan({**self.selection, "concurrency": self.device_selection_size}, self.features)
        self._lock = threading.Lock()
        self._directory = ClientDirectory(self.features)
        self.scheduler: Fleet | None = None  # None before the first selection
        self._turns: dict[str, DeviceTurn] = {}  # by device: those in the selection
        self._late: dict[str, DeviceTurn] = {}
        self._trained_on: dict[str, int] = {}  # by device: the last version that it was sent
        self._version = 0
        self._reported: set[int] = set()  # versions of updates that wait for aggregation

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Closes the file of the fleet at the end of the job."""
        super().handle_event(event_type, fl_ctx)
        if event_type == EventType.END_RUN:
            with self._lock:
                scheduler, self.scheduler = self.scheduler, None
                if scheduler is not None:
                    scheduler.close()

    def update_available_devices(self, devices: Mapping[str, Any], fl_ctx: FLContext) -> None:
        """Notes devices that are available; their properties may hold their status, such as `free_cpu`."""
        with self._lock:
            super().update_available_devices(devices, fl_ctx)
            for device, described in devices.items():
                self._directory.record_request(device, described.props or None)

    def has_enough_devices_and_clients(self, fl_ctx: FLContext) -> bool:  # noqa: ARG002
        """Returns whether the selection can be filled: the first time, all of its slots must be."""
        if len(set(self.device_client_map.values())) < self.initial_min_client_num:
            return False
        return bool(self._version) or len(self.available_devices) >= self.device_selection_size

    def should_fill_selection(self, fl_ctx: FLContext) -> bool:
        """Returns whether enough slots are free, or the deadline of a turn has passed."""
        is_free = super().should_fill_selection(fl_ctx)
        return bool(is_free) or any(turn.is_overdue for turn in self._turns.values())

    def fill_selection(self, current_model_version: int, fl_ctx: FLContext) -> None:  # noqa: ARG002
        """Gives turns on this version of the model for all free slots."""
        with self._lock:
            is_first = not self._version
            if current_model_version != self._version:
                self._version = current_model_version
                self._reported.clear()
            scheduler = self._open()
            self._late = {device: late for device, late in self._late.items() if self._is_learned(late)}
            statuses = self._directory.statuses(filter(self._is_ready, self.available_devices), {})
            turns, before = scheduler.fill(statuses), set(self.current_selection)
            running = {turn.id: turn for turn in scheduler.running()}
            self._end_late({device for device, given in self._turns.items() if given.turn.id not in running})
            if is_first:  # those that an earlier job gave train again
                alive = list(running.values())
                turns = keep_turns(
                    alive, self.available_devices, lambda turn, why: scheduler.report_failure(turn.id, why)
                )
            for turn in turns:
                self._turns[turn.client] = DeviceTurn(turn, time.monotonic())
                self._trained_on[turn.client] = self.current_selection[turn.client] = self._version
                self.used_devices[turn.client] = {"model_version": self._version, "turn": turn.id}
            if set(self.current_selection) != before or turns:
                self.current_selection_version += 1
                log.info("turnout: version %d is trained by %s", self._version, join_first([*self.current_selection]))

    def remove_devices_from_selection(self, devices: Iterable[str], fl_ctx: FLContext) -> None:  # noqa: ARG002
        """Reports that the updates of these devices have arrived."""
        with self._lock:
            for device in devices:
                late = self._late.pop(device, None)
                ended = late if late is not None and self._is_learned(late) else self._turns.pop(device, None)
                version = self.current_selection.pop(device, None)
                if version is not None:
                    self._reported.add(version)
                if ended is not None:
                    self._open().report(ended.turn.id, max(time.monotonic() - ended.given, SHORTEST))

    def get_active_model_versions(self, fl_ctx: FLContext) -> set[int]:  # noqa: ARG002
        """Returns all versions since the oldest that a device trains on, or that has updates to aggregate.

        A device may fetch a newer version than the one for which it was selected.
        """
        oldest = min(self.current_selection.values(), default=self._version)
        return set(range(min(oldest, *self._reported, self._version), self._version + 1))

    def _open(self) -> Fleet:
        if self.scheduler is None:
            self.scheduler = self._plan.open()
        return self.scheduler

    def _end_late(self, devices: Iterable[str]) -> None:
        """Removes devices from the selection whose turns have ended without an update."""
        for device in devices:
            self._late[device] = self._turns.pop(device)
            self.current_selection.pop(device, None)
            self.used_devices.pop(device, None)
            log.warning("turnout: %s is late, and another device gets its slot", device)

    def _is_ready(self, device: str) -> bool:
        """Returns whether a device is not busy with a late turn, and has not trained on the current version."""
        return device not in self._late and self._trained_on.get(device) != self._version

    def _is_learned(self, late: DeviceTurn) -> bool:
        """Returns whether the time of a late device is still learned."""
        scheduler = self._open()
        return scheduler.round - late.turn.id < scheduler.settings.late_turns


def fill_fairly(recipe: Recipe | FedJob, **options: Unpack[FleetOptions]) -> None:
    """Replaces the device manager of an edge recipe or job by one that selects fairly.

    turnout must be installed on the server.

    Args:
        recipe: The recipe, such as EdgeFedBuffRecipe, or a job whose device manager was added.
        options: `fleet`, the file of the fleet (an absolute path on the server), its address in a database, or that of
            a service; `guarantee`, the settings of the policy, in which `guaranteed_rate` is a share of all turns; the
            `deadline` of a turn in seconds, or "auto"; a `tracker`, and other options of `Scheduler.open`.

    Raises:
        SettingError: If an argument is invalid, or the job has no BuffDeviceManager that reuses devices.
    """
    job = job_of(recipe)
    components = components_of(job)
    managers = {name: part for name, part in components.items() if type(part) is BuffDeviceManager}
    if len(managers) != 1:
        raise SettingError(
            f"fill_fairly replaces the BuffDeviceManager of a job, and this one has {len(managers)}: add a "
            "FairDeviceManager to your job"
        )
    ((name, manager),) = managers.items()
    if not manager.device_reuse:
        raise SettingError("device_reuse must be True: a device that trains only once cannot be guaranteed a share")
    components[name] = FairDeviceManager(
        manager.device_selection_size, options, manager.initial_min_client_num, manager.min_hole_to_fill
    )
    expect_package(job)
