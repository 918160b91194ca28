"""NVFlare's simulator, with the oldest and the newest supported version: a complete job in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from turnout.scheduler import Scheduler, examine

JOB = Path(__file__).parent / "simulated" / "job.py"


@pytest.mark.framework
def test_a_failing_and_a_slow_client_do_not_stop_the_simulator(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(JOB), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
        env={**os.environ, "HOME": str(tmp_path)},
    )
    fleet = tmp_path / "fleet.turnout"
    assert fleet.exists(), done.stdout + done.stderr
    assert all(finding.sound is not False for finding in examine(fleet))
    with Scheduler.open(fleet, read_only=True) as scheduler:
        assert scheduler.open_round is None
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
