"""Controllers for the tests: NVFlare's own, with a model of two numbers that is kept in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.workflows.model_controller import ModelController

from turnout.adapters.nvflare import FairFedAvg, FairScaffold, FairSelection


class InMemory:
    """Keeps the model of each round."""

    saved: list[float]

    def load_model(self) -> FLModel:
        self.saved = []
        return FLModel(params_type=ParamsType.FULL, params={"w": np.zeros(2)})

    def save_model(self, model: FLModel) -> None:
        self.saved.append(float(model.params["w"][0]))


class Averaging(InMemory, FairFedAvg):
    """FedAvg in memory."""


class Scaffolding(InMemory, FairScaffold):
    """Scaffold in memory."""


class TwoTasks(InMemory, FairSelection, ModelController):
    """Sends a training task and then another task to each cohort, and uses only the first."""

    def __init__(self, *args: Any, num_rounds: int, num_clients: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.num_rounds, self.num_clients = num_rounds, num_clients
        self.evaluated: list[int] = []
        self.timeouts: list[int] = []  # of the tasks
        self.open_rounds: list[bool] = []  # whether a round is open when the second task is sent

    def run(self) -> None:
        model = self.load_model()
        for _ in range(self.num_rounds):
            cohort = self.sample_clients(self.num_clients)
            self.send_model_and_wait(targets=cohort, data=model)
            self.open_rounds.append(self.scheduler is not None and self.scheduler.open_round is not None)
            self.evaluated.append(len(self.send_model_and_wait(task_name="validate", targets=cohort, data=model)))

    def broadcast_and_wait(self, task: Any, *args: Any, **kwargs: Any) -> Any:
        result = super().broadcast_and_wait(task, *args, **kwargs)
        self.timeouts.append(task.timeout)
        return result


class OneAfterTheOther(TwoTasks):
    """Sends the model to the clients of a cohort one after the other, as cyclic training does."""

    def run(self) -> None:
        model = self.load_model()
        for _ in range(self.num_rounds):
            for client in self.sample_clients(self.num_clients):
                self.send_model_and_wait(targets=[client], data=model)
