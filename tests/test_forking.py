"""Programs in forks see and do what they would in a process of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from forking import ForkServer

#: Prints what a program can see of its process; new processes and forks must agree on it.
SURROUNDINGS = """
import os, sys
print(sys.argv, sys.path, os.getcwd(), os.environ["COLOUR"], sorted(globals()), __name__, repr(sys.stdin.read()))
"""


def test_a_fork_sees_what_a_new_process_sees(forks: ForkServer, tmp_path: Path) -> None:
    environment = {**os.environ, "COLOUR": "blue"}
    fork = forks.run(SURROUNDINGS, "one", "two", cwd=tmp_path, env=environment)
    process = subprocess.run(
        [sys.executable, "-c", SURROUNDINGS, "one", "two"],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    assert (fork.stdout, fork.stderr, fork.returncode) == (process.stdout, "", 0)


def test_a_fork_has_imported_what_turnout_imports_and_nothing_else(forks: ForkServer) -> None:
    program = "import json, numpy, sys, turnout\nprint(*sorted(sys.modules))"
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert forks.run(program).stdout == process.stdout


def test_a_fork_ends_as_a_process_does(forks: ForkServer) -> None:
    assert forks.run("raise SystemExit(3)").returncode == 3
    assert forks.run("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)").returncode == -signal.SIGKILL
    failed = forks.run("print('before')\n1 / 0")
    assert (failed.returncode, failed.stdout) == (1, "before\n")
    assert failed.stderr.endswith("ZeroDivisionError: division by zero\n")
    assert forks.run("import atexit\natexit.register(print, 'at the end')").stdout == "at the end\n"


def test_forks_share_nothing(forks: ForkServer) -> None:
    assert forks.run("import numpy\nnumpy.mark = value = 1").returncode == 0
    assert forks.run("import numpy\nassert not hasattr(numpy, 'mark')\nassert 'value' not in globals()").returncode == 0
