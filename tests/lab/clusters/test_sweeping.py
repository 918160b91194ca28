"""`turnout simulate` on processes of this machine, on Ray and on Dask: workers that are killed, and the same bytes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ray_service
from turnout.lab import RunPlan, RunStore, play_plan
from turnout.version import __version__
from waiting import wait_until

# A package on the path whose world announces each run, and waits in its second round until the test lets it go on.
WORLD = """
import os, pathlib, time, uuid
from turnout.lab import PaperWorld

class Announced(PaperWorld):
    def __init__(self, seed=0, *, folder, **settings):
        super().__init__(seed, **settings)
        self.folder = pathlib.Path(folder)

    def offer(self, round):
        if round == 2:
            (self.folder / f"{os.getpid()}-{uuid.uuid4()}").touch()
            while not (self.folder / "go").exists():
                time.sleep(0.01)
        return super().offer(round)
"""
STUDY = """
rounds = 20
seeds = 3

[world]
name = "announced"
folder = {folder}

[[policy]]
name = "rbcsf"

[[policy]]
name = "random"
"""
# A Ray cluster of its own: this process is its head, and lives until its standard input ends.
RAY_HEAD = """
import sys, ray
ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
print("Ray is up:", ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
"""


class Study:
    """A plan in a folder, and the environment in which every process finds its world."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.begun = folder, folder / "begun"
        self.begun.mkdir()
        (folder / "announced.py").write_text(WORLD)
        metadata = folder / "announced-1.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: announced\nVersion: 1\n")
        (metadata / "entry_points.txt").write_text("[turnout.worlds]\nannounced = announced:Announced\n")
        self.plan = folder / "study.toml"
        self.plan.write_text(STUDY.format(folder=json.dumps(str(self.begun))))
        path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
        self.environment = {**ray_service.environment(), "PYTHONPATH": path, "NO_COLOR": "1"}

    def start(self, *command: str) -> subprocess.Popen[str]:
        """Starts a process in this folder."""
        return subprocess.Popen(
            [sys.executable, *command],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def kill_a_worker(self) -> None:
        """Waits until a run has begun, kills the process that plays it, and lets the others go on."""
        begun = wait_until(lambda: sorted(self.begun.iterdir()), "a run has begun")
        os.kill(int(begun[0].name.split("-")[0]), signal.SIGKILL)
        (self.begun / "go").touch()

    def assert_same_bytes(self, store: Path) -> None:
        """Asserts that the store holds every run, with the bytes of the same run in an undisturbed process."""
        with RunStore(store, read_only=True) as opened:
            runs = opened.runs()
            assert len(runs) == 6
            for info in runs:
                assert info.finished
                # The world announces runs, and is otherwise that of the paper.
                plan = RunPlan(info.plan["policy"], info.plan["rounds"], info.plan["seed"])
                assert opened.columns(info.id).to_bytes() == play_plan(plan).to_bytes()


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return Study(tmp_path)


@contextlib.contextmanager
def running(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """Ends a process that is still running at the end."""
    try:
        yield process
    finally:
        process.terminate()
        process.communicate()


def assert_a_killed_worker_makes_no_difference(study: Study, *options: str) -> None:
    with running(
        study.start("-m", "turnout", "simulate", "--config", "study.toml", "--store", "runs.turnout", *options)
    ) as sweep:
        study.kill_a_worker()
        output, _ = sweep.communicate()
        assert sweep.returncode == 0, output
    assert "20 rounds, 3 seeds, mean ± 95 % confidence" in " ".join(output.split())
    assert len(list(study.begun.glob("*-*"))) > 6  # the killed run began a second time
    study.assert_same_bytes(study.folder / "runs.turnout")


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["local", pytest.param("joblib", marks=pytest.mark.framework)])
def test_a_killed_process_of_this_machine_makes_no_difference(study: Study, backend: str) -> None:
    assert_a_killed_worker_makes_no_difference(study, "--backend", backend, "--workers", "2")


@pytest.mark.framework
def test_a_killed_worker_of_ray_makes_no_difference_and_ray_trains_the_same_runs(study: Study) -> None:
    """One test, because a cluster takes long to start."""
    with ray_service.started(lambda: study.start("-c", RAY_HEAD)) as (_, address):
        cluster = ("--backend", "ray", "--address", address)
        assert_a_killed_worker_makes_no_difference(study, *cluster)
        assert_training_stores_the_same_runs(study, *cluster)


@pytest.mark.framework
def test_a_killed_worker_of_dask_makes_no_difference(study: Study) -> None:
    file = study.folder / "scheduler.json"
    scheduling = ("-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard")
    working = ("-m", "distributed.cli.dask_worker", "--nthreads", "1", "--no-nanny", "--no-dashboard")
    with contextlib.ExitStack() as stack:
        stack.enter_context(running(study.start(*scheduling, "--scheduler-file", str(file))))
        wait_until(file.exists, "the scheduler has written its address")
        address = str(wait_until(lambda: read_address(file), "the scheduler has written its address"))
        for _ in range(2):
            stack.enter_context(running(study.start(*working, address)))
        assert_a_killed_worker_makes_no_difference(study, "--backend", "dask", "--address", address)


def read_address(file: Path) -> str | None:
    try:
        return str(json.loads(file.read_text())["address"])
    except ValueError:  # it is being written
        return None


TRAINING = """
rounds = 6
seeds = 2

[world]
name = "training"
dataset = "digits"
items = 20
hidden = 4

[[policy]]
name = "random"

[[policy]]
name = "fair-pace"
"""


def assert_training_stores_the_same_runs(study: Study, *options: str) -> None:
    """Trains on a cluster, and compares each run with the same run in this process."""
    (study.folder / "training.toml").write_text(TRAINING)
    store = study.folder / "training.turnout"
    with running(
        study.start("-m", "turnout", "simulate", "--config", "training.toml", "--store", str(store), *options)
    ) as sweep:
        output, _ = sweep.communicate()
        assert sweep.returncode == 0, output
    with RunStore(store, read_only=True) as opened:
        runs = opened.runs()
        assert [info.finished for info in runs] == [True] * 4
        for info in runs:
            assert opened.columns(info.id).to_bytes() == play_plan(RunPlan.from_dict(info.plan)).to_bytes()
            assert info.code_version == __version__


@pytest.mark.framework
def test_training_on_a_cluster_of_this_machine_stores_the_same_runs(study: Study) -> None:
    assert_training_stores_the_same_runs(study, "--backend", "dask", "--workers", "2")
