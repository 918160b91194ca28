"""NVFlare's simulator, with the oldest and the newest supported version: a complete job in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from turnout.live import FleetReader
from turnout.live._internals import examine

JOBS = Path(__file__).parent / "simulated"
pytestmark = pytest.mark.framework


def run(job: str, folder: Path, *arguments: str) -> Path:
    """Runs a job and returns its fleet, which is sound."""
    done = subprocess.run(
        [sys.executable, str(JOBS / job), *arguments, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
        env={**os.environ, "HOME": str(folder)},
    )
    fleet = folder / "fleet.turnout"
    assert fleet.exists(), done.stdout + done.stderr
    assert all(finding.ok is not False for finding in examine(fleet))
    return fleet


def test_the_devices_of_an_edge_job_are_selected_fairly(tmp_path: Path) -> None:
    pytest.importorskip("turnout.adapters.nvflare.edge", reason="edge jobs need NVFlare 2.9", exc_type=ImportError)
    with FleetReader(run("edge_job.py", tmp_path)) as scheduler:
        assert len(scheduler.clients) == 12
        kinds = [scheduler.history(round=number)[0].kind for number in range(1, scheduler.round + 1)]
        assert kinds.count("arrived") >= 6 * 3  # version 1 is the first model, and each other one needs three updates
        assert set(kinds) <= {"arrived", None}
        assert min(len(scheduler.history(device)) for device in scheduler.clients) >= 1
        assert scheduler.certificate().holds, "a device is further behind than the tolerance"


def test_a_failing_and_a_slow_client_do_not_stop_the_simulator(tmp_path: Path) -> None:
    fleet = run("job.py", tmp_path)
    with FleetReader(fleet) as scheduler:
        assert scheduler.open_round() is None
        assert scheduler.round >= 7  # rounds in which everybody is backed off cost the job nothing
        history = {client: scheduler.history(client) for client in scheduler.clients}
    assert list(history) == ["site-1", "site-2", "site-3", "site-4"]
    kinds = {client: {turn.kind for turn in turns} for client, turns in history.items()}
    assert "arrived" in kinds["site-1"] | kinds["site-2"]
    assert kinds["site-3"] == {"failed"}
    assert all(str(turn.why).startswith("returned ") for turn in history["site-3"])
    assert kinds["site-4"] == {"late"}
    assert all(turn.late_seconds is None or turn.late_seconds >= 12 for turn in history["site-4"])
    contributed = {turn.round for turns in history.values() for turn in turns if turn.kind == "arrived"}
    (model,) = (tmp_path / "workspace").rglob("server.npy")
    assert np.load(model).flat[0] == 1 + len(contributed)  # the model grew by 1 in each round with a contribution


@pytest.mark.parametrize("recipe", ["fedopt.FedOptRecipe", "scaffold.ScaffoldRecipe"])
def test_recipes_of_pytorch_train_on_fair_cohorts(tmp_path: Path, recipe: str) -> None:
    path = f"nvflare.app_opt.pt.recipes.{recipe}"
    if find_spec("torch") is None or find_spec(path.rpartition(".")[0]) is None:
        pytest.skip("this NVFlare has no such recipe, or PyTorch is not installed")
    with FleetReader(run("recipe_job.py", tmp_path, path)) as scheduler:
        turns = [turn for number in range(1, 4) for turn in scheduler.history(round=number)]
        assert [turn.kind for turn in turns] == ["arrived"] * 6
        assert scheduler.certificate().status == "kept"
