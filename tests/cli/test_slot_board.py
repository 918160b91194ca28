"""`turnout compare --suite async`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli import in_process
from turnout.lab import RunStore
from turnout.lab.studies.leaderboard.slots import REFERENCE, SLOT_SUITES


def run(*arguments: str) -> in_process.Done:
    return in_process.run("compare", *arguments, COLUMNS="200")


SMALL = ("--rounds", "48", "--seeds", "2", "--workers", "1")


def test_the_leaderboard_without_rounds_is_printed_written_and_stored(tmp_path: Path) -> None:
    out, store = tmp_path / "out", tmp_path / "runs.turnout"
    shown = run("--suite", "async", *SMALL, "--store", str(store))
    assert shown.returncode == 0, shown.stderr
    for contender in SLOT_SUITES["async"].contenders:
        assert contender.label in shown.stdout
    for text in ("48 turns, 8 slots, 2 seeds", f"× {REFERENCE}", "staleness", "least share", "in rounds"):
        assert text in shown.stdout
    again = run("--suite", "async", *SMALL, "--out", str(out), "--store", str(store), "--json").stdout
    assert json.loads(again) == json.loads((out / "slots.json").read_text())
    assert (out / "slots.svg").read_text().startswith("<?xml")
    assert len((out / "slots.csv").read_text().splitlines()) == 1 + len(SLOT_SUITES["async"].contenders)
    with RunStore(store, read_only=True) as opened:
        plans = [info.plan for info in opened.runs()]
    assert len(plans) == 2 * len(SLOT_SUITES["async"].contenders)
    assert sorted({plan.get("concurrency", 0) for plan in plans}) == [0, 8]


def test_a_folder_receives_the_runs_too_if_no_store_is_named(tmp_path: Path) -> None:
    done = run("--suite", "async", "--rounds", "12", "--seeds", "2", "--workers", "1", "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"Figure and data are in {tmp_path / 'out'}/\n")
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"slots.csv", "slots.json", "slots.svg"}
    with RunStore(tmp_path / "out" / "runs.turnout", read_only=True) as opened:
        assert len(opened.runs()) == 2 * len(SLOT_SUITES["async"].contenders)


def test_the_training_suite_measures_the_time_to_an_accuracy(tmp_path: Path) -> None:
    suite = ("--suite", "async-training", "--rounds", "24", *SMALL[2:], "--store", str(tmp_path / "runs.turnout"))
    result = json.loads(run(*suite, "--json").stdout)
    assert {row["contender"] for row in result["policies"]} >= {REFERENCE, "random (FedAsync)", "FairPace, 75 %"}
    assert all(row["minutes_to_target"] > 0 for row in result["policies"])
    assert "min to" in run(*suite).stdout


def test_recorded_clients_can_be_used(tmp_path: Path) -> None:
    phones = tmp_path / "phones.csv"
    lines = [f"phone {row},{row % 5 * 18000},{row % 5 * 18000 + 18000},90000" for row in range(310)]
    phones.write_text("\n".join(["client,start,stop,end", *lines]))
    arguments = ("--suite", "async-traces", "--traces", str(phones), "--rounds", "40", "--seeds", "2", "--workers", "1")
    result = json.loads(run(*arguments, "--json").stdout)
    assert result["title"] == "recorded clients"
    assert "fingerprint" in result["world"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--suite", "asink"),
            "unknown suite 'asink' (did you mean 'async'?); there are numerical, traces, training, async",
        ),
        (("--suite", "async", "--traces", "x.csv"), "the suite async plays no traces"),
        (("--suite", "async", "--set", "cohort_size=3"), "--set cannot be used with --suite"),
    ],
)
def test_invalid_questions_are_refused(arguments: tuple[str, ...], message: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
