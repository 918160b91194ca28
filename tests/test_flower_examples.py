"""Whole Flower apps, by `flwr run`: in simulation with Ray, and as processes on loopback, one of which is killed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from turnout.scheduler import Scheduler

pytest.importorskip("flwr")
ROOT = Path(__file__).parent.parent
RUN = ROOT / "examples" / "run_flower.py"


def run(*words: str) -> str:
    with tempfile.TemporaryDirectory() as nowhere:
        done = subprocess.run(
            [sys.executable, str(RUN), *words], capture_output=True, text=True, check=False, timeout=900, cwd=nowhere
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert list(Path(nowhere).iterdir()) == []  # an example leaves nothing where it was called
    return done.stdout


def test_the_simulation_compares_both_choices_and_keeps_its_runs(tmp_path: Path) -> None:
    words = run("simulation", "--rounds", "6", "--out", str(tmp_path))
    assert "6 rounds, 1 seed; promised share 0.1" in words
    random, fair = json.loads((tmp_path / "runs.json").read_text())
    assert (random["policy"], fair["policy"]) == ("Flower's random choice", "turnout, RBCS-F")
    for one in (random, fair):
        assert sum(one["turns"]) == 6 * 8
        assert len(one["seconds"]) == len(one["accuracy"]) == 6
        assert f"│ {one['policy']}" in words
    with Scheduler.open(tmp_path / "seed-0.turnout", read_only=True) as scheduler:
        assert len(scheduler.clients) == 40
        assert scheduler.certificate().holds
        assert sorted(scheduler.certificate().turns.tolist()) == sorted(fair["turns"])


def test_the_deployment_survives_a_killed_supernode_and_names_it(tmp_path: Path) -> None:
    words = run("deployment", "--out", str(tmp_path))
    killed = re.search(r"--- (c\d) is killed", words)
    assert killed, words
    lost = killed[1]
    assert re.search(rf"^lost: .*{lost}", words, re.MULTILINE), words
    with Scheduler.open(tmp_path / "fleet.turnout", read_only=True) as scheduler:
        assert "c4" in scheduler.clients  # it joined late
        assert scheduler.certificate().holds
        turns, rounds = scheduler.history(lost), scheduler.round
        missed = next(turn.round for turn in turns if turn.kind in ("late", "failed"))
        assert missed < rounds
        assert all(turn.kind in ("late", "failed") for turn in turns if turn.round >= missed)  # dead is dead
        for number in range(missed + 1, rounds + 1):  # and the others go on
            assert any(turn.kind == "arrived" for turn in scheduler.turns(number) if turn.id != lost)
        row, certificate = scheduler.clients.index(lost), scheduler.certificate()
        assert certificate.owed[row] <= certificate.promised[row]  # never more than its share
        others = [client for client in scheduler.clients if client != lost]
        assert scheduler.reliability(lost) < max(map(scheduler.reliability, others))


def test_an_ordinary_app_runs_before_and_after_the_diff() -> None:
    words = run("existing-app")
    accuracies = re.findall(r"^accuracy after 5 rounds: (0\.\d+)", words, re.MULTILINE)
    assert len(accuracies) == 2
    assert min(map(float, accuracies)) > 0.8
    fair = words.partition("--- with fair.diff")[2]
    asked = [line.partition(" asks ")[2] for line in fair.splitlines() if " asks " in line]
    assert len(asked) == 5
    assert all(line.count("owed") == 4 for line in asked)
