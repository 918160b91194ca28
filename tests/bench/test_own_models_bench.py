"""The script that measures models of one's own runs, and both ways train the same weights."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import own_models


@pytest.mark.thorough
def test_the_script_prints_ratios_and_differences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = [replace(case, cpu_items=12) for case in own_models.CASES if case.name == "MLP"]
    monkeypatch.setattr(own_models, "CASES", small)
    out = tmp_path / "out.json"
    arguments = ["own_models.py", "--device", "cpu", "--clients", "2", "--repeats", "1", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", arguments)
    assert own_models.main() == 0
    output = capsys.readouterr().out
    assert "CPU, MLP (26122 parameters), 2 clients with 12 items: plain" in output
    equal, ragged = json.loads(out.read_text())["results"]
    assert (equal["ragged"], ragged["ragged"]) == (False, True)
    for found in (equal, ragged):
        assert found["ratio"] == found["plain_seconds"] / found["stacked_seconds"] > 0
        assert found["difference"] < 1e-5 < found["moved"]
