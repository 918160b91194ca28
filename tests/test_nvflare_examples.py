"""Runs the NVFlare examples: in the simulator, and with a server and clients as processes on this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from turnout.live import FleetReader
from turnout.live._internals import examine

pytest.importorskip("nvflare", reason="NVFlare is not installed: pip install 'turnout[nvflare]'")
pytestmark = pytest.mark.framework
EXAMPLES = Path(__file__).parent.parent / "examples" / "nvflare"


def run(name: str, folder: Path, *options: str) -> str:
    """Runs an example and returns its output."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), "--out", str(folder), *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
        env={**os.environ, "HOME": str(folder)},  # NVFlare writes a configuration into the home directory
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(finding.ok is not False for finding in examine(folder / "fleet.turnout")), done.stdout
    return done.stdout


def test_the_simulation_goes_on_with_a_failing_and_a_slow_client(tmp_path: Path) -> None:
    output = run("simulation.py", tmp_path, "--deadline", "20")  # the machine may be busy
    assert re.search(r"^  site-1: .*\d arrived", output, re.MULTILINE), output
    assert re.search(r"^  site-3: \d failed \(returned ", output, re.MULTILINE), output
    assert re.search(r"^  site-4: \d late", output, re.MULTILINE), output
    with FleetReader(tmp_path / "fleet.turnout") as scheduler:
        assert scheduler.round >= 7
        assert scheduler.explain("site-4", 1).exact  # as for any fleet
        for turn in scheduler.history("site-4"):
            assert (turn.kind, turn.seconds) == ("late", 20.0)  # nobody waited longer
            assert turn.late_seconds is None or turn.late_seconds >= 40


def test_processes_with_tls_share_the_rounds_fairly(tmp_path: Path) -> None:
    output = run("poc.py", tmp_path)
    assert "FINISHED:COMPLETED" in output
    with FleetReader(tmp_path / "fleet.turnout") as scheduler:
        assert scheduler.clients == ["site-1", "site-2", "site-3"]
        assert scheduler.round == 6
        turns = [turn for number in range(1, 7) for turn in scheduler.history(round=number)]
        assert [turn.kind for turn in turns] == ["arrived"] * 12
        certificate = scheduler.certificate()
    assert certificate.status in ("kept", "behind")
    assert certificate.turns.min() >= 1  # of 3 promised turns, at most 2 behind
