"""Runs the examples for pfl-research, vantage6 and OpenFL, in the environment of `make other-frameworks`."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from turnout.live import FleetReader
from turnout.live._internals import examine

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples" / "other_frameworks"
PYTHON = ROOT / ".venv-frameworks" / "bin" / "python"
pytestmark = [
    pytest.mark.framework,
    pytest.mark.skipif(not PYTHON.exists(), reason="the frameworks are not installed: make other-frameworks"),
]


#: The example for OpenFL, with a collaborator that has tasks in some rounds but never runs them.
HANGING = """
import sys
from pathlib import Path

import openfl_collaborators as example

example.ROUNDS = 15
loaders = example.make_loaders()
aggregator = example.build_aggregator(list(loaders), Path(sys.argv[1]), deadline=0.5)
collaborators = example.build_collaborators(loaders, aggregator)
example.run([collaborator for collaborator in collaborators if collaborator.collaborator_name != "hospital-2"])
aggregator.assigner.scheduler.close()
"""


def run(name: str, folder: Path) -> FleetReader:
    """Runs an example, checks that the model was trained and the promise was not broken, and returns the fleet."""
    done = execute(EXAMPLES / name, "--out", folder)
    accuracies = {
        int(number): float(accuracy)
        for number, accuracy in re.findall(r"^round (\d+): accuracy (0\.\d+)", done.stdout, re.MULTILINE)
    }
    assert accuracies[max(accuracies)] > accuracies[0] + 0.2, done.stdout
    assert re.search(r"^promise (kept|behind): ", done.stdout, re.MULTILINE), done.stdout
    assert all(finding.ok is not False for finding in examine(folder / "fleet.turnout"))
    fleet = FleetReader(folder / "fleet.turnout")
    assert fleet.round == max(accuracies)
    certificate = fleet.certificate()
    assert certificate.status in ("kept", "behind")
    assert certificate.behind.max() <= certificate.tolerance
    assert certificate.promised.min() > certificate.tolerance  # so that it could have been broken
    return fleet


def execute(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs Python in the environment of the frameworks."""
    done = subprocess.run(
        [PYTHON, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{EXAMPLES}"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_pfl_trains_on_the_users_that_are_selected(tmp_path: Path) -> None:
    with run("pfl_users.py", tmp_path) as fleet:
        assert len(fleet.clients) == 40
        for number in range(1, fleet.round + 1):
            turns = fleet.history(round=number)
            assert [turn.kind for turn in turns] == ["arrived"] * 8
            assert all(turn.seconds is not None and 2 <= turn.seconds <= 20 for turn in turns)  # 20 to 200 data points


def test_vantage6_goes_on_without_the_organization_that_fails(tmp_path: Path) -> None:
    with run("vantage6_organizations.py", tmp_path) as fleet:
        assert len(fleet.clients) == 8
        for number in range(1, fleet.round + 1):
            for turn in fleet.history(round=number):
                if turn.id == "5" and number % 3 == 0:
                    assert (turn.kind, turn.why) == ("failed", "failed")
                else:
                    assert (turn.kind, turn.seconds) == ("arrived", 10.0 * (int(turn.id) + 1))
        assert {turn.kind for turn in fleet.history("5")} == {"arrived", "failed"}


def test_openfl_trains_on_the_collaborators_that_are_selected(tmp_path: Path) -> None:
    with run("openfl_collaborators.py", tmp_path) as fleet:
        assert len(fleet.clients) == 10
        for number in range(1, fleet.round + 1):
            assert [turn.kind for turn in fleet.history(round=number)] == ["arrived"] * 3
    assert (tmp_path / "last.pbuf").exists()  # OpenFL's own file of the model


def test_openfl_goes_on_without_a_collaborator_that_hangs(tmp_path: Path) -> None:
    execute("-c", HANGING, tmp_path)
    with FleetReader(tmp_path / "fleet.turnout") as fleet:
        assert fleet.round == 15
        assert {turn.kind for turn in fleet.history("hospital-2")} == {"late"}
        for number in range(1, 16):
            assert "arrived" in [turn.kind for turn in fleet.history(round=number)]
