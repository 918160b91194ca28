"""A server without rounds that is killed at any write loses no turn and doubles none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from killing import environment
from scheduler.fleets import packed, packed_from_disk
from scheduler.slots.killed_filler import play
from turnout.scheduler import Scheduler, certify, examine

TURNS = 120
#: More seeds, and thereby more kills, in `make torture`.
SEEDS = 2 * int(os.environ.get("TURNOUT_TORTURE", "1"))
SCRIPT = Path(__file__).with_name("killed_filler.py")


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_server_killed_at_any_write_loses_and_doubles_no_turn(folder: Path, seed: int) -> None:
    path = folder / "fleet.turnout"
    # A child makes some twenty writes when it opens the file, and about ten per call of fill or report.
    arguments = [sys.executable, str(SCRIPT), str(path), str(TURNS), str(seed), "20", "90"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, env=environment(), timeout=600)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["exit"] == 0, done.stderr
    assert result["killed"] >= 20
    # No turn was returned to two calls; one that was committed just before a kill was returned to none.
    numbers = [int(line.split()[0]) for line in result["given"]]
    assert len(numbers) == len(set(numbers))
    with play(str(folder / "twin.turnout"), TURNS) as twin, Scheduler.open(path) as survivor:
        assert survivor.round == twin.round >= TURNS
        assert packed(survivor) == packed_from_disk(path) == packed(twin)
        for number in range(1, twin.round + 1):
            (own,), (other,) = survivor.turns(number), twin.turns(number)
            assert (own.id, own.kind, own.seconds, own.why, own.loss) == (
                other.id,
                other.kind,
                other.seconds,
                other.why,
                other.loss,
            )
        assert {int(line.split()[0]): line.split()[1] for line in result["given"]}.items() <= {
            number: survivor.turns(number)[0].id for number in range(1, survivor.round + 1)
        }.items()
        assert survivor.certificate().turns.tolist() == twin.certificate().turns.tolist()
    assert all(finding.ok is not False for finding in examine(path)), examine(path)
    certify(path, folder / "proof.json", folder / "proof.jsonl")
