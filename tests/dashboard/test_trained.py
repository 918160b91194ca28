"""Metrics of a Flower run during and after training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dashboard.readings import audit_of
from dashboard.served import served, small_fleet

pytest.importorskip("flwr")

from fractions import Fraction

from adapters.flower.in_process import model
from turnout.adapters.flower.resume.saved_run import RunFiles, SavedRun
from turnout.storage.training_log import Metrics

ROUNDS_BEFORE = 4  # rounds of the fleet before this run
METRICS: dict[str, Metrics] = {
    "train": {number: {"train_loss": 1 / number, "waited": number, "turnout-asked": 8} for number in range(1, 7)},
    "evaluate": {2: {"accuracy": 0.5, "per_class": [0.1, 0.9]}, 4: {"accuracy": 0.75}},
    "server": {0: {"accuracy": 0.1}, 3: {"accuracy": 0.6}, 6: {"accuracy": 0.9, "name": "x"}},
}


def saved(number: int) -> SavedRun:
    shapes, arrays = {"weights": [2]}, model(1.0, 2.0)
    return SavedRun(server_round=number, fleet_round=number + ROUNDS_BEFORE, begun_with=shapes, arrays=arrays)


def test_metrics_of_a_flower_run_have_rounds_and_times(folder: Path) -> None:
    path = folder / "fleet.turnout"
    small_fleet(path, rounds=10, is_open=False)
    files, elapsed = RunFiles(path), np.cumsum(audit_of(path, Fraction(1, 6)).durations)
    with served(path) as server:
        server.wait_read()
        assert server.json("/api/training")["groups"] == []
        files.write(saved(6))
        files.write_metrics(METRICS)
        server.until(lambda: server.json("/api/training")["groups"])
        data = server.json("/api/training")
        assert data["metric"] == "accuracy"
        assert data["metrics"] == ["accuracy", "clients' accuracy", "training train_loss", "training waited"]
        (group,) = data["groups"]
        assert (group["rounds"], group["mean"]) == ([4, 7, 10], [0.1, 0.6, 0.9])
        assert group["seconds"] == pytest.approx([elapsed[3], elapsed[6], elapsed[9]], rel=1e-5)
        (group,) = server.json("/api/training?metric=clients%27%20accuracy")["groups"]
        assert (group["rounds"], group["mean"]) == ([6, 8], [0.5, 0.75])
        assert server.get("/api/training?metric=nonsense").status == 400
        files.finish()
        assert not files.metrics.exists()
        server.until(lambda: server.json("/api/training")["groups"])
        assert server.json("/api/training")["groups"][0]["mean"] == [0.1, 0.6, 0.9]


def test_metrics_of_rounds_that_are_not_closed_are_hidden(folder: Path) -> None:
    path = folder / "fleet.turnout"
    small_fleet(path, rounds=8, is_open=False)
    files = RunFiles(path)
    files.write(saved(6))
    files.write_metrics(METRICS)
    with served(path) as server:
        server.wait_rounds(8)
        assert server.json("/api/training")["groups"][0]["rounds"] == [4, 7]


def test_metrics_of_a_new_fleet_start_at_round_zero(folder: Path) -> None:
    path = folder / "fleet.turnout"
    small_fleet(path, rounds=6, is_open=False)
    RunFiles(path).write_metrics(METRICS)  # without a saved model the run starts at round 0
    with served(path) as server:
        server.wait_rounds(6)
        (group,) = server.json("/api/training")["groups"]
        assert group["rounds"] == [0, 3, 6]
        assert group["seconds"][0] == 0


@pytest.mark.parametrize("damage", [b"\n", b"{\n", b"[]\n", b'["server", 3, 3]\n', b'["server", "x", {}]\n', b"\xff\n"])
def test_damaged_metrics_are_reported_only_on_the_training_page(folder: Path, damage: bytes) -> None:
    path = folder / "fleet.turnout"
    small_fleet(path, rounds=3, is_open=False)
    RunFiles(path).metrics.write_bytes(damage)
    with served(path) as server:
        server.wait_rounds(3)
        answer = server.get("/api/training")
        assert answer.status == 503
        assert b"cannot be read from fleet.turnout.run.jsonl" in answer.body
        assert server.get("/healthz").status == 200
