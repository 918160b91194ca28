"""Processes that are forked from one that has imported the service, which is faster than starting Python for each.

As a program it reads orders, one JSON object per line, and answers each with a number. {"call": "module:function",
"arguments": [...], "output": path} forks a process that calls the function and writes to the file; the answer is its
process id. {"wait": process id} waits for the end of one; the answer is its exit status.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

from killing import environment

#: The last line of a process that was not killed begins so.
ENDED = "ended with status"
IMPORTED = ("turnout.cli.app", "turnout.service.serving", "turnout.dashboard.serving", "service.attached")


class Forker:
    """The process from which others are forked.

    Args:
        modules: What it imports first; by default what the service needs.
    """

    def __init__(self, *modules: str) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-u", str(Path(__file__)), *(modules or IMPORTED)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**environment(), "NO_COLOR": "1", "COLUMNS": "1000"},
        )

    def start(self, function: str, *arguments: str | Path, output: Path) -> int:
        """Forks a process that calls a function ("module:function"); returns its number."""
        return self._order({"call": function, "arguments": list(map(str, arguments)), "output": str(output)})

    def wait(self, process: int) -> int:
        """Waits until a process has ended, and returns its exit status."""
        return self._order({"wait": process})

    def close(self) -> None:
        """Ends the process from which others are forked."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        assert self._process.wait() == 0
        self._process.stdout.close()

    def _order(self, order: dict[str, Any]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            return int(self._process.stdout.readline())


def serve(*fleets: str) -> None:
    """Runs `turnout fleet serve` on a free port."""
    sys.argv = ["turnout", "fleet", "serve", *fleets, "--port", "0"]
    import_module("turnout.cli").main()


def main() -> None:
    """Executes orders until there are no more."""
    for module in sys.argv[1:]:
        import_module(module)
    gc.freeze()  # so that the children copy less memory
    children = set[int]()
    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            print(os.waitstatus_to_exitcode(os.waitpid(order["wait"], 0)[1]))
            children.remove(order["wait"])
            continue
        child = os.fork()
        if child == 0:
            _call(order)
        children.add(child)
        print(child)
    for child in children:  # of a test that has failed
        os.kill(child, signal.SIGKILL)


def _call(order: dict[str, Any]) -> None:
    """Calls the function of an order, and ends the process."""
    output, silent = os.open(order["output"], os.O_CREAT | os.O_WRONLY | os.O_APPEND), os.open(os.devnull, os.O_RDONLY)
    for descriptor, standard in ((silent, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, standard)
    module, _, name = order["call"].partition(":")
    try:
        getattr(import_module(module), name)(*order["arguments"])
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 0
    except BaseException:
        traceback.print_exc()
        status = 1
    print(ENDED, status)
    os._exit(status)


if __name__ == "__main__":
    main()
