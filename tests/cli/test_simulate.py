"""`turnout simulate`, `check`, `runs` and their errors."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
import time
from contextlib import chdir, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli import in_process
from cli.in_process import error_of, json_of, output_of
from turnout.cli.lab import playing
from turnout.lab import PaperWorld, RoundColumns, RunPlan, RunStore, play_plan
from turnout.lab.analysis.metrics import summarise
from turnout.lab.runs.sweep import run_id


def run(*arguments: str | Path, cwd: Path | None = None) -> in_process.Done:
    with nullcontext() if cwd is None else chdir(cwd):
        return in_process.run(*arguments, COLUMNS="140")


CONFIG = """
rounds = 30
seeds = 2
[world]
clients = 20
availability = {kind = "markov", share = 0.7, persistence = 5}
[[policy]]
name = "rbcsf"
label = "ours"
cohort_size = 5
speed_weight = 5.0
[[policy]]
name = "random"
cohort_size = 5
"""


def simulated(*arguments: str | Path) -> list[dict[str, Any]]:
    """Returns the first seed of every policy of a simulation."""
    done = run("simulate", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return [{**row, **row["per_seed"][0]} for row in json.loads(done.stdout)["policies"]]


def test_a_simulation_shows_every_policy() -> None:
    shown = run("simulate", "rbcsf", "random", "--rounds", "30", "--seed", "3").stdout
    for text in ("30 rounds, seed 3", "rbcsf", "random", "mean round", "of all rounds", "shortfall", "Jain"):
        assert text in shown
    assert "±" not in shown


def test_the_default_policies_are_fair_pace_and_random() -> None:
    result = simulated("--rounds", "60")
    assert [row["policy"] for row in result] == ["fair-pace", "random"]
    assert {row["share_of"] for row in result} == {"of the rounds it was available for"}
    assert result[0]["largest_shortfall"] <= result[0]["tolerance"] == 2
    assert result[0]["status"] == ("kept" if result[0]["largest_shortfall"] < 1 else "behind")


def test_every_policy_is_judged_by_one_promise_and_its_own_tolerance() -> None:
    arguments = ("rbcsf", "random", "--rounds", "60", "--set", "speed_weight=50")
    judged = simulated(*arguments, "--set", "tolerance=100")
    assert [(row["tolerance"], row["share_of"]) for row in judged] == [(100, "of all rounds"), (2, "of all rounds")]
    assert judged[0]["status"] == "behind"
    assert judged[0]["largest_shortfall"] > 2
    judged = simulated(*arguments, "--tolerance", "3")
    assert [row["tolerance"] for row in judged] == [3, 3]
    assert judged[0]["status"] == "broken"


def test_settings_apply_to_the_policies_that_have_them() -> None:
    settings = ("--set", "cohort_size=10", "--set", "speed_weight=0")
    result = simulated("rbcsf", "random", "--rounds", "30", *settings)
    assert [row["mean_cohort"] for row in result] == [10.0, 10.0]
    assert "speed_weight 0" in result[0]["policy"]
    assert "speed_weight" not in result[1]["policy"]
    assert simulated("random", "--rounds", "20", "--world", "clients=5", "--world", "noise=none")[0]["mean_cohort"] < 5


def test_owed_turns_are_counted_against_the_guaranteed_rate() -> None:
    arguments = ("rbcsf", "random", "--rounds", "20")
    promised = simulated(*arguments, "--set", "guaranteed_rate=0.05")[1]["worst_debt"]
    assert (
        promised == simulated(*arguments, "--promise", "0.05")[1]["worst_debt"] < simulated(*arguments)[1]["worst_debt"]
    )


def test_options_take_precedence_over_the_config_file(tmp_path: Path) -> None:
    config = tmp_path / "study.toml"
    config.write_text(CONFIG)
    result = json_of("simulate", "--config", config)
    assert [row["policy"] for row in result["policies"]] == ["ours", "random"]
    assert (result["rounds"], result["seeds"], result["baseline"]) == (30, 2, "random")
    options = ("--rounds", "10", "--seeds", "1", "--set", "cohort_size=4", "--baseline", "ours")
    result = json_of("simulate", "--config", config, *options, "--store", tmp_path / "runs.turnout")
    assert (result["rounds"], result["seeds"], result["baseline"]) == (10, 1, "ours")
    assert result["policies"][0]["per_seed"][0]["mean_cohort"] == 4.0
    world = {"clients": 20, "availability": {"kind": "markov", "share": 0.7, "persistence": 5}}
    with RunStore(tmp_path / "runs.turnout", read_only=True) as store:
        for policy, settings in (("rbcsf", {"cohort_size": 4, "speed_weight": 5.0}), ("random", {"cohort_size": 4})):
            plan = RunPlan(policy, 10, 0, settings, world_settings=world)
            assert store.columns(run_id(store, plan)).to_bytes() == play_plan(plan).to_bytes()


def test_a_folder_that_is_a_file_is_reported_before_the_first_round(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for command in ("simulate random --rounds 5", "study leaderboard numerical", "study reproduce queues"):
        message = error_of(*command.split(), "--out", tmp_path / "file")
        assert f"{tmp_path / 'file'} is not a folder that can be written to: File exists" in message


def test_a_comparison_is_made_seed_by_seed() -> None:
    result = json_of("simulate", "rbcsf", "random", "--seeds", "3", "--rounds", "40")
    assert (result["seeds"], result["baseline"]) == (3, "random")
    by_name = {row["policy"]: row for row in result["policies"]}
    assert by_name["random"]["time_saved"] == {"mean": 0.0, "half_width": 0.0}
    assert by_name["rbcsf"]["time_saved"]["mean"] > 0.2
    assert "mean ± 95 % confidence" in run("simulate", "rbcsf", "random", "--seeds", "2", "--rounds", "20").stdout


def test_reproduce_prints_claims_and_writes_figures(tmp_path: Path) -> None:
    done = run("study", "reproduce", "queues", "--seeds", "2", "--rounds", "30", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    for text in ("queues", "is higher with a larger weight", "Claims: "):
        assert text in done.stdout
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"queues.svg", "queues.png", "queues.csv", "claims.json", "runs.turnout"} <= names
    result = json_of("study", "reproduce", "queues", "--seeds", "2", "--rounds", "30", "--out", tmp_path / "out")
    assert len(result["claims"]) == 3


def test_runs_are_listed_shown_exported_and_deleted(tmp_path: Path) -> None:
    store = str(tmp_path / "runs.turnout")
    run("simulate", "rbcsf", "random", "--rounds", "12", "--store", store)
    listed = json_of("runs", "show", store)
    assert [(one["policy"], one["rounds_played"], one["finished"]) for one in listed] == [
        ("rbcsf", 12, True),
        ("random", 12, True),
    ]
    assert "2 runs in" in run("runs", "show", store).stdout
    number = str(listed[0]["run"])
    shown = json_of("runs", "show", store, number)
    assert shown["summary"]["rounds"] == 12
    assert (shown["summary"]["tolerance"], shown["summary"]["share_of"]) == (2, "of all rounds")
    assert shown["summary"]["status"] in ("kept", "behind", "broken")
    assert "mean round" in run("runs", "show", store, number).stdout
    lines = run("runs", "export", store, number, "--table", "turns").stdout.splitlines()
    assert len(lines) == 1 + 12 * 8
    out = tmp_path / "deep" / "turns.csv"
    run("runs", "export", store, number, "--table", "turns", "--out", str(out))
    assert out.read_text().splitlines() == lines
    assert run("runs", "delete", store, number, "--yes").stdout == f"deleted run {number}\n"
    assert len(json_of("runs", "show", store)) == 1


class Terminal(io.StringIO):
    """A terminal at which somebody types an answer."""

    def isatty(self) -> bool:
        return True


def test_a_deletion_is_confirmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = str(tmp_path / "runs.turnout")
    run("simulate", "random", "--rounds", "5", "--store", store)
    assert "answer yes, or pass --yes" in error_of("runs", "delete", store, "1")
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    refused = run("runs", "delete", store, "1")
    assert refused.returncode != 0
    assert "Delete run 1 (random, 5 rounds)? [y/N]" in refused.stdout
    assert len(json_of("runs", "show", store)) == 1
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert run("runs", "delete", store, "1").stdout.endswith("deleted run 1\n")
    assert json_of("runs", "show", store) == []


def test_a_run_is_shown_without_figures_that_cannot_be_computed(tmp_path: Path) -> None:
    path = tmp_path / "runs.turnout"
    plan = RunPlan("fair-pace", 12, settings={"cohort_size": 3}, world_settings={"clients": 12})
    played = play_plan(plan)
    fields = {name: getattr(played, name) for name in RoundColumns.__slots__}
    unknown = RoundColumns(**{**fields, "available": None, "contexts": np.empty((len(played.chosen), 0))})
    with RunStore(path) as store:
        store.write_run("unknown", plan.as_dict(), unknown, clients=12, code_version="1")
        store.begin("empty", plan.as_dict(), clients=12, code_version="1")
    summary = json_of("runs", "show", path, "1")["summary"]
    assert summary == json.loads(json.dumps(asdict(summarise(unknown, guaranteed_rate=0.15, counts="completed"))))
    assert not {"status", "tolerance"} & set(summary)
    assert json_of("runs", "show", path, "2")["summary"] == {}


def test_a_guaranteed_rate_is_checked() -> None:
    done = run("check")
    assert done.returncode == 0
    assert "feasible: 40 clients, 8 per round" in done.stdout
    assert "largest feasible rate is 0.25" in done.stdout
    assert "The tolerance is a target: more" in run("check", "--rate", "0.22").stdout  # feasible, as clients are absent
    done = run("check", "--availability", "0.2", "--rate", "0.19", "--accrual", "always", "--json")
    assert done.returncode == 1
    result = json.loads(done.stdout)
    assert result["largest_feasible_rate"] == pytest.approx(0.17504, abs=1e-5)
    assert "cohort_size of at least 10" in result["remedy"]
    rare = ("--availability", "0.9,0.16,0.9", "--cohort-size", "2")
    assert json_of("check", *rare, "--accrual", "always")["clients_at_risk"] == [1]
    assert json_of("check", *rare)["clients_at_risk"] == []


def test_the_check_states_every_condition_of_the_proof_and_no_bound_outside_it() -> None:
    proved, text = json_of("check"), output_of("check")
    assert (proved["accrual"], len(proved["proved_if"])) == ("available", 6)
    for condition in proved["proved_if"]:
        assert condition in text
    for outside in (("--accrual", "always"), ("--rate", "0.22"), ("--counts", "completed")):
        answer, text = json_of("check", *outside), output_of("check", *outside)
        assert (answer["feasible"], answer["proved_bound"], answer["proved_if"]) == (True, None, None)
        assert answer["not_proved"] in text
        assert answer["counterexample"] in text
        assert "Proved" not in text


@pytest.mark.parametrize(
    ("options", "bound", "condition"),
    [
        ("--rate 0.1,0.2,0.3 --cohort-size 1", 2 - 0.1 + 0.3 * 2, "there are never more than 3 clients"),
        ("--rate 0.4,0.3,0.3 --cohort-size 1", 2 - 0.3 + 2 * 0.4 * 2, "at no other rates"),
        ("--counts completed --failures 0", 2.58125, "no turn fails"),
        ("--counts completed --failures 2", 2 - 0.15 + 0.15 * 37 / 6, "only 2 clients can have failed turns"),
        (
            "--counts completed --failures 1 --in-a-row 1 --rate 0.05",
            2 + 0.05 + 0.1 * 38 / 7,
            "no client has more than 1 in a row",
        ),
        ("--missing-places 8", 2 - 0.15 + 0.15 * 47 / 8, "all rounds together have 8 places fewer than 8 each"),
        ("--concurrency 4 --times 60 --clients 12 --rate 0.05", 2.5, "no turn lasts longer than 6 further decisions"),
    ],
)
def test_the_check_states_what_is_proved_for_the_fleet_in_question(options: str, bound: float, condition: str) -> None:
    answer, text = json_of("check", *options.split()), output_of("check", *options.split())
    assert answer["proved_bound"] == pytest.approx(bound)
    assert f"nobody is ever {bound:.4g} turns behind" in text
    assert condition in " ".join(answer["proved_if"])
    assert condition in text


def test_the_check_compares_different_rates_with_what_is_feasible() -> None:
    answer = json_of("check", "--rate", "0.1,0.2,0.3", "--cohort-size", "1", "--availability", "1")
    assert answer["rate"] == [0.1, 0.2, 0.3]
    assert answer["largest_feasible_factor"] == pytest.approx(1 / 0.6)
    text = output_of("check", "--rate", "0.1,0.2,0.3", "--cohort-size", "1", "--availability", "1")
    assert "each in 0.1 to 0.3 of the rounds" in text
    assert "All rates could be 1.66667 times as high." in text


def test_an_infeasible_rate_is_refused_in_the_unit_of_the_user_with_the_true_limit() -> None:
    message = error_of("simulate", "fair-pace", "--set", "guaranteed_rate=0.26")
    assert "guaranteed_rate 0.26 cannot be kept with cohort_size 8: the largest feasible rate is 0.25 " in message
    assert "With a guaranteed_rate of 0.2 and the tolerance 2, FairPace is proved" in message
    assert run("simulate", "fair-pace", "--rounds", "2", "--set", "guaranteed_rate=0.25").returncode == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            "--clients 10 --cohort-size 3 --rate 0.2",
            "with a tolerance of 2, nobody is ever 2.4 turns behind; a tolerance of 1.6 keeps everybody less",
        ),
        ("--tolerance 0.4", "nobody is ever 0.9812 turns behind, if "),
        (
            f"--availability {','.join(['0.1'] * 12 + ['0.9'] * 3)} --rate 0.09 --accrual always",
            "available in less than 1.25 × 0.09 of the rounds: clients 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more.\n",
        ),
        ("--availability 0.9,0.1,0.9 --cohort-size 2 --rate 0.09 --accrual always", "of the rounds: clients 1.\n"),
        ("--accrual never", "accrual must be 'always' or 'available', got 'never'"),
        ("--availability 0.2,x", "availability must be numbers, such as 0.8 or 0.8,0.5,0.9, not '0.2,x'"),
        ("--tolerance 0", "tolerance must be above 0"),
        ("--failures 1", "--failures needs --counts completed"),
        ("--counts completed --in-a-row 1", "--in-a-row needs --failures"),
        ("--concurrency 1 --times 1,1 --rate 0.1,0.2", "--concurrency takes one rate for all clients"),
        (
            "--rate 0.1,0.3 --cohort-size 1 --availability 0.11,0.9 --accrual always",
            "available in less than 1.25 × its rate of the rounds: clients 0.\n",
        ),
    ],
)
def test_the_check_names_bounds_clients_at_risk_and_errors(options: str, text: str) -> None:
    done = run("check", *options.split())
    assert text in done.stdout + done.stderr
    assert "At risk" not in run("check", "--availability", "0.9", "--rate", "0.09").stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rounds = = 3", "is not valid TOML: Invalid value (at line 1, column 10)"),
        ('[[policy]]\nname = "rbcs"', "unknown policy 'rbcs' (did you mean 'rbcsf'?)"),
        ('[[policy]]\nname = "rbcsf"\nguaranteed_rate = 0.5', "the largest feasible rate is 0.2"),
        ('[world]\nname = "mars"\n[[policy]]\nname = "random"', "unknown world 'mars'"),
        ("round = 3", "unknown entry 'round' (did you mean 'rounds'?)"),
        ("[[policy]]\ncohort_size = 3", "[[policy]] table 1 needs a name"),
        ("world = 3", "write one [world] table and any number of [[policy]] tables"),
        ("policy = 3", "write one [world] table and any number of [[policy]] tables"),
        ('[policy]\nname = "random"', "write one [world] table and any number of [[policy]] tables"),
        (None, "cannot read"),
    ],
)
def test_an_invalid_configuration_is_reported_in_one_line_before_the_first_run(
    tmp_path: Path, text: str | None, message: str
) -> None:
    config = tmp_path / "bad.toml"
    if text is not None:
        config.write_text(text)
    assert message in error_of("simulate", "--config", config, "--store", tmp_path / "runs.turnout")
    assert not (tmp_path / "runs.turnout").exists()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("simulate --world availabilty=0.3", "(did you mean 'availability'?)"),
        ("study reproduce queus", "unknown experiment 'queus' (did you mean 'queues'?)"),
        ("simulate rbcsf random --baseline randon --seeds 2", "(did you mean 'random'?)"),
        ("simulate random --rounds 5 --tolerance 0", "tolerance must be above 0"),
        ("simulate --world name=training --world dataset=cifar", "(did you mean 'cifar-10'?)"),
        ("simulate --world name=training --world rate=0", "rate must be above 0"),
        ("simulate --set cohort_size=3 --concurrency 4", "cohort_size of fair-pace cannot be used with concurrency"),
        ("simulate --set guaranteed_rate=0.15 --concurrency 4", "the largest feasible rate is 0.03125"),
    ],
)
def test_errors_are_reported_in_one_line(command: str, message: str) -> None:
    assert message in error_of(*command.split())


INTERRUPTED = """
import os, signal, sys
from turnout.cli import main
from turnout.lab import RunStore

plain, written = RunStore.write_run, []

def write_run(*arguments, **more):
    written.append(plain(*arguments, **more))
    if len(written) == 3:
        os.killpg(0, signal.SIGINT)  # as a terminal does: the workers too
    return written[-1]

RunStore.write_run = write_run
signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored where we run in the background
sys.argv = ["turnout", *sys.argv[1:]]
main()
"""


INTERRUPTED_AT_THE_START = """
import os, pathlib, signal, sys, time
import joblib
from turnout.cli import main

plain = joblib.Parallel.__call__

def call(self, *arguments, **more):
    results = plain(self, *arguments, **more)
    while not pathlib.Path("started").exists():
        time.sleep(0.01)
    return interrupted(results)

def interrupted(results):
    try:
        os.killpg(0, signal.SIGINT)
        yield from results
    finally:
        results.close()

joblib.Parallel.__call__ = call
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv = ["turnout", *sys.argv[1:]]
main()
"""

# Python imports this module when it starts; a worker of joblib then waits until the test lets it go on.
STARTING_WORKER = """
import pathlib, sys, time

if any("popen_loky" in argument for argument in sys.orig_argv):
    pathlib.Path("started").touch()
    while not pathlib.Path("over").exists():
        time.sleep(0.01)
"""


def test_ctrl_c_while_the_workers_start_prints_no_traceback(tmp_path: Path) -> None:
    """The first worker has started Python, and has not imported its modules yet."""
    (tmp_path / "sitecustomize.py").write_text(STARTING_WORKER)
    command = ["study", "reproduce", "queues", "--seeds", "2", "--rounds", "50", "--out", "out"]
    with (tmp_path / "messages").open("w+") as messages:
        child = subprocess.run(
            [sys.executable, "-c", INTERRUPTED_AT_THE_START, *command],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])},
            stdout=messages,
            stderr=messages,
            start_new_session=True,
            check=False,
        )
        (tmp_path / "over").touch()
        messages.seek(0)
        printed = messages.read()
    assert child.returncode == 130, printed
    assert "To continue: turnout study reproduce queues" in printed
    assert "Traceback" not in printed


def test_ctrl_c_keeps_finished_runs_and_prints_how_to_continue(tmp_path: Path) -> None:
    """In the moment in which the third run has been stored."""
    out = tmp_path / "out"
    command = ["study", "reproduce", "queues", "--seeds", "2", "--rounds", "60", "--out", str(out)]
    child = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, *command],
        capture_output=True,
        text=True,
        start_new_session=True,
        check=False,
    )
    assert child.returncode == 130, child.stderr
    assert re.search(
        r"To continue: turnout study reproduce queues --seeds 2 --rounds 60 --out \S+$", child.stderr.strip()
    ), child.stderr
    assert "Traceback" not in child.stderr
    assert _finished(out) == 3
    assert run(*command).returncode == 0
    assert _finished(out) == 12


def _finished(out: Path) -> int:
    """Counts the finished runs. A store gets its name by an atomic rename, so an existing one is complete."""
    if not (out / "runs.turnout").exists():
        return 0
    with RunStore(out / "runs.turnout", read_only=True) as store:
        return sum(one.finished for one in store.runs())


# Without rounds


def test_a_simulation_without_rounds_shows_updates_per_second_and_staleness() -> None:
    shown = run("simulate", "--concurrency", "4", "--rounds", "200").stdout
    for text in ("200 turns, 4 slots, seed 0; promised 0.01875 of its decisions", "updates/s", "staleness", "random"):
        assert text in shown
    fair, chance = simulated("--concurrency", "4", "--rounds", "200")
    assert (fair["policy"], chance["policy"]) == ("fair-pace", "random")
    assert fair["updates_per_second"] > chance["updates_per_second"]
    assert fair["mean_staleness"] == pytest.approx(3, rel=0.1)
    assert fair["largest_shortfall"] < 1
    assert fair["status"] == "kept"


def test_a_simulation_without_rounds_goes_on_after_an_interruption(tmp_path: Path) -> None:
    options = ("--concurrency", "4", "--rounds", "150", "--json", "--store", "runs.turnout")
    first = run("simulate", *options, cwd=tmp_path).stdout
    assert run("simulate", *options, cwd=tmp_path).stdout == first
    assert run("simulate", *options[:-2], cwd=tmp_path).stdout == first
    with RunStore(tmp_path / "runs.turnout") as store:
        assert [info.plan["concurrency"] for info in store.runs()] == [4, 4]


def test_policies_without_rounds_are_compared_seed_by_seed() -> None:
    arguments = ("simulate", "--concurrency", "4", "--rounds", "150", "--seeds", "2", "--workers", "1")
    shown = run(*arguments).stdout
    for text in ("150 turns, 4 slots, 2 seeds", "× random", "fair-pace"):
        assert text in shown
    result = json_of(*arguments)
    fair, chance = result["policies"]
    assert (result["baseline"], result["concurrency"]) == ("random", 4)
    assert chance["speedup"] == {"mean": 1.0, "half_width": 0.0}
    assert fair["speedup"]["mean"] > 1
    ratio = fair["updates_per_second"]["mean"] / chance["updates_per_second"]["mean"]
    assert fair["speedup"]["mean"] == pytest.approx(ratio, rel=0.05)


def interrupt_after(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Presses Ctrl-C in the n-th round that is played from now on."""
    plain, played = PaperWorld.play, []

    def play(*arguments: Any) -> Any:
        played.append(1)
        if len(played) == count:
            raise KeyboardInterrupt
        return plain(*arguments)

    monkeypatch.setattr(PaperWorld, "play", play)


def test_ctrl_c_in_a_simulation_with_a_store_prints_the_command_that_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["simulate", "random", "--rounds", "700", "--store", str(tmp_path / "my runs.turnout")]
    with monkeypatch.context() as patched:
        interrupt_after(600, patched)
        done = run(*command)
    assert done.returncode == 130
    message = done.stderr.splitlines()[-1]
    assert message == f"interrupted: finished runs are saved. To continue: {shlex.join(['turnout', *command])}"
    with RunStore(tmp_path / "my runs.turnout", read_only=True) as store:
        assert [info.rounds for info in store.runs()] == [500]
    done = run(*shlex.split(message.partition("To continue: turnout ")[2]))
    assert done.returncode == 0
    with RunStore(tmp_path / "my runs.turnout", read_only=True) as store:
        assert store.columns(1).to_bytes() == play_plan(RunPlan("random", 700)).to_bytes()


@pytest.mark.parametrize(
    "command",
    [
        "simulate random fedcs --rounds 20",
        "simulate random --rounds 20 --seeds 2 --workers 1",
        "study leaderboard numerical --rounds 20 --seeds 2 --workers 1",
        "simulate random --rounds 40 --world name=training --world hidden=4 --world items=20",
    ],
)
def test_ctrl_c_without_a_store_says_how_to_keep_runs(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        interrupt_after(30, patched)
        done = run(*command.split())
    assert done.returncode == 130
    assert done.stderr.splitlines()[-1] == (
        "interrupted: nothing was saved. To keep finished runs, and continue after an interruption: "
        f"turnout {command} --store runs.turnout"
    )


def test_training_that_diverges_is_said() -> None:
    world = ("--world", "name=training", "--world", "hidden=4", "--world", "items=20", "--rounds", "2")
    arguments = ("simulate", "random", "--set", "cohort_size=3", *world)
    assert "diverged" not in run(*arguments).stdout
    assert "random (cohort_size 3): 3 models diverged and were not averaged" in " ".join(
        run(*arguments, "--world", "rate=1e200").stdout.split()
    )


def test_a_log_file_gets_a_line_at_times(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with playing.watched([RunPlan("random", 600), RunPlan("random", 400)]) as watch:
        for _ in range(1000):
            now[0] += 0.5
            watch(1)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 500 // playing.LOG_SECONDS
    assert (lines[0], lines[-1]) == ("120 of 1,000 rounds of 2 runs", "960 of 1,000 rounds of 2 runs")


def check_slots(*arguments: str) -> in_process.Done:
    return in_process.run("check", "--concurrency", *arguments, COLUMNS="300")


def test_the_largest_rate_of_slots_is_shown_with_and_without_a_promise() -> None:
    answer = json.loads(check_slots("2", "--times", "1,1,1,10", "--json").stdout)
    assert answer["largest_feasible_rate"] == pytest.approx(1 / 11)
    assert answer["rate"] == pytest.approx(0.9 / 11)
    assert (answer["feasible"], answer["clients"], answer["concurrency"]) == (True, 4, 2)
    assert answer["largest_concurrency_for_equal_shares"] == 1
    done = check_slots("2", "--times", "1,2,10", "--rate", "0.095")
    assert done.returncode == 0
    assert "The largest feasible rate is 0.1.\nAbove 0.9 of it, 0.09, hardly any slot" in done.stdout
    assert "on purpose could guarantee 0.153846." in done.stdout
    assert "hardly" not in check_slots("2", "--times", "1,2,10", "--rate", "0.09").stdout


def test_a_rate_that_slow_clients_cannot_have_is_not_feasible() -> None:
    done = check_slots("2", "--times", "1,1,1,10", "--rate", "0.1")
    assert done.returncode == 1
    assert "a client whose turns last 10 s cannot have more. Use a guaranteed_rate of at most 0.0909091" in done.stdout
    assert "or use at most 1 slot." in done.stdout
    done = check_slots("3", "--times", "5", "--clients", "10", "--rate", "0.2")
    assert done.returncode == 1
    assert "at most 0.1." in done.stdout  # fewer slots would not help


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--concurrency 2", "--concurrency needs --times"),
        ("--concurrency 2 --times 1,x", "times must be numbers"),
        ("--concurrency 2 --times 1,0", "must be above 0"),
        ("--concurrency 2 --times 1,2 --clients 3", "times has 2 numbers, but there are 3 clients"),
        ("--concurrency 2 --times 1 --cohort-size 3", "--cohort-size cannot be used with --concurrency"),
        ("--times 5", "--times needs --concurrency"),
    ],
)
def test_invalid_questions_are_refused(arguments: str, message: str) -> None:
    assert message in in_process.error_of("check", *arguments.split())
