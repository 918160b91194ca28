from __future__ import annotations

import csv
import json
from functools import partial
from pathlib import Path

import pytest

from cli import in_process

SMALL = ("--rounds", "10", "--seeds", "2")


run = partial(in_process.run, "study", "reproduce", COLUMNS="140")
error_of = partial(in_process.error_of, "study", "reproduce")


@pytest.mark.thorough  # the short version: test_reproduce_prints_claims_and_writes_figures
def test_a_small_digits_study_writes_all_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    result = json.loads(run("accuracy", *SMALL, "--out", str(out), "--json").stdout)
    assert len(set(result["files"])) == len(result["files"])
    for name in ("fairness-impact", "accuracy-rounds", "accuracy-time"):
        for ending in ("svg", "png", "csv"):
            assert (out / f"{name}.{ending}").stat().st_size > 1000
    with (out / "accuracy-summary.csv").open() as opened:
        rows = list(csv.DictReader(opened))
    assert len(rows) == 3 * 6
    assert {(row["seeds"], row["rounds"]) for row in rows} == {("2", "10")}
    assert {"fairness-impact-summary.csv", "accuracy-settings.csv"} <= {path.name for path in out.iterdir()}
    claims = json.loads((out / "claims.json").read_text())
    assert claims == result["claims"]
    assert len(claims) == 6 + 15 + 11
    assert {claim["verdict"] for claim in claims} <= {"holds", "does not hold", "not decided"}
    assert all(claim["numbers"] and claim["panel"].startswith("digits") for claim in claims)
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda *_, **__: None)  # this figure is drawn above
    again = run("accuracy-time", "--dataset", "digits", *SMALL, "--out", str(out))
    for text in ("accuracy-time", "digits, gamma 1: FedCS(3) reaches", "digits, iid: ", "Claims: "):
        assert text in again.stdout, again.stderr


def test_datasets_and_devices_are_rejected_by_experiments_without_training(tmp_path: Path) -> None:
    out = ("--out", str(tmp_path / "out"))
    assert "unknown dataset 'digit' (did you mean 'digits'?)" in error_of("accuracy", "--dataset", "digit", *out)
    assert "queues trains no model: it cannot be played on digits" in error_of("queues", "--dataset", "digits", *out)
    assert "these runs train no model: the device must be cpu, not cuda" in error_of("queues", "--device", "cuda", *out)
    assert not (tmp_path / "out").exists()
