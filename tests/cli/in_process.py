"""Runs commands in this process, which is faster than a new process per command."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import typer

from turnout.cli.app import app, main


class Done(NamedTuple):
    """The output and the exit code of a command."""

    stdout: str
    stderr: str
    returncode: object


def run(*arguments: str | Path, **environment: str) -> Done:
    """Runs `turnout` with these arguments."""
    output, errors = io.StringIO(), io.StringIO()
    with (
        patch.dict(os.environ, {"COLUMNS": "160", "NO_COLOR": "1", **environment}),
        patch.object(sys, "argv", ["turnout", *map(str, arguments)]),
        redirect_stdout(output),
        redirect_stderr(errors),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    return Done(output.getvalue(), errors.getvalue(), ended.value.code)


def all_commands(group: Any = None, path: str = "turnout") -> Iterator[tuple[str, Any]]:
    """Yields every group and command with its path, such as "turnout fleet status"."""
    group = typer.main.get_command(app) if group is None else group
    yield path, group
    for name in getattr(group, "commands", ()):
        yield from all_commands(group.get_command(None, name), f"{path} {name}")


def output_of(*arguments: str | Path, **environment: str) -> str:
    """Returns what a command prints; it succeeds, and standard error is empty."""
    done = run(*arguments, **environment)
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout


def json_of(*arguments: str | Path, **environment: str) -> Any:
    """Returns what a command prints with --json."""
    return json.loads(output_of(*arguments, "--json", **environment))


def error_of(*arguments: str | Path, **environment: str) -> str:
    """Returns the one line of an error; standard output is empty and the exit code is 2."""
    done = run(*arguments, **environment)
    assert (done.stdout, done.returncode) == ("", 2), done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr
