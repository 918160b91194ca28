"""`turnout study leaderboard`, with rounds and without."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest

from cli import in_process
from tracking.recording import Recording
from turnout.cli.studies.reproduce import _print_table
from turnout.lab import RunStore
from turnout.lab.studies.leaderboard import leaderboard
from turnout.lab.studies.leaderboard.contenders import FED_BUFF
from turnout.lab.studies.leaderboard.suites import SUITES

run = partial(in_process.run, "study", "leaderboard", COLUMNS="240")

SMALL = ("--rounds", "6", "--seeds", "2", "--workers", "1")
TRACK = ("--track", "tracking.recording:Recording:x")


class Numerical(NamedTuple):
    """The folder of a suite that was played and then shown again from its store."""

    folder: Path
    shown: in_process.Done
    again: in_process.Done
    #: The ids and times of the stored runs after each command.
    stored: tuple[list[tuple[int, str]], list[tuple[int, str]]]
    #: The trackers that each command opened.
    tracked: tuple[list[Recording], list[Recording]]


@pytest.fixture(scope="module")
def numerical(tmp_path_factory: pytest.TempPathFactory) -> Numerical:
    folder = tmp_path_factory.mktemp("numerical")
    store = folder / "runs.turnout"
    done, stored, tracked = [], [], []
    for more in ([], ["--out", str(folder / "out"), "--json"]):
        Recording.opened.clear()
        with patch.object(leaderboard, "draw_board", return_value={}):  # the tests of the suites draw the figures
            done.append(run("numerical", *SMALL, "--store", str(store), *TRACK, *more))
        tracked.append(list(Recording.opened))
        with RunStore(store, read_only=True) as opened:
            stored.append([(one.id, one.started) for one in opened.runs()])
    return Numerical(folder, done[0], done[1], (stored[0], stored[1]), (tracked[0], tracked[1]))


def test_the_leaderboard_is_printed_written_and_stored(numerical: Numerical) -> None:
    out, shown, (started, later) = numerical.folder / "out", numerical.shown, numerical.stored
    assert shown.returncode == 0, shown.stderr
    for one in SUITES["numerical"].contenders:
        assert one.label in shown.stdout
    texts = ("6 rounds, 2 seeds", "knows the expected times", "●", "◇", "least share", "cost, µs", "Excluded: ucb-cs")
    for text in (*texts, "shortfall", "at the end", "kept, 1", "(kept, 2)", "after the first 2"):
        assert text in shown.stdout
    assert len(started) == 2 * len(SUITES["numerical"].contenders)
    result = json.loads(numerical.again.stdout)
    assert result == json.loads((out / "leaderboard.json").read_text())
    assert not (out / "runs.turnout").exists()
    assert {row["contender"] for row in result["policies"]} == {one.label for one in SUITES["numerical"].contenders}
    assert later == started


def test_the_runs_of_a_suite_are_tracked_under_the_names_of_its_contenders(numerical: Numerical) -> None:
    names = sorted(f"{one.label}, seed {seed}" for one in SUITES["numerical"].contenders for seed in range(2))
    for opened in numerical.tracked:  # while they are played, and from the store
        assert sorted(tracker.run for tracker in opened) == names
        for tracker in opened:
            assert [step for step, _ in tracker.steps] == list(range(1, 7))
            assert tracker.closed == 1


@pytest.mark.thorough
def test_recorded_clients_are_simulated(tmp_path: Path) -> None:
    phones = tmp_path / "phones.csv"
    lines = [f"phone {row},{60 * row},{9000 - 60 * row},9000" for row in range(25)]
    phones.write_text("\n".join(["client,start,stop,end", *lines]))
    done = run("traces", "--traces", str(phones), *SMALL)
    assert done.returncode == 0, done.stderr
    for text in ("recorded clients", "availability: recorded"):
        assert text in done.stdout


def test_the_table_of_a_suite_that_trains_has_accuracies_and_says_who_never_reached_the_target(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = dict.fromkeys(("mean_round", "later_round", "shortfall", "shortfall_at_end"), 1.5)
    measured |= {"least_share": 0.25, "jain": 0.9, "microseconds": 7.0, "final_accuracy": 0.875}
    row: dict[str, Any] = {**measured, **{f"{name}_band": None for name in measured}}
    row |= {"told_truth": False, "front": "on", "chosen": 8.0, "arrived": 1.0, "status": "kept", "tolerance": 2}
    row |= {"promised": 0.15, "target": 0.8125}
    reached = {**row, "contender": "all reach it", "minutes_to_target": 4.5, "minutes_to_target_band": 0.5, "never": 0}
    missed = {**row, "contender": "two do not", "minutes_to_target": 6.0, "minutes_to_target_band": 1.0, "never": 2}
    missed["microseconds"] = None  # it was not measured
    monkeypatch.setenv("COLUMNS", "240")
    _print_table({"seeds": 2, "rounds": 6, "policies": [reached, missed]}, SUITES["training"], {"two do not"})
    shown = capsys.readouterr().out
    assert "min to 0.812" in shown
    lines = {name: line for line in shown.splitlines() for name in (" reach", " two do") if name in line}
    assert "4.5 ± 0.5" in lines[" reach"]
    assert "0.875" in lines[" reach"]
    assert "≥ 6.0 ± 1.0 (2 never)" in lines[" two do"]
    assert lines[" two do"].split("│")[-2].strip() == "–"


# Without rounds

SLOTS = ("--rounds", "48", "--seeds", "2", "--workers", "1")


def test_the_leaderboard_without_rounds_is_printed_written_and_stored(tmp_path: Path) -> None:
    out, store = tmp_path / "out", tmp_path / "runs.turnout"
    shown = run("async", *SLOTS, "--store", str(store))
    assert shown.returncode == 0, shown.stderr
    for contender in SUITES["async"].contenders:
        assert contender.label in shown.stdout
    for text in ("48 turns, 8 slots, 2 seeds", f"× {FED_BUFF}", "staleness", "least share", "in rounds"):
        assert text in shown.stdout
    again = run("async", *SLOTS, "--out", str(out), "--store", str(store), "--json").stdout
    assert json.loads(again) == json.loads((out / "slots.json").read_text())
    assert (out / "slots.svg").read_text().startswith("<?xml")
    assert len((out / "slots.csv").read_text().splitlines()) == 1 + len(SUITES["async"].contenders)
    with RunStore(store, read_only=True) as opened:
        plans = [info.plan for info in opened.runs()]
    assert len(plans) == 2 * len(SUITES["async"].contenders)
    assert sorted({plan.get("concurrency", 0) for plan in plans}) == [0, 8]


@pytest.mark.thorough
def test_the_training_suite_measures_the_time_to_an_accuracy(tmp_path: Path) -> None:
    suite = ("async-training", "--rounds", "24", *SMALL[2:], "--store", str(tmp_path / "runs.turnout"))
    result = json.loads(run(*suite, "--json").stdout)
    assert {row["contender"] for row in result["policies"]} >= {FED_BUFF, "random (FedAsync)", "FairPace, 75 %"}
    assert all(row["minutes_to_target"] > 0 for row in result["policies"])
    assert "min to" in run(*suite).stdout


@pytest.mark.thorough
def test_recorded_clients_can_be_used_without_rounds_and_a_folder_receives_the_runs(tmp_path: Path) -> None:
    phones, out = tmp_path / "phones.csv", tmp_path / "out"
    lines = [f"phone {row},{row % 5 * 18000},{row % 5 * 18000 + 18000},90000" for row in range(310)]
    phones.write_text("\n".join(["client,start,stop,end", *lines]))
    done = run("async-traces", "--traces", str(phones), "--rounds", "40", *SMALL[2:], "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"Figures and data are in {out}/\n")
    assert {path.name for path in out.iterdir()} >= {"slots.csv", "slots.json", "slots.svg"}
    with RunStore(out / "runs.turnout", read_only=True) as opened:
        assert len(opened.runs()) == 2 * len(SUITES["async-traces"].contenders)
    result = json.loads((out / "slots.json").read_text())
    assert result["title"] == "recorded clients"
    assert "fingerprint" in result["world"]
