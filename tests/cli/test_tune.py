from __future__ import annotations

from pathlib import Path

import pytest

from cli.in_process import error_of, json_of, run
from turnout.lab import RunPlan, RunStore, play_into

SMALL = ("--by", "30", "--world", "clients=12", "--set", "cohort_size=3")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tune") / "runs.turnout"
    plan = RunPlan("rbcsf", 40, settings={"cohort_size": 3, "speed_weight": 5.0}, world_settings={"clients": 12})
    with RunStore(path) as opened:
        play_into(opened, plan)
    return path


def test_a_goal_gives_a_value_and_a_table(tmp_path: Path) -> None:
    figure = tmp_path / "trade-off.svg"
    done = run("study", "tune", *("--within", "0.9", "--values", "8,0.5,1", "--figure", str(figure)), *SMALL)
    assert (done.stderr, done.returncode) == ("", 0)
    for text in (
        "every client within 0.9 turns of its guarantee by round 30",
        "the world paper, 12 clients",
        "Recommended: tolerance=0.5 of fair-pace; ",
        "of 20 other runs met the goal",
        "Least share: of the rounds it was available for",
        "one more run does not exceed",
    ):
        assert text in done.stdout, text
    assert "…" not in done.stdout
    lines = (line.strip("│ ") for line in done.stdout.splitlines())
    rows = [line.split() for line in lines if line.endswith((" yes", " no"))]
    assert [(row[0], row[-1]) for row in rows] == [("0.5", "yes"), ("1", "no"), ("8", "no")]
    drawn = figure.read_text()
    for text in ("meets the goal: tolerance 0.5", "tolerances at the points", ">goal<"):
        assert text in drawn, text


@pytest.mark.thorough
def test_the_answer_as_json_is_complete() -> None:
    result = json_of(
        "study", "tune", "--find", "guaranteed_rate", "--mean-round", "9", "--values", "0.05,0.1,0.2", *SMALL
    )
    assert result["setting"] == "guaranteed_rate"
    assert result["value"] == result["answer"]["value"]
    assert [trial["value"] for trial in result["trials"]] == [0.05, 0.1, 0.2]
    assert result["met"] == sum(one["mean_round"] <= 9 for one in result["answer"]["runs"])
    assert [trial["meets"] for trial in result["trials"]] == [trial["bound"] <= 9 for trial in result["trials"]]


def test_a_goal_that_cannot_be_met_exits_with_code_one_and_what_is_closest() -> None:
    done = run("study", "tune", "--p95-round", "0.1", "--values", "1,2", *SMALL)
    assert done.returncode == 1
    assert "No simulated tolerance of fair-pace meets the goal. With tolerance=" in done.stdout
    assert "one run stays within" in done.stdout


@pytest.mark.thorough
def test_a_setting_is_found_in_a_world_fitted_to_a_record(store: Path) -> None:
    arguments = ("study", "tune", "--mean-round", "20", "--by", "20", "--values", "2,3", "--from", str(store))
    result = json_of(*arguments)
    assert result["setting"] == "tolerance"
    assert result["world"].startswith("a world fitted to run 1 of ")
    assert any("the recorded mean round of" in text for text in result["assumptions"])
    assert run(*arguments).stdout.count("assumed:") == len(result["assumptions"]) >= 5


TUNE, REPLAY = ("study", "tune"), ("fleet", "replay")


@pytest.mark.parametrize(
    ("command", "arguments", "text"),
    [
        (TUNE, "", "no goal was given"),
        (TUNE, "--within 3 --mean-round 8", "more than one goal"),
        (TUNE, "--mean-round 8 --values 1;2", "--values must be numbers"),
        (TUNE, "--within 3 --set tolerance=5", "tolerance is the setting that is"),
        (TUNE, "--mean-round 8 --find tolerence", "did you mean 'tolerance'"),
        (TUNE, "--within 3 --from STORE --world clients=3", "pass only one of them"),
        (REPLAY, "STORE --policy rbscf", "did you mean 'rbcsf'"),
    ],
)
def test_errors_are_one_line(command: tuple[str, str], arguments: str, text: str, store: Path) -> None:
    given = (str(store) if argument == "STORE" else argument for argument in arguments.split())
    assert text in error_of(*command, *given)


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


def test_a_replay_with_fair_pace_reports_the_promise(store: Path) -> None:
    result = json_of("fleet", "replay", str(store), "--policy", "fair-pace", "--set", "accrual=always")
    assert result["policy"] == "fair-pace"
    assert result["statuses"] == {result["status"]: 1}
    assert result["share_of"] == "of all rounds"
    assert result["recorded_promise"].startswith(f"{result['recorded_status']}: client ")
    assert set(result["figures"]) >= {"mean_round", "least_share", "largest_shortfall", "shortfall_at_end"}
    assert result["figures"]["largest_shortfall"]["replayed"] < result["figures"]["largest_shortfall"]["recorded"]
