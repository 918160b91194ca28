from __future__ import annotations

import json
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cli.in_process import run
from turnout.cli.studies import tune
from turnout.lab import RunPlan, RunStore, play_into
from turnout.lab.analysis.tuning import find_guaranteed_rate, find_speed_weight, find_tolerance

SMALL = ("--by", "30", "--world", "clients=12", "--set", "cohort_size=3")


@pytest.fixture
def small_search(monkeypatch: pytest.MonkeyPatch) -> bool:
    """Lets searches try fewer values with fewer seeds, except in `make torture`; returns whether they do."""
    if os.environ.get("TURNOUT_TORTURE", "1") != "1":
        return False
    effort: dict[str, Any] = {"points": 6, "coarse": 4, "fine": 6, "fresh": 4}
    for find in (find_speed_weight, find_tolerance, find_guaranteed_rate):
        monkeypatch.setattr(tune, find.__name__, partial(find, **effort))
    return True


def json_of(*arguments: str) -> Any:
    done = run(*arguments, "--json")
    assert (done.stderr, done.returncode) == ("", 0)
    return json.loads(done.stdout)


def error_of(*arguments: str) -> str:
    done = run(*arguments)
    assert (done.stdout, done.returncode) == ("", 2), done
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tune") / "runs.turnout"
    plan = RunPlan("rbcsf", 40, settings={"cohort_size": 3, "speed_weight": 5.0}, world_settings={"clients": 12})
    with RunStore(path) as opened:
        play_into(opened, plan)
    return path


@pytest.mark.usefixtures("small_search")
def test_a_goal_gives_a_command_that_uses_the_result(tmp_path: Path) -> None:
    figure = tmp_path / "trade-off.svg"
    done = run("study", "tune", "--within", "2", *SMALL, "--figure", str(figure))
    assert (done.stderr, done.returncode) == ("", 0)
    for text in (
        "every client within 2 turns of its guarantee by round 30",
        "the world paper, 12 clients",
        "Recommended: speed_weight=",
        "turnout simulate rbcsf --rounds 30 --world clients=12 --set cohort_size=3 --set speed_weight=",
        "mean round",
        "most turns owed",
        "least share of all rounds",
        "turns that the worst client is behind at any time",
        "runs met the goal; the search stops when all do, so this share is biased.",
        "knee",
        "furthest below the straight line",
    ):
        assert text in done.stdout, text
    drawn = figure.read_text()
    assert "knee: weight" in drawn
    assert "the goal" in drawn
    line = next(line.strip() for line in done.stdout.splitlines() if "turnout simulate" in line)
    assert run(*line.split()[1:]).returncode == 0


@pytest.mark.parametrize("full", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_the_answer_as_json_is_complete(request: pytest.FixtureRequest, full: bool) -> None:
    is_small = not full and request.getfixturevalue("small_search")
    seeds, points = (4, 7) if is_small else (20, 13)
    found = json_of("study", "tune", "--mean-round", "11", *SMALL)
    assert found["possible"]
    assert found["expected"]["met"] == found["expected"]["of"] == seeds
    assert found["expected"]["mean_round"]["mean"] < 11
    assert found["settings"]["speed_weight"] >= 0
    assert len(found["curve"]) == points
    assert (found["policy"], found["parameter"], found["share_of"]) == ("rbcsf", "speed_weight", "of all rounds")
    figures = {"mean_round", "p95_round", "least_share", "shortfall", "largest_shortfall", "worst_debt"}
    assert figures | {"likely_to_meet"} <= set(found["curve"][0])


@pytest.mark.usefixtures("small_search")
def test_a_goal_that_cannot_be_met_exits_with_code_one_and_a_remedy() -> None:
    done = run("study", "tune", "--p95-round", "0.1", *SMALL)
    assert done.returncode == 1
    for text in ("No speed weight meets this goal, with or without a horizon", "best possible", "--p95-round"):
        assert text in done.stdout
    assert json.loads(run("study", "tune", "--p95-round", "0.1", *SMALL, "--json").stdout)["possible"] is False


def test_a_goal_that_only_a_horizon_meets_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_with_a_horizon(*arguments: Any, **options: Any) -> Any:
        effort = {"points": 2, "coarse": 2, "fine": 2, "fresh": 2, "try_horizon": False}
        found = find_speed_weight(*arguments, **{**options, **effort})
        settings = {"speed_weight": 3.0, "horizon": 30, "prior": "fleet"}
        return replace(found, answer=None, horizon=replace(found.best, settings=settings))

    monkeypatch.setattr(tune, "find_speed_weight", only_with_a_horizon)
    done = run("study", "tune", "--within", "2", *SMALL)
    assert done.returncode == 0
    assert "No speed weight meets the goal with the paper's rule; a horizon does.\nRecommended: " in done.stdout
    assert "--set speed_weight=3.0 --set horizon=30 --set prior=fleet" in done.stdout
    assert "which extends the paper's rule" not in done.stdout


def test_the_line_for_a_live_fleet_opens_it_with_the_settings() -> None:
    def build(*_: Any) -> Any:
        raise AssertionError("nothing is played")

    live = tune.Environment("a fleet", "rbcsf", build, {"cohort_size": 3}, "of all rounds", live=True, clients=12)
    line = live.line({"speed_weight": 2.5}, 30, [])
    assert line == "Scheduler.open(…, policy='rbcsf', settings={'cohort_size': 3, 'speed_weight': 2.5})"


@pytest.mark.usefixtures("small_search")
def test_a_tolerance_of_fair_pace_is_found(tmp_path: Path) -> None:
    figure = tmp_path / "trade-off.svg"
    done = run("study", "tune", "--policy", "fair-pace", "--mean-round", "11", *SMALL, "--figure", str(figure))
    assert (done.stderr, done.returncode) == ("", 0)
    for text in (
        "Recommended: tolerance=",
        "turnout simulate fair-pace --rounds 30 --world clients=12 --set cohort_size=3 --set tolerance=",
        "least share of the rounds it was available for",
        "Figures per tolerance",
        "A tolerance meets the goal",
    ):
        assert text in done.stdout, text
    assert "owed" not in done.stdout
    assert "tolerances at the points" in figure.read_text()
    line = next(line.strip() for line in done.stdout.splitlines() if "turnout simulate" in line)
    assert run(*line.split()[1:]).returncode == 0


@pytest.mark.usefixtures("small_search")
def test_a_guaranteed_rate_of_fair_pace_is_found(tmp_path: Path) -> None:
    figure = tmp_path / "trade-off.svg"
    found = json_of("study", "tune", "--find", "guaranteed_rate", "--mean-round", "9", *SMALL, "--figure", str(figure))
    assert (found["policy"], found["parameter"]) == ("fair-pace", "guaranteed_rate")
    assert 0 < found["settings"]["guaranteed_rate"] < 0.4
    assert "--set guaranteed_rate=" in found["line"]
    assert found["knee"] is None
    assert "guaranteed rates at the points" in figure.read_text()


@pytest.mark.usefixtures("small_search")
def test_a_tolerance_that_cannot_be_found_gives_a_remedy() -> None:
    done = run("study", "tune", "--policy", "fair-pace", "--mean-round", "0.1", *SMALL)
    assert done.returncode == 1
    for text in ("No tolerance meets this goal.", "best possible", "tolerance=", "lower guaranteed_rate"):
        assert text in done.stdout, text
    assert "horizon" not in done.stdout


@pytest.mark.usefixtures("small_search")
def test_the_policy_of_a_record_is_tuned_by_default(tmp_path: Path) -> None:
    path = tmp_path / "runs.turnout"
    plan = RunPlan("fair-pace", 40, settings={"cohort_size": 3, "tolerance": 3.0}, world_settings={"clients": 12})
    with RunStore(path) as opened:
        play_into(opened, plan)
    found = json_of("study", "tune", "--mean-round", "20", "--by", "20", "--from", str(path))
    assert (found["policy"], found["parameter"]) == ("fair-pace", "tolerance")
    assert found["line"].startswith("make_policy('fair-pace', 12, **{'cohort_size': 3, 'tolerance': ")
    assert any("the recorded mean round of" in text for text in found["assumptions"])


@pytest.mark.usefixtures("small_search")
def test_a_world_is_fitted_to_a_record(store: Path) -> None:
    done = run("study", "tune", "--within", "3", "--by", "30", "--from", str(store))
    assert (done.stderr, done.returncode) == ("", 0)
    assert "a world fitted to run 1 of" in done.stdout
    assert done.stdout.count("assumed:") >= 5
    assert "make_policy('rbcsf', 12, **{'cohort_size': 3, 'speed_weight': " in done.stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "no goal was given"),
        (("--within", "3", "--mean-round", "8"), "more than one goal"),
        (("--within", "-1"), "within must be at least 0"),
        (("--mean-round", "0"), "mean_round must be above 0"),
        (("--within", "3", "--set", "speed_weight=5"), "speed_weight is the setting that is tuned"),
        (("--within", "3", "--set", "guaranteed_rate=0.5"), "guaranteed_rate"),
        (("--mean-round", "8", "--policy", "fair-pace", "--set", "tolerance=2"), "tolerance is the setting that is"),
        (("--mean-round", "8", "--policy", "random"), "--policy is rbcsf or fair-pace"),
        (("--mean-round", "8", "--find", "tolerence"), "did you mean 'tolerance'"),
        (("--mean-round", "8", "--find", "tolerance", "--policy", "rbcsf"), "tolerance is found for fair-pace"),
        (("--within", "3", "--world", "name=mars"), "unknown world 'mars'"),
        (("--within", "3", "--run", "1"), "--from"),
        (("--within", "3", "--from", "nowhere.turnout"), "there is no file nowhere.turnout"),
        (("--within", "3", "--from", "STORE", "--world", "clients=3"), "pass only one of them"),
        (("--within", "3", "--from", "STORE", "--run", "9"), "no run 9"),
    ],
)
def test_errors_of_tune_are_one_line(arguments: tuple[str, ...], text: str, store: Path) -> None:
    assert text in error_of(
        "study", "tune", *(str(store) if argument == "STORE" else argument for argument in arguments)
    )


def test_a_replay_marks_exact_figures(store: Path) -> None:
    done = run("fleet", "replay", str(store), "--policy", "random")
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout.count(" exact ") == 10
    assert "promise: 0.15 of all rounds, at most 2 turns behind" in done.stdout
    for text in ("least share of all rounds", "turns behind, at any time", "turns behind, at the end"):
        assert text in done.stdout, text
    for text in ("recorded, ", "replayed, "):
        assert f"{text}kept: " in done.stdout or f"{text}behind: " in done.stdout or f"{text}broken: " in done.stdout
    assert "everything is exact" in done.stdout
    assert "replayed by random (cohort_size=3)" in done.stdout
    unchanged = json_of("fleet", "replay", str(store))
    assert all(one["replayed"] == one["recorded"] for one in unchanged["figures"].values())
    assert unchanged["recorded"]["policy"] == "rbcsf"
    assert (
        json_of("fleet", "replay", str(store), "--set", "speed_weight=50")["figures"]["other_choices"]["replayed"] > 0
    )


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("nowhere.turnout",), "there is no file nowhere.turnout"),
        (("STORE", "--policy", "rbscf"), "did you mean 'rbcsf'"),
        (("STORE", "--set", "speed=5"), "no policy has a setting 'speed'"),
        (("STORE", "--run", "3"), "no run 3"),
    ],
)
def test_errors_of_replay_are_one_line(arguments: tuple[str, ...], text: str, store: Path) -> None:
    assert text in error_of(
        "fleet", "replay", *(str(store) if argument == "STORE" else argument for argument in arguments)
    )


def test_a_replay_with_fair_pace_reports_the_promise(store: Path) -> None:
    found = json_of("fleet", "replay", str(store), "--policy", "fair-pace", "--set", "accrual=always")
    assert found["policy"] == "fair-pace"
    assert found["statuses"] == {found["status"]: 1}
    assert found["share_of"] == "of all rounds"
    assert found["recorded_promise"].startswith(f"{found['recorded_status']}: client ")
    assert set(found["figures"]) >= {"mean_round", "least_share", "largest_shortfall", "shortfall_at_end"}
    assert found["figures"]["largest_shortfall"]["replayed"] < found["figures"]["largest_shortfall"]["recorded"]


@pytest.mark.parametrize("command", [("study", "tune"), ("fleet", "replay")])
def test_the_commands_have_help(command: tuple[str, str]) -> None:
    done = run(*command, "--help")
    assert done.returncode == 0
    assert "--json" in done.stdout
