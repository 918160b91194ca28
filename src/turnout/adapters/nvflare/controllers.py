"""NVFlare's own controllers with fair selection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nvflare.apis.controller_spec import Task
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
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
        self, task: Task, fl_ctx: FLContext, targets: Any = None, *limits: Any, **options: Any
    ) -> Any:
        """Sends the training task to the cohort of a new round."""
        if targets is None and task.name == self.train_task_name:
            targets = self.sample_clients(self._min_clients)
            if not targets:  # the job was aborted
                return None
        return super().broadcast_and_wait(task, fl_ctx, targets, *limits, **options)


#: The fair controller for each controller of NVFlare that can be replaced.
FAIR: Mapping[type[Controller], type[FairSelection]] = {
    fair.__bases__[1]: fair for fair in (FairFedAvg, FairFedAvgLR, FairScaffold, FairScatterAndGather)
}
