"""What `turnout simulate` and `runs export` write and send to trackers."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli import in_process
from cli.in_process import error_of, json_of
from cli.in_process import output_of as run
from tracking.events import scalars_in
from tracking.recording import Broken, Recording
from turnout.cli.lab.playing import TrackedRun, Tracks
from turnout.kernel.guarantee import Guarantee
from turnout.lab import RoundColumns, RunPlan, RunStore, play_into, play_plan
from turnout.lab.analysis.metrics import summarise
from turnout.lab.analysis.promise import turns_behind

TRAINING = (
    *("simulate", "fair-pace", "random", "--world", "name=training", "--world", "hidden=8"),
    *("--set", "cohort_size=6", "--workers", "1", "--rounds", "12", "--seeds", "2"),
)


def rows_in(file: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(file.read_text())))


@pytest.fixture(autouse=True)
def _forget_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recording, "opened", [])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A comparison in a world that trains: its folder and its JSON."""
    folder = tmp_path_factory.mktemp("trained") / "out"
    return folder, json.loads(run(*TRAINING, "--target", "0.5", "--out", folder, "--json"))


@pytest.mark.thorough
def test_a_world_that_trains_is_compared_by_accuracy_and_time_to_a_target(trained: tuple[Path, dict[str, Any]]) -> None:
    folder, compared = trained
    assert (compared["target"], compared["rounds"], compared["world"]["name"]) == (0.5, 12, "training")
    with RunStore(folder / "runs.turnout", read_only=True) as store:
        columns = [store.columns(run) for run in (1, 2)]
    row = compared["policies"][0]
    for seed, run_columns in zip(row["per_seed"], columns, strict=True):
        accuracies = run_columns.metrics["accuracy"]
        assert seed["best_accuracy"] == accuracies.max()
        assert seed["final_accuracy"] == pytest.approx(accuracies[-2:].mean())
        reached = np.flatnonzero(accuracies >= 0.5)
        minutes = np.cumsum(run_columns.durations) / 60
        assert seed["minutes_to_target"] == pytest.approx(minutes[reached[0]] if len(reached) else minutes[-1])
        assert seed["reached_target"] == float(len(reached) > 0)
    finals = [seed["final_accuracy"] for seed in row["per_seed"]]
    assert row["final_accuracy"]["mean"] == pytest.approx(np.mean(finals))
    assert row["never_reached_target"] == sum(not seed["reached_target"] for seed in row["per_seed"])


def test_a_folder_receives_data_table_and_figures(trained: tuple[Path, dict[str, Any]]) -> None:
    folder, compared = trained
    assert json.loads((folder / "comparison.json").read_text()) == compared
    figures = {f"{name}.{suffix}" for name in ("overview", "behind", "accuracy") for suffix in ("svg", "png", "csv")}
    figures -= {"overview.csv"}
    assert figures | {"seeds.csv", "runs.turnout"} <= {path.name for path in folder.iterdir()}
    assert "fair-pace" in (folder / "accuracy.svg").read_text()


def test_the_table_of_seeds_has_a_row_per_policy_and_seed_with_the_promise(
    trained: tuple[Path, dict[str, Any]],
) -> None:
    folder, compared = trained
    rows = rows_in(folder / "seeds.csv")
    assert [(row["contender"][:9], row["seed"]) for row in rows] == [
        ("fair-pace", "0"),
        ("fair-pace", "1"),
        ("random", "0"),
        ("random", "1"),
    ]
    assert {row["setting.cohort_size"] for row in rows} == {"6"}
    assert {row["world_setting.hidden"] for row in rows} == {"8"}
    assert {(row["guaranteed_rate"], row["accrual"], row["tolerance"]) for row in rows} == {
        ("0.15", "available", "2.0")
    }
    flat = [seed for policy in compared["policies"] for seed in policy["per_seed"]]
    assert [float(row["largest_shortfall"]) for row in rows] == [seed["largest_shortfall"] for seed in flat]


def test_the_table_shows_accuracy_and_says_what_its_columns_mean(trained: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = trained
    shown = run(*TRAINING, "--target", "1.0", "--store", folder / "runs.turnout")
    assert "(2 never)" in shown
    assert "min to 1" in shown
    assert "accuracy: mean over the last tenth of a run" in " ".join(shown.split())
    assert "Jain" not in shown


def test_json_states_promise_settings_and_values_of_every_seed() -> None:
    arguments = ("simulate", "fair-pace", "random", "--rounds", "20", "--seeds", "2", "--workers", "1", "--json")
    compared = json.loads(run(*arguments, "--set", "cohort_size=5"))
    assert compared["promise"] == {
        "guaranteed_rate": 0.15,
        "accrual": "available",
        "counts": "selected",
        "share_of": "of the rounds it was available for",
    }
    row = compared["policies"][1]
    assert row["settings"] == {"policy": "random", "cohort_size": 5}
    columns = [play_plan(RunPlan("random", 20, seed, {"cohort_size": 5})) for seed in range(2)]
    summaries = [summarise(one, guaranteed_rate=0.15, accrual="available") for one in columns]
    assert [seed["mean_round"] for seed in row["per_seed"]] == [summary.mean_round for summary in summaries]
    assert [seed["largest_shortfall"] for seed in row["per_seed"]] == [one.largest_shortfall for one in summaries]
    assert row["largest_shortfall"] == max(one.largest_shortfall for one in summaries)
    assert row["shortfall"]["mean"] == pytest.approx(np.mean([one.largest_shortfall for one in summaries]))
    assert "final_accuracy" not in row


def test_turns_without_rounds_are_written_too(tmp_path: Path) -> None:
    arguments = ("simulate", "--concurrency", "4", "--rounds", "60", "--seeds", "2", "--workers", "1")
    run(*arguments, "--out", tmp_path / "out")
    rows = rows_in(tmp_path / "out" / "seeds.csv")
    assert len(rows) == 4
    assert all(float(row["updates_per_second"]) > 0 for row in rows)
    assert (tmp_path / "out" / "behind.svg").exists()


def test_a_stored_run_without_rounds_is_judged_by_the_rate_that_it_was_played_with(tmp_path: Path) -> None:
    store = tmp_path / "runs.turnout"
    compared = json_of("simulate", *("fair-pace", "--concurrency", "4", "--rounds", "60"), "--store", store)
    (played,) = compared["policies"]
    (row,) = csv.DictReader(io.StringIO(run("runs", "export", store, "--table", "runs")))
    assert float(row["largest_shortfall"]) == played["largest_shortfall"]
    assert compared["promise"]["guaranteed_rate"] == pytest.approx(3 / 160)
    assert played["jain"]["half_width"] is None


def test_a_narrow_terminal_cuts_no_column(trained: tuple[Path, dict[str, Any]]) -> None:
    folder, compared = trained
    shown = in_process.run(*TRAINING, "--target", "0.5", "--store", folder / "runs.turnout", COLUMNS="80").stdout
    table = shown.partition("saved: time")[0]
    assert "shortfall" in table
    assert re.search(r"status *$", table, re.MULTILINE)
    for row in compared["policies"]:
        first = row["policy"].split()[0]
        assert re.search(rf"^ *{first} .* {row['status']}( ≤( 2)?)? *$", table, re.MULTILINE)
    assert max(map(len, shown.splitlines())) <= 80


def test_every_run_of_a_comparison_is_tracked(tmp_path: Path) -> None:
    arguments = ("simulate", "fair-pace", "random", "--rounds", "15", "--seeds", "2", "--workers", "1")
    store = tmp_path / "runs.turnout"
    run(*arguments, "--store", store, "--track", f"tensorboard:{tmp_path}/tb")
    assert {path.name for path in (tmp_path / "tb").iterdir()} == {
        f"{policy}-seed-{seed}" for policy in ("fair-pace", "random") for seed in range(2)
    }
    scalars = scalars_in(tmp_path / "tb" / "fair-pace-seed-1")
    with RunStore(store, read_only=True) as opened:
        durations = opened.columns(2).durations
    assert list(scalars["round/seconds"].values()) == pytest.approx(durations.tolist(), rel=1e-6)
    run(*arguments, "--store", store, "--track", "tracking.recording:Recording:again")  # runs that are not played again
    assert [len(tracker.steps) for tracker in Recording.opened] == [15] * 4


def test_runs_of_several_processes_and_of_training_are_tracked_as_they_are_stored() -> None:
    """In any number of processes; the trackers themselves are those of this process."""
    track = ("--track", "tracking.recording:Recording:x")
    training = ("--world", "name=training", "--world", "items=20", "--world", "hidden=4")
    for number, world in (("2", ()), ("1", training)):
        Recording.opened.clear()
        run("simulate", "fair-pace", "random", "--rounds", "4", "--seeds", "2", "--workers", number, *world, *track)
        assert sorted(tracker.run for tracker in Recording.opened) == [
            f"{policy}, seed {seed}" for policy in ("fair-pace", "random") for seed in range(2)
        ]
        for tracker in Recording.opened:
            assert [step for step, _ in tracker.steps] == [1, 2, 3, 4]
            assert tracker.closed == 1
            assert ("metrics/accuracy" in tracker.steps[-1][1]) == bool(world)
            assert len(tracker.values("promise/turns_behind")) == (4 if tracker.run.startswith("fair") else 0)


def test_a_device_and_a_target_are_for_worlds_that_train() -> None:
    assert "--target needs a world that trains" in error_of("simulate", "--target", "0.9")
    assert "these runs train no model: the device must be cpu, not cuda" in error_of("simulate", "--device", "cuda")
    world = ("--world", "name=training", "--world", "dataset=digits")
    error = error_of("simulate", "random", "--rounds", "2", "--seeds", "2", *world, "--device", "cuda:7")
    assert "cuda:7" in error or "torch" in error


def test_a_finished_run_is_tracked_from_the_store_and_not_played_again(tmp_path: Path) -> None:
    options = ("--store", tmp_path / "runs.turnout", "--json")
    arguments = ("simulate", "fair-pace", "rbcsf", "random", "--rounds", "15", *options)
    track = ("--track", "tracking.recording:Recording:x")
    first = run(*arguments, *track)
    with RunStore(tmp_path / "runs.turnout", read_only=True) as store:
        before = store.runs()
    assert run(*arguments, *track) == first
    with RunStore(tmp_path / "runs.turnout", read_only=True) as store:
        assert store.runs() == before
    for played, stored in zip(Recording.opened[:3], Recording.opened[3:], strict=True):
        assert (stored.run, stored.settings, stored.closed) == (played.run, played.settings, 1)
        assert [step for step, _ in stored.steps] == [step for step, _ in played.steps] == list(range(1, 16))
        for (_, metrics), (_, others) in zip(stored.steps, played.steps, strict=True):
            assert metrics == pytest.approx(others)
    assert [len(tracker.values("promise/turns_behind")) for tracker in Recording.opened[:3]] == [15, 15, 0]


def test_trackers_of_runs_that_are_interrupted_are_closed(tmp_path: Path) -> None:
    plans = [RunPlan("random", 3), RunPlan("random", 3, seed=1)]
    tracks = Tracks(["tracking.recording:Recording:x"])

    def interrupted(store: RunStore) -> None:
        with tracks.following({"random": plans}, store, plans) as log:
            assert log is not None
            log(plans[0], play_plan(plans[0]))
            log(plans[1], play_plan(replace(plans[1], rounds=1)))
            assert [tracker.closed for tracker in Recording.opened] == [1, 0]
            raise KeyboardInterrupt

    with RunStore(tmp_path / "runs.turnout") as store, pytest.raises(KeyboardInterrupt):
        interrupted(store)
    assert [tracker.closed for tracker in Recording.opened] == [1, 1]


def test_an_interrupted_run_is_tracked_as_an_uninterrupted_one(tmp_path: Path) -> None:
    """The rounds before the interruption come from the store."""
    plan, tracks = RunPlan("fair-pace", 12), Tracks(["tracking.recording:Recording:x"])

    def interrupt(done: int) -> None:
        if done == 10:
            raise KeyboardInterrupt

    for path, every, watch in (("whole", 12, None), ("parts", 5, interrupt), ("parts", 5, None)):
        with (
            RunStore(tmp_path / path) as store,
            suppress(KeyboardInterrupt),
            tracks.following({"fair-pace": [plan]}, store, [plan]) as track,
        ):
            play_into(store, plan, every=every, watch=watch, track=track)
    whole, interrupted, resumed = Recording.opened
    assert (len(interrupted.steps), interrupted.closed) == (10, 1)
    assert [step for step, _ in whole.steps] == list(range(1, 13))
    assert set(whole.values("round/selected").values()) == {8.0}
    assert set(whole.values("promise/turns_behind")) == set(range(1, 13))
    for (step, metrics), (same_step, same) in zip(whole.steps, resumed.steps, strict=True):
        assert step == same_step
        assert metrics == pytest.approx(same)


def test_turns_behind_are_those_of_the_shortfall_and_need_a_known_availability() -> None:
    columns = play_plan(RunPlan("random", 40))
    behind = turns_behind(columns, Guarantee(0.15, accrual="available", counts="selected"))
    summary = summarise(columns, guaranteed_rate=0.15, accrual="available")
    assert (behind.max(), behind[-1]) == pytest.approx((summary.largest_shortfall, summary.shortfall_at_end))
    played = play_plan(RunPlan("fair-pace", 12))
    fields = {name: getattr(played, name) for name in RoundColumns.__slots__}
    unknown = RoundColumns(**{**fields, "available": None})
    for columns, accrual, rounds in ((played, "available", 12), (unknown, "available", 0), (unknown, "always", 12)):
        recording = Recording()
        TrackedRun([recording], RunPlan("fair-pace", 12, settings={"accrual": accrual}).as_dict()).log(columns)
        assert len(recording.steps) == 12
        assert len(recording.values("promise/turns_behind")) == rounds


def test_a_tracker_that_fails_stops_no_simulation_and_is_counted() -> None:
    done = in_process.run(
        "simulate", "fair-pace", "--rounds", "5", "--json", "--track", f"{Broken.__module__}:Broken:x"
    )
    assert done.returncode == 0
    assert json.loads(done.stdout)["rounds"] == 5
    assert "warning: trackers failed 6 times, in 5 calls" in done.stderr
    assert "unknown tracker 'tensorbord:x'" in error_of("simulate", "--track", "tensorbord:x")


def test_many_runs_are_exported_as_one_table(tmp_path: Path) -> None:
    store = tmp_path / "runs.turnout"
    run("simulate", "rbcsf", "random", "--rounds", "12", "--store", store)
    rows = list(csv.DictReader(io.StringIO(run("runs", "export", store))))
    assert [(row["run"], row["round"]) for row in rows] == [(str(n), str(t)) for n in (1, 2) for t in range(1, 13)]
    (first,) = csv.DictReader(io.StringIO(run("runs", "export", store, "1", "--table", "runs")))
    shown = json_of("runs", "show", store, "1")["summary"]
    for name in ("largest_shortfall", "shortfall_at_end", "least_share", "jain"):
        assert float(first[name]) == shown[name]
    assert first["status"] == shown["status"]
    run("runs", "export", store, "--table", "clients", "--out", tmp_path / "deep" / "clients.jsonl")
    lines = (tmp_path / "deep" / "clients.jsonl").read_text().splitlines()
    assert len(lines) == 80
    assert json.loads(lines[0])["policy"] == "rbcsf"
    file = tmp_path / "turns.parquet"
    run("runs", "export", store, "1", "2", "--table", "turns", "--out", file)
    assert len(pytest.importorskip("pandas").read_parquet(file)) == 2 * 12 * 8
    message = "the name of the file must end in .csv or .jsonl or .parquet, got 'turns.txt'"
    assert message in error_of("runs", "export", store, "--out", "turns.txt")
    assert "there is no run 9" in error_of("runs", "export", store, "9", "--table", "runs")


def test_a_tracker_of_the_working_folder_needs_no_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tracker_of_a_folder.py").write_text(
        "class Lines:\n"
        "    def __init__(self, target, *, run, settings):\n"
        "        self.file = open(target, 'a')\n"
        "    def log(self, metrics, step):\n"
        "        print(step, file=self.file)\n"
        "    def close(self):\n"
        "        self.file.close()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    done = in_process.run("simulate", "random", "--rounds", "3", "--track", "tracker_of_a_folder:Lines:steps.txt")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "steps.txt").read_text().split() == ["1", "2", "3"]
