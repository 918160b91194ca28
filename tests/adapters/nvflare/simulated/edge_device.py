"""A simulated device that adds 1 to each weight."""

from __future__ import annotations

import time

import numpy as np
from nvflare.apis.dxo import DXO, DataKind
from nvflare.edge.simulation.device_task_processor import DeviceTaskProcessor
from nvflare.edge.web.models.job_response import JobResponse
from nvflare.edge.web.models.task_response import TaskResponse


class AddingDevice(DeviceTaskProcessor):
    """Trains for a tenth of a second."""

    def setup(self, job: JobResponse) -> None:
        """Needs nothing."""

    def shutdown(self) -> None:
        """Has nothing to clean up."""

    def process_task(self, task: TaskResponse) -> dict[str, object]:
        """Returns an update of 1 for each weight."""
        time.sleep(0.1)
        update = {name: np.ones_like(np.array(values)).tolist() for name, values in task.task_data["data"].items()}
        described: dict[str, object] = DXO(DataKind.WEIGHT_DIFF, data={"dict": update, "count": 1}).to_dict()
        return described
