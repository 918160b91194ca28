"""Runs programs in forks of one process that has imported NumPy and turnout: a new process imports them for most of
its time.

A fork knows what a new process knows after `import numpy, turnout`, and the import of the further modules that a
server was started with; its environment variables,
working folder, arguments and standard streams are those that it is given, and it ends as any interpreter does.
Programs that depend on the start of Python (its options, PYTHON* or TURNOUT_KERNEL) need a new process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

#: The program of the server. A child leaves the loop and goes on as the program that it was sent.
SERVER = """
import json, os, sys
import numpy, turnout
for name in sys.argv[1:]:
    __import__(name)

def receive_program():
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            os.chdir(order["folder"])
            os.environ.clear()
            os.environ.update(order["environment"])
            sys.argv[:] = ["-c", *order["arguments"]]
            for number, (name, flags) in enumerate(order["streams"]):
                opened = os.open(name, flags)
                os.dup2(opened, number)
                os.close(opened)
            sys.stdin = open(0, closefd=False)
            return order["program"]
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    sys.exit(0)

program = receive_program()
for name in ("json", "os", "sys", "numpy", "turnout", "receive_program"):
    del globals()[name]
del name
exec(compile(globals().pop("program"), "<string>", "exec"))
"""


class ForkServer:
    """A process whose forks run programs, one after another."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process, self._folder = process, folder

    def run(
        self, program: str, *arguments: str, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program as `python -c` does, and returns its output and exit code."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        output, errors = self._folder / "stdout", self._folder / "stderr"
        written = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        order = {
            "program": program,
            "arguments": arguments,
            "folder": str(cwd or Path.cwd()),
            "environment": dict(os.environ if env is None else env),
            "streams": [(os.devnull, os.O_RDONLY), (str(output), written), (str(errors), written)],
        }
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        return subprocess.CompletedProcess(
            [sys.executable, "-c", program, *arguments], code, output.read_text(), errors.read_text()
        )

    def run_script(self, path: Path, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Runs a file as `python FILE` does."""
        names = f"sys.argv[0], sys.path[0] = {str(path)!r}, {str(path.parent)!r}"
        program = f"import runpy, sys\n{names}\nrunpy.run_path(sys.argv[0], run_name='__main__')"
        return self.run(program, *arguments, cwd=cwd)


@contextmanager
def fork_server(*modules: str) -> Iterator[ForkServer]:
    """Starts a server that imports further modules, and ends it."""
    with (
        TemporaryDirectory() as folder,
        subprocess.Popen(
            [sys.executable, "-c", SERVER, *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # A program in a fork cannot change the number of threads any more, and tests run beside it.
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        ) as process,
    ):
        yield ForkServer(process, Path(folder))
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait() == 0
