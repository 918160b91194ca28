"""The examples are run, as a newcomer would run them."""

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


def played(folder: Path, rounds: int) -> str:
    command = [sys.executable, str(PLAIN_LOOP), str(folder), str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_plain_loop_trains_goes_on_and_keeps_its_promise(tmp_path: Path) -> None:
    words = played(tmp_path / "fleet", 10)
    assert re.search(r"^round 10: accuracy 0\.[3-9]\d\d, chosen were (phone-\d\d, ){3}phone-\d\d$", words, re.MULTILINE)
    assert "round      10 is closed, none is open" in words
    assert words.endswith("the promise holds: True\n")
    again = played(tmp_path / "fleet", 12)
    assert re.findall(r"^round (\d+):", again, re.MULTILINE) == ["12"]


def test_the_plain_loop_goes_on_after_it_was_killed(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet" / "fleet.turnout"
    server = subprocess.Popen([sys.executable, str(PLAIN_LOOP), str(fleet.parent), "1000"])
    try:
        wait_until(lambda: fleet.exists() and _round_of(fleet) >= 3, "three rounds have been played")
    finally:
        server.kill()
    assert server.wait() == -signal.SIGKILL
    rounds = _round_of(fleet) + 3
    assert f"round {rounds}: accuracy" in played(fleet.parent, rounds)
    assert all(one.sound is not False for one in examine(fleet))


def _round_of(fleet: Path) -> int:
    with Scheduler.open(fleet, read_only=True) as scheduler:
        return scheduler.round
