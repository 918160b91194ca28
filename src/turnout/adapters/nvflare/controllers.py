"""NVFlare's own controllers with fair selection."""

from __future__ import annotations

from typing import Any

from nvflare.apis.controller_spec import Task
from nvflare.apis.fl_context import FLContext
from nvflare.apis.signal import Signal
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.app_common.workflows.lr.fedavg import FedAvgLR
from nvflare.app_common.workflows.scaffold import Scaffold
from nvflare.app_common.workflows.scatter_and_gather import ScatterAndGather

from turnout.adapters.nvflare.selection import FairSelection


class FairFedAvg(FairSelection, FedAvg):
    """FedAvg with fair selection."""


class FairFedAvgLR(FairSelection, FedAvgLR):
    """Logistic regression by Newton-Raphson steps, with fair selection."""


class FairScaffold(FairSelection, Scaffold):
    """Scaffold with fair selection."""


class FairScatterAndGather(FairSelection, ScatterAndGather):
    """ScatterAndGather with fair selection: `min_clients` is the cohort size, unless `guarantee` has one.

    Without fair selection, this controller sends the model to all clients.
    """

    def broadcast_and_wait(
        self,
        task: Task,
        fl_ctx: FLContext,
        targets: Any = None,
        min_responses: int = 1,
        wait_time_after_min_received: int = 0,
        abort_signal: Signal | None = None,
    ) -> Any:
        """Sends the training task to the cohort of a new round."""
        if targets is None and task.name == self.train_task_name:
            targets = self.sample_clients(self._min_clients)
            if not targets:  # the job was aborted
                return None
        return super().broadcast_and_wait(
            task, fl_ctx, targets, min_responses, wait_time_after_min_received, abort_signal
        )
