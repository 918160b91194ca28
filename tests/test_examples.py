"""Runs the examples as a new user would."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

from turnout.scheduler import Scheduler
from turnout.scheduler.audit.doctor.doctor import examine
from waiting import wait_until

PLAIN_LOOP = Path(__file__).parent.parent / "examples" / "plain_loop.py"


def run_plain_loop(folder: Path, rounds: int) -> str:
    """Runs the example in this folder and returns its output."""
    command = [sys.executable, str(PLAIN_LOOP), str(folder), str(rounds)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_plain_loop_trains_resumes_and_keeps_its_promise(tmp_path: Path) -> None:
    output = run_plain_loop(tmp_path / "fleet", 10)
    assert re.search(r"^round 10: accuracy 0\.[3-9]\d\d, cohort (phone-\d\d, ){3}phone-\d\d$", output, re.MULTILINE)
    assert "round      10 is closed, no round is open" in output
    # In ten rounds a client is promised two turns at most, and may be two turns behind.
    assert re.search(r"^The promise is (kept|behind): .+\n\Z", output, re.MULTILINE)
    resumed = run_plain_loop(tmp_path / "fleet", 12)
    assert re.findall(r"^round (\d+):", resumed, re.MULTILINE) == ["12"]


def test_the_plain_loop_resumes_after_a_kill(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet" / "fleet.turnout"
    server = subprocess.Popen([sys.executable, str(PLAIN_LOOP), str(fleet.parent), "1000"])
    try:
        wait_until(lambda: fleet.exists() and _round_of(fleet) >= 3, "three rounds have been played")
    finally:
        server.kill()
    assert server.wait() == -signal.SIGKILL
    rounds = _round_of(fleet) + 3
    assert f"round {rounds}: accuracy" in run_plain_loop(fleet.parent, rounds)
    assert all(finding.sound is not False for finding in examine(fleet))


def _round_of(fleet: Path) -> int:
    with Scheduler.open(fleet, read_only=True) as scheduler:
        return scheduler.round
