"""The code blocks of docs/nvflare.md run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.edge.assessors.buff_device_manager import BuffDeviceManager
from nvflare.edge.tools.edge_job import EdgeJob
from nvflare.job_config.api import FedJob

from adapters.nvflare.conftest import MakeJob
from adapters.nvflare.controllers import InMemory
from adapters.nvflare.in_process import always
from turnout.adapters.nvflare import FairFedAvg, FairSelection, StatusReporter
from turnout.live import FleetReader

ROOT = Path(__file__).parents[3]


def block_with(text: str) -> str:
    """Returns the Python block of the page that contains this text."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/nvflare.md").read_text(), flags=re.DOTALL)
    (code,) = [block for block in blocks if text in block]
    return str(code)


def server_components(job: FedJob) -> list[Any]:
    return [workflow.controller for workflow in job._deploy_map["server"].app_config.workflows]


def test_two_lines_fill_the_slots_of_an_edge_job_fairly(fleet: str) -> None:
    edge = pytest.importorskip("turnout.adapters.nvflare.edge", reason="needs NVFlare 2.9", exc_type=ImportError)
    code = block_with("fill_fairly(recipe").replace("/srv/edge.turnout", fleet)
    job = EdgeJob("edge", "edge")
    job.to_server(BuffDeviceManager(10), id="device_manager")
    exec(code, {"recipe": job})
    manager = job._deploy_map["server"].app_config.components["device_manager"]
    assert isinstance(manager, edge.FairDeviceManager)
    assert manager.selection == {"fleet": fleet, "guarantee": {"guaranteed_rate": "1/200"}, "deadline": 300}


def test_two_lines_make_a_job_fair(make_job: MakeJob, fleet: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code = block_with("select_fairly(recipe").replace("/srv/fleet.turnout", fleet)
    assert len([line for line in code.splitlines() if line]) == 2
    job = FedJob(name="own")
    job.to_server(FedAvg(num_clients=6, num_rounds=20))
    exec(code, {"recipe": job})
    (controller,) = server_components(job)
    assert isinstance(controller, FairFedAvg)
    simulated = make_job(**{f"site_{number}": always() for number in range(12)})
    monkeypatch.setattr(FairFedAvg, "load_model", InMemory.load_model, raising=False)
    monkeypatch.setattr(FairFedAvg, "save_model", InMemory.save_model, raising=False)
    simulated.run(controller)
    with FleetReader(fleet) as scheduler:
        assert [len(scheduler.history(round=number)) for number in range(1, 21)] == [4] * 20
        assert scheduler.certificate().status == "kept"


def test_a_controller_of_ones_own_is_combined_with_the_mixin() -> None:
    job = FedJob(name="own")
    exec(block_with("class Mine(FairSelection, FedAvg)"), {"job": job, "__name__": "own_job"})
    (controller,) = server_components(job)
    assert isinstance(controller, FairSelection)
    assert isinstance(controller, FedAvg)
    assert (controller.num_clients, controller.num_rounds, controller.selection["deadline"]) == (4, 50, 600)
    components = job._deploy_map["@ALL"].app_config.components.values()
    assert any(isinstance(component, StatusReporter) for component in components)
