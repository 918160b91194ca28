"""Library messages name no command-line options; the command line adds them."""

from __future__ import annotations

import ast
import pickle
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.in_process import all_commands
from cli.in_process import error_of as complaint
from live.fleets import offered, play_round
from live.forging import alter
from turnout.cli.advice import advice_for, describe
from turnout.cli.app import COMMANDS
from turnout.errors import DatasetError, SettingError, StoreError, TurnoutError
from turnout.lab import RunPlan, RunStore, sweep
from turnout.live import Scheduler

LIBRARY = Path(__file__).parents[2] / "src" / "turnout"


def messages(path: Path) -> Iterator[str]:
    """Yields the string constants of a module that are not docstrings; a string without a space is no message."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documentation = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) and id(node) not in documentation else None
        if isinstance(text, str) and " " in text:
            yield text


@pytest.mark.thorough
def test_no_message_of_the_library_names_an_option_or_a_command() -> None:
    params = [param for _, command in all_commands() for param in command.params]
    options = sorted({option for param in params for option in param.opts if "--" in option})
    assert {"--run", "--seed", "--set"} <= set(options)
    # CSS has custom properties that look like options: `--open: #6b5900` and `var(--open)`.
    option = rf"(?<!var\()(?<![\w-])(?:{'|'.join(options)})(?![\w:-])"
    command = rf"\bturnout (?:{'|'.join(COMMANDS)})\b"
    modules = [path for path in sorted(LIBRARY.rglob("*.py")) if "cli" not in path.relative_to(LIBRARY).parts]
    assert len(modules) > 100
    named = [
        f"{path.relative_to(LIBRARY)}: {message}"
        for path in modules
        for message in messages(path)
        if ("--" in message or "turnout " in message)  # so begins whatever the slow expressions find
        and re.search(f"{option}|{command}", message)
    ]
    assert named == []


def test_the_page_of_the_dashboard_names_no_command() -> None:
    scripts = sorted((LIBRARY / "dashboard" / "static").glob("*.js"))
    assert scripts
    assert [path.name for path in scripts if "`turnout " in path.read_text(encoding="utf-8")] == []


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (DatasetError("missing", dataset="cifar-10"), ["turnout data fetch cifar-10 downloads it"]),
        (StoreError("damaged", damaged=Path("f.turnout")), ["turnout fleet doctor f.turnout lists what is damaged"]),
        (
            SettingError("many", argument="run"),
            ["--run NUMBER selects a run", "turnout runs show STORE lists the runs"],
        ),
        (StoreError("no run", argument="run"), ["turnout runs show STORE lists the runs"]),
        (SettingError("taken", argument="port"), ["--host ADDRESS and --port NUMBER select another address"]),
        (SettingError("unrelated", argument="cohort_size"), []),
        (SettingError("plain"), []),
    ],
)
def test_errors_are_translated_to_options_and_commands(error: TurnoutError, expected: list[str]) -> None:
    assert advice_for(error) == expected
    assert describe(error) == (f"{error}. Try: {'; '.join(expected)}" if expected else str(error))
    assert advice_for(pickle.loads(pickle.dumps(error))) == expected  # a worker process may have raised it


def test_a_store_with_several_runs_names_the_option(tmp_path: Path) -> None:
    path = tmp_path / "runs.turnout"
    with RunStore(path) as store:
        sweep([RunPlan("random", 3), RunPlan("random", 3, seed=1)], store, workers=1)
    assert "holds 2 runs (1, 2): pass one of them as run. Try: --run NUMBER" in complaint("fleet", "replay", path)
    assert "there is no run 9" in complaint("fleet", "replay", path, "--run", "9")
    assert "Try: turnout runs show STORE" in complaint("runs", "show", path, "9")


def test_a_damaged_fleet_names_the_doctor(tmp_path: Path) -> None:
    path = tmp_path / "fleet.turnout"
    with Scheduler.open(path, settings={"cohort_size": 2, "guaranteed_rate": 0.1}, deadline=9.0) as scheduler:
        play_round(scheduler, offered(*(f"phone-{n}" for n in range(6))), 3.0)
    alter(path, "UPDATE events SET data = x'00' WHERE seq = 1")
    said = complaint("fleet", "export", path)
    assert "restore it from a backup" in said
    assert f"Try: turnout fleet doctor {path} lists what is damaged" in said


def test_an_occupied_port_names_both_options(tmp_path: Path) -> None:
    path = tmp_path / "runs.turnout"
    RunStore(path).close()
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        said = complaint("fleet", "dashboard", path, "--port", str(occupied.getsockname()[1]))
    assert "pass another host or port. Try: --host ADDRESS and --port NUMBER" in said


def test_a_suite_without_traces_names_the_suite_that_plays_them() -> None:
    said = complaint("study", "leaderboard", "numerical", "--traces", "phones.csv")
    assert "the suite numerical plays no traces" in said
    assert "Try: turnout study leaderboard traces" in said


@pytest.mark.parametrize(
    ("content", "option"),
    [
        ("client,colour\na,red\n", "--column OURS=THEIRS"),
        ("client,time,state\na,0,3\n", "--on STATE"),
        ("client,score\na,-1\nb,-1\n", "turnout traces describe"),
    ],
)
def test_problems_of_a_trace_file_name_the_options_of_its_layout(tmp_path: Path, content: str, option: str) -> None:
    (tmp_path / "a.csv").write_text(content)
    assert f"Try: {option}" in complaint("traces", "convert", tmp_path / "a.csv", "--to", tmp_path / "b.npz")


def test_several_parts_in_a_csv_file_name_the_option_for_one(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("client,score\na,1\n")
    (tmp_path / "b.csv").write_text("client,down_mbps\na,1\n")
    said = complaint("traces", "convert", tmp_path / "a.csv", tmp_path / "b.csv", "--to", tmp_path / "c.csv")
    assert "--part NAME writes one part" in said
