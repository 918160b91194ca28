"""The client side: a widget that adds the client's status to every request for work.

The training script does not change. `select_fairly` adds the widget to the client apps of a recipe.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_context import FLContext
from nvflare.widgets.widget import Widget

from turnout.adapters.common import machine

STATUS = "turnout_status"  # the public property of the client's context that holds its status


class StatusReporter(Widget):
    """Reports the free cores and the bandwidth of a client, also while it is not selected.

    To report something else, write a subclass with its own `status`.

    Args:
        free_cpu: The number of free cores; None for the cores that other programs left free
            between two requests for work.
        bandwidth: The bandwidth in the unit of the fleet's `model_size` per second; None for the speed of the fastest
            network interface in Mbit/s, or 1 if it is unknown. The throughput to the server cannot be measured here.
    """

    def __init__(self, free_cpu: float | None = None, bandwidth: float | None = None) -> None:
        super().__init__()
        # NVFlare stores the constructor's arguments in the job, and finds them under these names.
        self.free_cpu, self.bandwidth = free_cpu, bandwidth

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Adds the status to the context that is sent with a request for work."""
        if event_type == EventType.START_RUN:
            machine.start_measuring()
        elif event_type == EventType.BEFORE_PULL_TASK:
            fl_ctx.set_prop(STATUS, self._checked_status(fl_ctx), private=False, sticky=False)

    def status(self, fl_ctx: FLContext) -> Mapping[str, float]:  # noqa: ARG002
        """Returns the status of this client: one number for each feature of the fleet."""
        return {
            "free_cpu": machine.free_cpu() if self.free_cpu is None else self.free_cpu,
            "bandwidth": machine.bandwidth() if self.bandwidth is None else self.bandwidth,
        }

    def _checked_status(self, fl_ctx: FLContext) -> dict[str, float]:
        try:
            return {str(name): float(value) for name, value in self.status(fl_ctx).items()}
        except Exception as error:  # a failing status function must not keep the client from working
            self.logger.warning("turnout: the status of this client could not be determined: %r", error)
            return {}


def read_status(peer: FLContext) -> dict[str, Any] | None:
    """Returns what a client reported with its request; None if it has no StatusReporter."""
    status = peer.get_prop(STATUS)
    return dict(status) if isinstance(status, Mapping) and status else None
