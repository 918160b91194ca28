"""A command that is given a file of the wrong kind says what the file is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cli.in_process import run
from live.forging import alter
from turnout.lab import RunStore
from turnout.live import Scheduler
from turnout.storage.files.identify import describe_file

#: How each file is described, and what the command line adds.
FOUND = {
    "fleet": "is a fleet, n",
    "runs": "is a store of runs, n",
    "plan.toml": "is a plan in TOML, n",
    "other.db": "is a SQLite file of another program, n",
    "arrays.npz": "is a zip or npz file, n",
    "folder": "is a folder, n",
    "words": "is not a SQLite file",
}
ADVICE = {"fleet": "turnout fleet status", "runs": "turnout runs show", "plan.toml": "turnout simulate --config"}
#: What reads a fleet, a store of runs, either of them, a plan, something else.
COMMANDS = {
    "fleet": (
        ("fleet", "status", "@"),
        ("fleet", "certify", "@"),
        ("fleet", "tokens", "create", "@", "--role", "server"),
        ("fleet", "serve", "@"),
    ),
    "runs": (("runs", "show", "@"), ("simulate", "random", "--rounds", "2", "--store", "@")),
    "either": (("fleet", "replay", "@"), ("fleet", "explain", "@", "x"), ("fleet", "dashboard", "@", "--port", "0")),
    "plan.toml": (("simulate", "--config", "@"),),
    "other": (("traces", "describe", "@"), ("verify", "@", "@")),
}
CASES = [
    pytest.param(command, file, id=f"{' '.join(command)}: {file}")
    for target_size, commands in COMMANDS.items()
    for command in commands
    for file in FOUND
    if file != target_size
    and not (target_size == "either" and file in ("fleet", "runs"))
    and not (command[0] == "traces" and file == "arrays.npz")  # it may be a trace
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    Scheduler.open(folder / "fleet", deadline=60).close()
    RunStore(folder / "runs").close()
    (folder / "plan.toml").write_text('[[policy]]\nname = "random"\n')
    alter(folder / "other.db", "CREATE TABLE words (word)")
    np.savez(folder / "arrays.npz", numbers=np.arange(300))
    (folder / "folder").mkdir()
    (folder / "words").write_text("these are words\n" * 100)
    return folder


@pytest.mark.parametrize(("command", "file"), CASES)
def test_a_wrong_file_is_described(folder: Path, command: tuple[str, ...], file: str) -> None:
    path = folder / file
    done = run(*(path if argument == "@" else argument for argument in command))
    assert done.returncode in (1, 2), done.stdout
    if file == "words" and (command[0] in ("traces", "verify") or command[1] in ("tokens", "serve", "--config")):
        return  # text that is no plan, trace or certificate has messages of its own
    assert done.stderr.count("\n") == 1, done.stderr
    if file == "folder" and command[0] == "fleet" and "there is no" in done.stderr:
        return
    assert f"{path} {FOUND[file]}" in done.stderr
    assert ADVICE.get(file, "") in done.stderr


def test_the_kinds_are_those_that_the_packages_define(folder: Path) -> None:
    assert describe_file(folder / "fleet") == "a fleet"
    assert describe_file(folder / "runs") == "a store of runs"
    assert describe_file(folder / "nothing") is None
    assert describe_file(folder / ("x" * 300)) is None  # no file can have this name
