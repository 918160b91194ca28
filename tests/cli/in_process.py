"""Commands as their users see them; in this process, as starting one takes its time."""

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
    """What a command printed, and how it ended."""

    stdout: str
    stderr: str
    returncode: object


def run(*arguments: str | Path, **environment: str) -> Done:
    """`turnout` with these arguments."""
    told, complained = io.StringIO(), io.StringIO()
    with (
        patch.dict(os.environ, {"COLUMNS": "160", "NO_COLOR": "1", **environment}),
        patch.object(sys, "argv", ["turnout", *map(str, arguments)]),
        redirect_stdout(told),
        redirect_stderr(complained),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    return Done(told.getvalue(), complained.getvalue(), ended.value.code)
