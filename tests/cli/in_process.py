"""Runs commands in this process, which is faster than a new process per command."""

from __future__ import annotations

import io
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import pytest

from turnout.cli.app import main


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
