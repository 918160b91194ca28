"""Trackers: the guard, those of your own, and TensorBoard, MLflow and Weights & Biases."""

from __future__ import annotations

import json
import logging
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tracking.events import scalars_in, texts_in
from tracking.recording import Broken, Recording
from turnout.errors import SettingError
from turnout.tracking import GuardedTracker, Tracker, open_tracker
from turnout.tracking.trackers import REGISTRY

HERE = "tracking.recording"


@pytest.fixture(autouse=True)
def _forget_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recording, "opened", [])


def test_a_tracker_of_your_own_is_opened_by_module_and_name() -> None:
    opened = open_tracker(f"{HERE}:Recording:some/where:else", run="mine", settings={"seed": 3})
    assert isinstance(opened, GuardedTracker)
    (tracker,) = Recording.opened
    assert (tracker.target, tracker.run, tracker.settings) == ("some/where:else", "mine", {"seed": 3})
    opened.log({"a": 1, "unknown": math.nan, "endless": math.inf}, 7)
    assert tracker.steps == [(7, {"a": 1.0})]


def test_an_object_with_both_methods_is_a_tracker() -> None:
    recording = Recording()
    assert isinstance(recording, Tracker)
    guarded = open_tracker(recording)
    assert guarded.tracker is recording
    assert open_tracker(guarded) is guarded
    with pytest.raises(SettingError, match=r"needs the methods log\(metrics, step\) and close\(\)"):
        open_tracker(3)  # type: ignore[arg-type]


def test_an_error_of_a_tracker_stops_nothing_is_logged_once_and_all_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = Broken()
    with caplog.at_level(logging.WARNING, "turnout.tracking"), GuardedTracker(broken) as guarded:
        for step in range(3):
            guarded.log({"a": 1.0}, step)
    assert (guarded.calls, guarded.failures, broken.closed) == (3, 4, 1)
    assert len(broken.steps) == 3
    first, last = (record.getMessage() for record in caplog.records)
    assert first == "Broken: step 0 was not tracked (OSError: the disk is full); further errors are only counted"
    assert last == "Broken: 4 calls failed, of 4"
    guarded.close()
    assert broken.closed == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tensorboad:logs", "unknown tracker 'tensorboad:logs' \\(did you mean 'tensorboard'\\?\\)"),
        ("logs", "unknown tracker 'logs'; the trackers are tensorboard, mlflow, wandb"),
        ("tensorboard", "the tracker tensorboard needs a target: write tensorboard:TARGET"),
        ("mlflow:", "the tracker mlflow needs a target"),
        (f"{HERE}:Recordin", "has no attribute 'Recordin'.* \\(did you mean 'Recording'\\?\\)"),
        (f"{HERE}:__doc__", "must be a class or a function"),
        (f"{HERE}:Unusable:there", "cannot be opened: PermissionError: may not write there"),
        (f"{HERE}:not_a_tracker", "needs the methods log\\(metrics, step\\) and close\\(\\), which 3 lacks"),
        ("no_such_module:Name", "No module named 'no_such_module'"),
    ],
)
def test_what_is_no_tracker_is_refused_with_a_reason(text: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        open_tracker(text)


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for module, extra in (("tensorboardX", "tensorboard"), ("mlflow", "mlflow"), ("wandb", "wandb")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(SettingError, match=rf"needs {module}: pip install 'turnout\[{extra}\]'"):
            open_tracker(f"{extra}:{tmp_path}/x")


def test_installed_packages_add_trackers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    metadata = tmp_path / "notes-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: notes\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(f"[turnout.trackers]\nnotes = {HERE}:Recording\n")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        open_tracker("notes:paper.txt")
    finally:
        REGISTRY.clear()
    assert Recording.opened[0].target == "paper.txt"


def test_event_files_hold_every_metric_of_every_step_and_the_settings(tmp_path: Path) -> None:
    with open_tracker(f"tensorboard:{tmp_path}", run="rbcsf (a/b), seed 0", settings={"speed_weight": 5}) as tracker:
        for step in (1, 2, 5):
            tracker.log({"round/seconds": step / 4, "metrics/accuracy": 1 - 1 / step}, step)
    assert tracker.failures == 0
    folder = tmp_path / "rbcsf-a-b-seed-0"
    result = scalars_in(folder)
    assert result["round/seconds"] == {1: 0.25, 2: 0.5, 5: 1.25}
    assert result["metrics/accuracy"] == pytest.approx({1: 0.0, 2: 0.5, 5: 0.8})
    (text,) = texts_in(folder).values()
    assert json.loads(text) == {"speed_weight": 5}


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Exception, match="cannot be opened"):
        open_tracker(f"tensorboard:{tmp_path}/file")


# Both start threads and change global state, so that each runs in a process of its own.
MLFLOW = """
import json, sys
from turnout.tracking import open_tracker
with open_tracker(f"mlflow:{sys.argv[1]}/deep/mlflow.db", run="fair-pace, seed 0", settings={"a": {"b": [1, 2]}}) as t:
    for step in range(1, 301):
        t.log({"round/seconds": step / 2, "metrics/accuracy": 0.5, "a": 1, "b": 2}, step)
assert t.failures == 0
from mlflow import MlflowClient
client = MlflowClient(tracking_uri=f"sqlite:///{sys.argv[1]}/deep/mlflow.db")
(run,) = client.search_runs([client.get_experiment_by_name("turnout").experiment_id])
history = client.get_metric_history(run.info.run_id, "round/seconds")
print(json.dumps({"name": run.info.run_name, "status": run.info.status, "params": run.data.params,
                  "history": sorted((point.step, point.value) for point in history)}))
"""
# Weights & Biases writes the file of a run in another process, after `finish`; that process ends with the program.
WRITE_WANDB = """
import sys
from turnout.tracking import open_tracker
for seed in range(2):
    with open_tracker(f"wandb:{sys.argv[1]}", run=f"seed {seed}", settings={"seed": seed}) as tracker:
        for step in range(1, 4):
            tracker.log({"round/seconds": step / 2 + seed}, step)
    assert tracker.failures == 0
print("written")
"""
READ_WANDB = """
import json, struct, sys
from pathlib import Path
from wandb.proto.wandb_internal_pb2 import Record

def records(data):
    # A header of 7 bytes, then LevelDB's log: fragments with checksum, length and type, which never cross a block.
    assert data[:4] == b":W&B"
    at, whole = 7, b""
    while at < len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # complete, or the last fragment
            yield Record.FromString(whole)
            whole = b""

runs = {}
for file in sorted(Path(sys.argv[1]).glob("wandb/offline-run-*/*.wandb")):
    name, values = None, {}
    for record in records(file.read_bytes()):
        if record.HasField("run"):
            name = record.run.display_name
        if record.HasField("history"):
            items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            values[items["_step"]] = items["round/seconds"]
    runs[name] = values
print(json.dumps(runs))
"""


def run(program: str, folder: Path) -> str:
    offline = {"WANDB_MODE": "offline", "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, **offline},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.framework
def test_mlflow_holds_every_step_and_the_settings(tmp_path: Path) -> None:
    result = json.loads(run(MLFLOW, tmp_path))
    assert (result["name"], result["status"], result["params"]) == ("fair-pace, seed 0", "FINISHED", {"a.b": "[1, 2]"})
    assert result["history"] == [[step, step / 2] for step in range(1, 301)]


@pytest.mark.framework
def test_weights_and_biases_writes_one_offline_run_each(tmp_path: Path) -> None:
    assert run(WRITE_WANDB, tmp_path) == "written"
    result = json.loads(run(READ_WANDB, tmp_path))
    assert result == {f"seed {seed}": {str(step): step / 2 + seed for step in range(1, 4)} for seed in range(2)}
