"""MLflow and Weights & Biases; importing them takes seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.framework

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


def test_mlflow_holds_every_step_and_the_settings(tmp_path: Path) -> None:
    result = json.loads(run(MLFLOW, tmp_path))
    assert (result["name"], result["status"], result["params"]) == ("fair-pace, seed 0", "FINISHED", {"a.b": "[1, 2]"})
    assert result["history"] == [[step, step / 2] for step in range(1, 301)]


def test_weights_and_biases_writes_one_offline_run_each(tmp_path: Path) -> None:
    assert run(WRITE_WANDB, tmp_path) == "written"
    result = json.loads(run(READ_WANDB, tmp_path))
    assert result == {f"seed {seed}": {str(step): step / 2 + seed for step in range(1, 4)} for seed in range(2)}
