"""Runs complete Flower apps with `flwr run`: in a Ray simulation, and as processes, one of which is killed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from turnout.live import FleetReader
from waiting import gone, wait_until_gone

pytest.importorskip("flwr")
pytestmark = pytest.mark.framework
ROOT = Path(__file__).parent.parent
RUN = ROOT / "examples" / "run_flower.py"
# Flower starts a process for every message, which can take half a minute on a busy machine.
PATIENT = ("--deadline", "240")


def run(*arguments: str) -> str:
    """Runs an example and returns its output; asserts that it leaves no files in the working directory."""
    command = [sys.executable, str(RUN), *arguments]
    with tempfile.TemporaryDirectory() as folder:
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900, cwd=folder)
        assert result.returncode == 0, result.stdout + result.stderr
        assert list(Path(folder).iterdir()) == []
    return result.stdout


def test_the_simulation_compares_both_selections_and_saves_its_runs(tmp_path: Path) -> None:
    output = run("simulation", "--rounds", "6", "--out", str(tmp_path))
    assert "6 rounds, 1 seed; promised share 0.1" in output
    random, fair = json.loads((tmp_path / "runs.json").read_text())
    assert (random["policy"], fair["policy"]) == ("Flower's random choice", "turnout, FairPace")
    for result in (random, fair):
        assert sum(result["turns"]) == 6 * 8
        assert len(result["seconds"]) == len(result["accuracy"]) == 6
        assert f"│ {result['policy']}" in output
    with FleetReader(tmp_path / "seed-0.turnout") as scheduler:
        assert len(scheduler.clients) == 40
        assert scheduler.settings.policy == "fair-pace"
        assert scheduler.certificate().status == "kept"
        assert sorted(scheduler.certificate().turns.tolist()) == sorted(fair["turns"])


def test_the_deployment_survives_a_killed_supernode_and_names_it(tmp_path: Path) -> None:
    output = run("deployment", "--random-rounds", "1", *PATIENT, "--out", str(tmp_path))
    killed = re.search(r"--- (c\d) is killed", output)
    assert killed, output
    lost = killed[1]
    assert re.search(rf"^lost: .*{lost}", output, re.MULTILINE), output
    with FleetReader(tmp_path / "fleet.turnout") as scheduler:
        assert "c4" in scheduler.clients  # joined late
        turns, rounds = scheduler.history(lost), scheduler.round
        missed = next(turn.round for turn in turns if turn.kind in ("late", "failed"))
        assert missed < rounds
        assert all(turn.kind in ("late", "failed") for turn in turns if turn.round >= missed)  # it never replies again
        for number in range(missed + 1, rounds + 1):  # the others continue
            assert any(turn.kind == "arrived" for turn in scheduler.history(round=number) if turn.id != lost)
        row, certificate = scheduler.clients.index(lost), scheduler.certificate()
        assert certificate.behind[row] <= certificate.promised[row]  # it earns nothing while it is backed off
        others = [client for client in scheduler.clients if client != lost]
        for client in others:  # the killed client costs the others nothing of their promise
            assert certificate.statuses[scheduler.clients.index(client)] != "broken"
        reliability = scheduler.state().fleet.history.reliability
        assert reliability[row] == reliability.min() < reliability.max()


def test_the_simulation_without_rounds_compares_random_and_fair_fedbuff(tmp_path: Path) -> None:
    output = run("async", "--rounds", "6", "--out", str(tmp_path))
    assert "6 versions, 1 seed; promised share 0.01875" in output
    random, fair = json.loads((tmp_path / "runs.json").read_text())
    assert (random["policy"], fair["policy"]) == ("FedBuff, random choice", "FedBuff, FairPace")
    for result in (random, fair):
        assert sum(result["turns"]) == result["decisions"]
        assert 6 * 4 <= result["decisions"] <= 6 * 4 + 8  # six versions of four updates; eight phones are training
        assert len(result["seconds"]) == len(result["accuracy"]) == 6
        assert min(result["seconds"]) > 0
    with FleetReader(tmp_path / "seed-0-fair-pace.turnout") as scheduler:
        assert scheduler.settings.concurrency == 8
        assert scheduler.round == fair["decisions"]
        assert scheduler.certificate().status == "kept"


def test_the_deployment_without_rounds_survives_a_killed_supernode(tmp_path: Path) -> None:
    output = run("deployment", "--random-rounds", "1", "--concurrency", "2", *PATIENT, "--out", str(tmp_path))
    killed = re.search(r"--- (c\d) is killed", output)
    assert killed, output
    assert "turnout: version 6 took " in output
    with FleetReader(tmp_path / "fleet.turnout") as scheduler:
        kinds = [(turn.id, turn.kind) for n in range(1, scheduler.round + 1) for turn in scheduler.history(round=n)]
        assert ["arrived" for client, kind in kinds if kind == "arrived" and client != killed[1]]
        last = [kind for client, kind in kinds if client == killed[1]][-1]
        assert last in ("late", "failed", None)  # it never replies again


def test_an_ordinary_app_runs_before_and_after_the_diff() -> None:
    output = run("existing-app")
    accuracies = re.findall(r"^accuracy after 5 rounds: (0\.\d+)", output, re.MULTILINE)
    assert len(accuracies) == 2
    assert min(map(float, accuracies)) > 0.8
    fair = output.partition("--- with fair.diff")[2]
    cohorts = [line.partition(" asks ")[2] for line in fair.splitlines() if " asks " in line]
    assert len(cohorts) == 5
    assert all(len(re.findall(r"\d (?:behind|ahead), ", cohort)) == 4 for cohort in cohorts)
    assert fair.count("; promise kept: ") == 5


@pytest.fixture
def place() -> Iterator[Path]:
    """A temporary folder with a short path: Ray has its sockets there."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@contextmanager
def running(folder: Path, script: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Runs an example whose processes all know this folder as their place for temporary files."""
    command, environment = [sys.executable, str(script), *arguments], {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder
    ) as process:
        limit = threading.Timer(1800, process.kill)  # ends a hanging test
        limit.start()
        try:
            yield process
        finally:
            limit.cancel()
            process.terminate()


def processes_in(folder: Path) -> list[int]:
    """Returns the processes that know this folder as their place for temporary files."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"TMPDIR={folder}".encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except (OSError, ValueError):  # of another user, or it has just ended
            continue
    return found


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are found in /proc")
def test_a_killed_example_leaves_no_process_behind(place: Path) -> None:
    with running(place, RUN, "deployment", "--log") as process:
        assert process.stdout is not None
        assert any("waiting for the ids of the clients" in line for line in process.stdout)
        network = [pid for pid in processes_in(place) if pid != process.pid and not gone(pid)]
        assert len(network) >= 6  # a SuperLink, four SuperNodes and flwr run
        process.kill()
        wait_until_gone(network)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("example", "app", "arguments"),
    [
        ("simulation", "flower_simulation/fair_digits", ["--rounds", "1"]),
        ("deployment", "flower_deployment/fair_loopback", ["--random-rounds", "1", *PATIENT]),
    ],
)
def test_the_examples_start_with_clients_that_need_a_minute_to_import(
    place: Path, example: str, app: str, arguments: list[str]
) -> None:
    """A SuperNode starts a process for each message, so each of them takes so long."""
    examples = shutil.copytree(ROOT / "examples", place / "examples")
    client = examples / app / "client_app.py"
    client.write_text(f"import time\n\ntime.sleep(60)\n{client.read_text()}")
    with running(place, examples / "run_flower.py", example, *arguments, "--log") as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "turnout: round 1 took" in line:
                break
        assert "turnout: round 1 took" in lines[-1], "".join(lines[-60:])
        assert not re.search(r"took .*(late|failed) ", lines[-1]), lines[-1]
