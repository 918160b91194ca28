from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from rich.console import Console

from cli import in_process
from tracking.recording import Recording
from turnout.cli.studies.leaderboard import _policies_table
from turnout.lab import RunStore
from turnout.lab.studies.leaderboard.suites import SUITES


def run(*arguments: str) -> in_process.Done:
    return in_process.run("compare", *arguments, COLUMNS="240")


def error_of(*arguments: str) -> str:
    done = run(*arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    return done.stderr


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
        done.append(run("--suite", "numerical", *SMALL, "--store", str(store), *TRACK, *more))
        tracked.append(list(Recording.opened))
        with RunStore(store, read_only=True) as opened:
            stored.append([(one.id, one.started) for one in opened.runs()])
    return Numerical(folder, done[0], done[1], (stored[0], stored[1]), (tracked[0], tracked[1]))


def test_the_leaderboard_is_printed_written_and_stored(numerical: Numerical) -> None:
    out, shown, (started, later) = numerical.folder / "out", numerical.shown, numerical.stored
    assert shown.returncode == 0, shown.stderr
    for one in SUITES["numerical"].contenders:
        assert one.label in shown.stdout
    for text in (
        "6 rounds, 2 seeds",
        "knows the expected times",
        "●",
        "◇",
        "least share",
        "cost, µs",
        "Excluded: ucb-cs",
    ):
        assert text in shown.stdout
    for text in ("shortfall", "at the end", "kept, 1", "(kept, 2)", "after the first 2"):
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


def test_recorded_clients_are_simulated(tmp_path: Path) -> None:
    phones = tmp_path / "phones.csv"
    lines = [f"phone {row},{60 * row},{9000 - 60 * row},9000" for row in range(25)]
    phones.write_text("\n".join(["client,start,stop,end", *lines]))
    done = run("--suite", "traces", "--traces", str(phones), *SMALL)
    assert done.returncode == 0, done.stderr
    for text in ("recorded clients", "Forecasts of exchange times", "log-time", "availability: recorded"):
        assert text in done.stdout


def test_the_table_of_a_suite_that_trains_has_accuracies_and_says_who_never_reached_the_target() -> None:
    measured = dict.fromkeys(("mean_round", "later_round", "shortfall", "shortfall_at_end"), 1.5)
    measured |= {"least_share": 0.25, "jain": 0.9, "microseconds": 7.0, "final_accuracy": 0.875}
    row: dict[str, Any] = {**measured, **{f"{name}_band": None for name in measured}}
    row |= {"told_truth": False, "front": "on", "chosen": 8.0, "arrived": 1.0, "status": "kept", "tolerance": 2}
    row |= {"promised": 0.15, "target": 0.8125}
    reached = {**row, "contender": "all reach it", "minutes_to_target": 4.5, "minutes_to_target_band": 0.5, "never": 0}
    missed = {**row, "contender": "two do not", "minutes_to_target": 6.0, "minutes_to_target_band": 1.0, "never": 2}
    missed["microseconds"] = None  # it was not measured
    table = _policies_table({"seeds": 2, "rounds": 6, "policies": [reached, missed]}, SUITES["training"])
    shown = io.StringIO()
    Console(file=shown, width=240).print(table)
    assert "min to 0.812" in shown.getvalue()
    lines = {name: line for line in shown.getvalue().splitlines() for name in (" reach", " two do") if name in line}
    assert "4.5 ± 0.5" in lines[" reach"]
    assert "0.875" in lines[" reach"]
    assert "≥ 6.0 ± 1.0 (2 never)" in lines[" two do"]
    assert lines[" two do"].split("│")[-2].strip() == "–"


def test_conflicting_options_are_reported(tmp_path: Path) -> None:
    assert "unknown suite 'tracs' (did you mean 'traces'?)" in error_of("--suite", "tracs")
    assert "policies cannot be used with --suite" in error_of("rbcsf", "--suite", "numerical")
    assert "--set cannot be used with --suite" in error_of("--suite", "numerical", "--set", "cohort_size=3")
    assert "--out cannot be used" not in error_of("rbcsf", "--out", str(tmp_path), "--target", "0.9")
    assert "--traces cannot be used with a comparison without --suite" in error_of("rbcsf", "--traces", "phones.csv")
    assert "the suite training plays no traces" in error_of("--suite", "training", "--traces", "phones.csv")


def test_a_comparison_stores_its_runs_with_either_option(tmp_path: Path) -> None:
    kept, stored = tmp_path / "kept.turnout", tmp_path / "stored.turnout"
    for name, store in (("--store", kept), ("--store", stored)):
        assert run("random", "--seeds", "2", "--rounds", "5", "--workers", "1", name, str(store)).returncode == 0
        assert store.exists()
