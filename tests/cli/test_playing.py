"""Runs of a configuration file on this machine: what is stored and refused."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cli.in_process import Done, error_of, run
from turnout.cli.lab import playing
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


def simulate(*options: str) -> Done:
    return run("simulate", "--config", "study.toml", "--workers", "1", *options)


def started(path: Path) -> list[str]:
    """Returns when each run of a store was started."""
    with RunStore(path, read_only=True) as store:
        return [info.started for info in store.runs()]


def test_every_policy_is_stored_with_every_seed(folder: Path) -> None:
    done = simulate("--store", "runs.turnout")
    assert done.returncode == 0, done.stderr
    with RunStore(folder / "runs.turnout", read_only=True) as store:
        for policy in ("rbcsf", "random"):
            for seed in range(2):
                plan = RunPlan(policy, 12, seed, {"cohort_size": 4}, world_settings={"clients": 20})
                info = store.find(plan.key)
                assert info is not None
                assert store.columns(info.id).to_bytes() == play_plan(plan).to_bytes()


def test_no_run_that_the_store_holds_is_repeated(folder: Path) -> None:
    simulate("--seeds", "1", "--store", "runs.turnout")
    first = started(folder / "runs.turnout")
    assert len(first) == 2
    done = simulate("--store", "runs.turnout")
    both = started(folder / "runs.turnout")
    assert (len(both), both[:2]) == (4, first)
    again = simulate("--store", "runs.turnout", "--workers", "2")
    assert (again.stdout, again.stderr) == (done.stdout, "")
    assert started(folder / "runs.turnout") == both


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rounds = ", "study.toml is not valid TOML"),
        ("turns = 5", "study.toml: unknown entry 'turns'; there are rounds, seeds, world, policy"),
        ('[[policy]]\nname = "rbcs"', "unknown policy 'rbcs' (did you mean 'rbcsf'?)"),
        ('[[policy]]\nname = "rbcsf"\nguaranteed_rate = 0.5', "the largest feasible rate is 0.2"),
        ('[world]\nname = "mars"\n[[policy]]\nname = "random"', "unknown world 'mars'"),
    ],
)
def test_a_wrong_plan_is_refused_before_the_first_run(folder: Path, text: str, message: str) -> None:
    (folder / "study.toml").write_text(text)
    assert message in error_of("simulate", "--config", "study.toml", "--workers", "1", "--store", "runs.turnout")
    assert not (folder / "runs.turnout").exists()


def test_a_log_file_gets_a_line_at_times(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with playing.watched([RunPlan("random", 600), RunPlan("random", 400)]) as watch:
        for _ in range(1000):
            now[0] += 0.5
            watch(1)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 500 // playing.LOG_SECONDS
    assert (lines[0], lines[-1]) == ("120 of 1,000 rounds of 2 runs", "960 of 1,000 rounds of 2 runs")
