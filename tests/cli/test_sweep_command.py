"""`turnout sweep` on this machine: what it stores, prints and refuses. tests/lab/clusters has the clusters."""

from __future__ import annotations

import importlib.util
import json
import shlex
import socket
from pathlib import Path
from typing import Any

import pytest

from cli.in_process import Done, run
from turnout.cli.lab.sweep import watched
from turnout.lab import RunPlan, RunStore, play_plan

STUDY = """
rounds = 12
seeds = 2

[world]
clients = 20

[[policy]]
name = "rbcsf"
label = "ours"
cohort_size = 4

[[policy]]
name = "random"
cohort_size = 4
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.toml").write_text(STUDY)
    return tmp_path


def sweep(*options: str) -> Done:
    return run("sweep", "study.toml", "--workers", "1", *options)


def test_a_sweep_stores_every_policy_with_every_seed(folder: Path) -> None:
    done = sweep("--store", "runs.turnout")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "runs.turnout: 4 runs of study.toml, of which 4 were played now",
        "To compare: turnout compare --config study.toml --store runs.turnout",
    ]
    assert done.stderr.splitlines()[-1] == "48 of 48 rounds of 4 runs"
    with RunStore(folder / "runs.turnout", read_only=True) as store:
        for policy in ("rbcsf", "random"):
            for seed in range(2):
                plan = RunPlan(policy, 12, seed, {"cohort_size": 4}, world_settings={"clients": 20})
                info = store.find(plan.key)
                assert info is not None
                assert store.columns(info.id).to_bytes() == play_plan(plan).to_bytes()


def test_a_sweep_repeats_no_run_that_the_store_holds(folder: Path) -> None:  # noqa: ARG001
    sweep("--seeds", "1")
    done = sweep("--json")
    assert json.loads(done.stdout) == {"store": "study.turnout", "runs": [1, 3, 2, 4], "played": 2, "held": 2}
    again = sweep("--json", "--backend", "joblib")
    assert json.loads(again.stdout)["played"] == 0
    assert again.stderr == ""


def test_options_override_the_plan(folder: Path) -> None:
    options = ("--seeds=2", "--rounds=5", "--set=cohort_size=6", "--world=clients=30")
    done = sweep(*options)
    with RunStore(folder / "study.turnout", read_only=True) as store:
        plans = [info.plan for info in store.runs()]
    assert [plan["rounds"] for plan in plans] == [5, 5, 5, 5]
    assert {plan["settings"]["cohort_size"] for plan in plans} == {6}
    assert {plan["world_settings"]["clients"] for plan in plans} == {30}
    command = shlex.split(done.stdout.splitlines()[-1].removeprefix("To compare: turnout "))
    assert [option for option in command if "=" in option] == list(options)
    assert run(*command).returncode == 0
    with RunStore(folder / "study.turnout", read_only=True) as store:
        assert len(store.runs()) == 4  # the comparison played nothing


def test_ctrl_c_prints_the_command_that_continues(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, written = RunStore.write_run, []

    def write_run(*arguments: Any, **more: Any) -> int:
        written.append(plain(*arguments, **more))
        if len(written) == 2:
            raise KeyboardInterrupt
        return written[-1]

    monkeypatch.setattr(RunStore, "write_run", write_run)
    done = sweep("--store", "my runs.turnout")
    assert done.returncode == 130
    command = "turnout sweep study.toml --workers 1 --store 'my runs.turnout'"
    assert done.stderr.splitlines()[-1] == f"interrupted: finished runs are saved. To continue: {command}"
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    assert "of which 2 were played now" in sweep("--store", "my runs.turnout").stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rounds = ", "study.toml is not valid TOML"),
        ("turns = 5", "study.toml: unknown entry 'turns'; there are rounds, seeds, world, policy"),
        ("rounds = 5", "study.toml names no policy: add a [[policy]] table with a name"),
        ('[[policy]]\nname = "rbcs"', "unknown policy 'rbcs' (did you mean 'rbcsf'?)"),
        ('[[policy]]\nname = "rbcsf"\nguaranteed_rate = 0.5', "the largest feasible rate is 0.2"),
        ('[world]\nname = "mars"\n[[policy]]\nname = "random"', "unknown world 'mars'"),
    ],
)
def test_a_wrong_plan_is_refused_before_the_first_run(folder: Path, text: str, message: str) -> None:
    (folder / "study.toml").write_text(text)
    done = sweep("--store", "runs.turnout")
    assert done.returncode == 2
    assert message in done.stderr
    assert not (folder / "runs.turnout").exists()


def test_an_unknown_backend_is_refused(folder: Path) -> None:  # noqa: ARG001
    done = sweep("--backend", "rai")
    assert done.returncode == 2
    assert "unknown backend 'rai' (did you mean 'ray'?); there are local, joblib, ray, dask" in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--backend", "local", "--address", "auto"), "the backend local has no address"),
        (("--backend", "ray", "--address", "head"), "must be 'auto' or HOST:PORT, not 'head'"),
        (("--backend", "dask", "--address", "head:0"), "must be 'auto' or HOST:PORT, not 'head:0'"),
        (("--backend", "ray", "--address", "auto", "--workers", "2"), "the number of workers is that of the cluster"),
    ],
)
def test_a_wrong_address_is_refused(folder: Path, options: tuple[str, ...], message: str) -> None:  # noqa: ARG001
    done = run("sweep", "study.toml", *options)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.parametrize(("backend", "start"), [("ray", "`ray start --head`"), ("dask", "`dask scheduler`")])
def test_a_cluster_that_cannot_be_reached_is_named(folder: Path, backend: str, start: str) -> None:  # noqa: ARG001
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # it does not listen
        address = "{}:{}".format(*nobody.getsockname())
        done = run("sweep", "study.toml", "--backend", backend, "--address", address)
    assert done.returncode == 2
    assert f"no {backend.capitalize()} cluster answers at {address} (Connection refused): {start}" in done.stderr


def test_dask_needs_an_address(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001
    monkeypatch.delenv("DASK_SCHEDULER_ADDRESS", raising=False)
    done = run("sweep", "study.toml", "--backend", "dask", "--address", "auto")
    assert done.returncode == 2
    assert "set DASK_SCHEDULER_ADDRESS, or give HOST:PORT" in done.stderr


@pytest.mark.parametrize(("backend", "package"), [("joblib", "joblib"), ("ray", "ray"), ("dask", "distributed")])
def test_a_missing_package_says_what_to_install(
    folder: Path,  # noqa: ARG001
    monkeypatch: pytest.MonkeyPatch,
    backend: str,
    package: str,
) -> None:
    plain = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else plain(name))
    done = run("sweep", "study.toml", "--backend", backend)
    assert done.returncode == 2
    assert f"the package {package}: pip install 'turnout[cluster]'" in done.stderr


def test_a_log_file_receives_about_ten_lines_however_many_rounds_are_played(capsys: pytest.CaptureFixture[str]) -> None:
    with watched([RunPlan("random", 600), RunPlan("random", 400)], None) as watch:
        for _ in range(1000):
            watch(1)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert (lines[0], lines[-1]) == ("100 of 1,000 rounds of 2 runs", "1,000 of 1,000 rounds of 2 runs")
