"""Clients of Flower's older interface take part, and errors say which lines of an app to change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context
from flwr.client import Client, NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import Code, EvaluateIns, EvaluateRes, FitIns, FitRes, Status
from flwr.server import Server, ServerConfig, SimpleClientManager

from adapters.flower.conftest import OpenFleet
from adapters.flower.in_process import InProcessGrid, Node, kinds_in, open_to_all, train, turns_of
from turnout.adapters.flower import FairSelection
from turnout.adapters.flower.client import with_status
from turnout.adapters.flower.legacy import message_app
from turnout.errors import SettingError

pytestmark = pytest.mark.usefixtures("clock")


class Adder(NumPyClient):
    """Adds the setting "step" to every array."""

    def fit(self, parameters: list[Any], config: dict[str, Any]) -> tuple[list[Any], int, dict[str, Any]]:
        step = float(config["step"])
        return [array + step for array in parameters], 10, {"train_loss": 0.5, "ok": True, "note": "not a number"}

    def evaluate(self, parameters: list[Any], config: dict[str, Any]) -> tuple[float, int, dict[str, Any]]:  # noqa: ARG002
        return float(parameters[0].mean()), 5, {"accuracy": 0.25}


class Failing(Client):
    """Replies with a status, as a client of the older interface reports an error."""

    def fit(self, ins: FitIns) -> FitRes:
        return FitRes(Status(Code.FIT_NOT_IMPLEMENTED, "no data yet"), ins.parameters, 0, {})

    def evaluate(self, ins: EvaluateIns) -> EvaluateRes:  # noqa: ARG002
        return EvaluateRes(Status(Code.EVALUATE_NOT_IMPLEMENTED, "no data yet"), 0.0, 0, {})


def client_fn(context: Context) -> Client | NumPyClient:
    if context.node_config["client-id"] == "c2":
        return Failing()
    return Adder() if context.node_config["client-id"] == "c0" else Adder().to_client()


def nodes() -> list[Node]:
    app = with_status(message_app(client_fn))
    return [Node(100 + row, app, {"client-id": f"c{row}", "bandwidth": 1.0}, 1.0) for row in range(3)]


def layers() -> ArrayRecord:
    return ArrayRecord({"layer.weight": Array(np.zeros((2, 2))), "layer.bias": Array(np.ones(2))})


def test_numpy_clients_train_and_evaluate_under_fair_selection(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(settings={"cohort_size": 3})
    result = train(
        scheduler, InProcessGrid(nodes()), arrays=layers(), rounds=2, train_config=ConfigRecord({"step": 1.5})
    )
    assert {name: array.numpy().tolist() for name, array in result.arrays.items()} == {
        "layer.weight": [[3.0, 3.0], [3.0, 3.0]],
        "layer.bias": [4.0, 4.0],
    }
    assert kinds_in(scheduler, 2) == {"c0": "arrived", "c1": "arrived", "c2": "failed"}
    assert scheduler.history("c2")[0].why == "FIT_NOT_IMPLEMENTED: no data yet (code 2)"
    assert scheduler.history("c0")[0].loss == 0.5
    metrics = result.train_metrics_clientapp[1]
    assert (metrics["train_loss"], metrics["ok"]) == (0.5, 1.0)
    assert "note" not in metrics
    assert dict(result.evaluate_metrics_clientapp[2]) == {"loss": 3.0, "accuracy": 0.25}
    assert turns_of(scheduler) == {"c0": 2, "c1": 2, "c2": 2}


def test_a_client_app_with_a_client_fn_is_refused_with_the_line_to_write() -> None:
    for app in (ClientApp(client_fn), Adder()):  # type: ignore[arg-type]
        with pytest.raises(SettingError, match=r"write with_status\(message_app\(client_fn\)\)"):
            with_status(app)  # type: ignore[arg-type]


def test_the_server_of_the_older_interface_refuses_fair_selection_with_a_pointer(open_fleet: OpenFleet) -> None:
    fair: Any = FairSelection(open_to_all(), open_fleet())
    server = Server(client_manager=SimpleClientManager(), strategy=fair)
    with pytest.raises(SettingError, match=r"@app.main\(\).*docs/flower.md lists the lines to change"):
        server.fit(num_rounds=ServerConfig(num_rounds=1).num_rounds, timeout=None)
