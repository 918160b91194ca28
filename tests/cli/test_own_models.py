"""A model of the user's own is named on the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import pytest

from cli import in_process
from turnout.lab import RunStore
from turnout.lab.worlds.registry import LEARNERS

TASK = """
import numpy as np
from torch import nn
from turnout.lab import TorchTask

def make_task(classes=2):
    rows = np.random.default_rng(0).normal(size=(40, 3))
    data = rows, (rows.sum(axis=1) > 0).astype(int)
    items = [np.arange(client, 40, 10) for client in range(10)]
    return TorchTask(lambda: nn.Linear(3, classes), nn.functional.cross_entropy, data, data, items, method="plain")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "users_tasks.py").write_text(TASK)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "users_tasks", raising=False)
    yield tmp_path
    LEARNERS.clear()


def run(folder: Path, *options: str) -> in_process.Done:
    world = ["name=training", "learner=users_tasks:make_task", "world={clients = 10}"]
    shared = ["random", "--rounds", "4", "--set", "cohort_size=3", *(f"--world={setting}" for setting in world)]
    with chdir(folder):
        return in_process.run("simulate", *shared, *options)


def test_runs_with_a_model_of_ones_own_are_simulated_and_compared(folder: Path) -> None:
    store = str(folder / "runs.turnout")
    assert run(folder, "--store", store).returncode == 0
    compared = run(folder, "--seeds", "2", "--workers", "1", "--store", store, "--json")
    assert compared.returncode == 0, compared.stderr
    assert json.loads(compared.stdout)["policies"][0]["policy"] == "random (cohort_size 3)"
    with RunStore(folder / "runs.turnout", read_only=True) as runs:
        assert [run.plan["world_settings"]["learner"] for run in runs.runs()] == ["users_tasks:make_task"] * 2
        for stored in runs.runs():
            assert (runs.columns(stored.id).metrics["accuracy"] > 0).all()
