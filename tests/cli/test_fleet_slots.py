"""Commands about fleets without rounds."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from cli import in_process
from cli.in_process import output_of, run
from turnout.live import Scheduler

FLEET = "slots.turnout"


@pytest.fixture(autouse=True)
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> float:
    """Makes a fleet with three slots, all of which are in use, and returns the time before their turns began."""
    monkeypatch.chdir(tmp_path)
    settings = {"guaranteed_rate": "1/20", "tolerance": 1.0}
    with Scheduler.open(FLEET, concurrency=3, settings=settings, deadline=1e6) as scheduler:
        for _ in range(30):
            for turn in scheduler.fill([f"c{number}" for number in range(8)]):
                scheduler.report(turn.id, 1.0 + int(turn.client[1:]))
        started = time.time()
        scheduler.fill([f"c{number}" for number in range(8)])
    return started


def test_the_status_names_the_clients_that_train(started: float) -> None:
    shown = run("fleet", "status", FLEET).stdout
    assert "3 of 3 slots are in use" in shown
    assert "training" in shown
    elapsed = [float(seconds) for seconds in re.findall(r"for (\d+\.\d) s; deadline 11 d 13 h", shown)]
    assert len(elapsed) == 3
    assert max(elapsed) <= time.time() - started + 0.1
    assert "round" not in shown
    assert "no round is open" not in shown
    assert shown.endswith("no scheduler is: start the server again, which continues with them.\n")


def test_a_fleet_is_examined_certified_and_exported() -> None:
    assert "The fleet is intact." in run("fleet", "doctor", FLEET).stdout
    lines = [json.loads(line) for line in run("fleet", "export", FLEET).stdout.splitlines()]
    assert [line["kind"] for line in lines] == ["join", *["fill"] * (len(lines) - 1)]
    assert "Promise kept" in run("fleet", "certify", FLEET).stdout


def test_commands_speak_of_turns_and_decisions() -> None:
    assert "turn" in run("fleet", "history", FLEET, "c3").stdout.splitlines()[2]
    explained = run("fleet", "explain", FLEET, "c3", "--round", "20").stdout
    assert "turn is worth" in explained
    assert "turns behind, this decision included" in explained
    proof = output_of("fleet", "certify", FLEET, "-o", "proof.json")
    assert "8 clients, 93 turns" in proof
    assert "Verified" in run("verify", "proof.json", "proof.jsonl").stdout
    kept = run("fleet", "compact", FLEET).stdout.splitlines()[0]
    copied = run("fleet", "backup", FLEET, "copy.turnout").stdout
    replayed = run("fleet", "replay", FLEET, "--policy", "random", "--draws", "2").stdout
    assert "updates per second" in replayed
    for text in (explained, proof, kept, copied, replayed):
        assert "round" not in text.replace("--round", "")


def test_a_fleet_is_amended_and_a_client_retired() -> None:
    assert run("fleet", "amend", FLEET, "--guaranteed-rate", "1/30").returncode == 0
    assert run("fleet", "retire", FLEET, "c7").returncode == 0
    with Scheduler.open(FLEET) as scheduler:
        assert "c7" not in {turn.client for turn in scheduler.fill([f"c{number}" for number in range(8)])}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fleet", "abandon-round", FLEET), "no round of slots.turnout is open"),
        (("fleet", "amend", FLEET, "--cohort-size", "4"), "cohort_size must be 1, or left out"),
        (
            ("fleet", "explain", FLEET, "c3", "--round", "900"),
            "there is no decision 900 to explain: choose one from 1 to 93",
        ),
    ],
)
def test_what_needs_rounds_is_refused(arguments: tuple[str, ...], message: str) -> None:
    assert message in in_process.error_of(*arguments)
