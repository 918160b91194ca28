"""The help of the commands is the same with every version of typer: `make lowest` and `make newest` run these tests."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer

from cli.in_process import all_commands, run
from turnout.cli.app import COMMANDS, PANELS

EVERY = list(all_commands())


@pytest.mark.parametrize(("path", "command"), EVERY, ids=[path for path, _ in EVERY])
def test_a_flag_is_shown_without_a_value(path: str, command: Any) -> None:
    done = run(*path.split()[1:], "--help")
    assert (done.returncode, done.stderr) == (0, "")
    flags = [param for param in command.params if getattr(param, "is_flag", False) and not param.hidden]
    for name in ("--help", *(name for param in flags for name in (*param.opts, *param.secondary_opts))):
        (line,) = (line for line in done.stdout.splitlines() if re.match(rf"│[ *]+(-\w, |--\S+ +)?{name}[ /,]", line))
        assert not re.search(r"<bool>|\bBOOL", line), line


def test_plain_turnout_shows_the_commands_in_groups_and_succeeds() -> None:
    done = run()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == run("--help").stdout
    for panel in set(PANELS.values()):  # older versions of typer show them in another order
        assert f"─ {panel} ─" in done.stdout
    assert set(PANELS) == set(COMMANDS)
    for command in COMMANDS:
        assert re.search(rf"^│ {command} ", done.stdout, re.MULTILINE), command
    assert "--version" in done.stdout


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("simulate --rounds x", "--rounds"),
        ("simulate --rounds 0", "--rounds"),
        ("simulate --nothing", "--nothing"),
        ("fleet statu", "No such command 'statu'"),
        ("fleet status", "FLEET"),
    ],
)
def test_a_refused_command_names_what_is_wrong(command: str, named: str) -> None:
    done = run(*command.split())
    assert (done.stdout, done.returncode) == ("", 2)
    assert named in done.stderr
    assert "Traceback" not in done.stderr


def test_all_commands_are_built_by_this_version_of_typer() -> None:
    assert len(EVERY) > 30, typer.__version__
