"""The restless server as a process, and what its fleets contain."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from killing import TORTURE, environment
from live.fleets import exported, packed, turns_in
from turnout.live import FleetReader

HERE = Path(__file__).parent
BEFORE, AFTER = 8, 11  # the scripted rounds with every kind of change
#: The moments at which a process is killed are divided into parts; `make test` uses the first, which has all moments
#: between two transactions: there a change that was not committed as a whole is found.
PARTS = 10
EACH_PART = [0, *(pytest.param(part, marks=pytest.mark.thorough) for part in range(1, PARTS))]


def killed_after(action: Callable[[], Any]) -> tuple[int, Any]:
    """Runs an action in a forked child, which then kills itself; returns its number and the result, sent as JSON."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, json.dumps(action()).encode())
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        result = pipe.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    return child, json.loads(result)


class Server:
    """The restless server as a process that executes orders."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def play(self, path: Path, rounds: int, **death: float) -> int:
        """Returns the number of its writes; it must end by itself unless the order says that it is killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"path": str(path), "rounds": rounds, **death}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert answer["code"] == 0 or (death and answer["code"] == -signal.SIGKILL)
        self.killed, self.syncs = answer["code"] == -signal.SIGKILL, int(answer["syncs"])
        assert self.killed or not {"die_at", "die_at_sync"} & death.keys()  # the write or flush exists
        self._steps: list[int] = answer["steps"]
        self._between: list[int] = answer["between"]
        return int(answer["writes"])

    def moments(self, writes: int, part: int) -> Sequence[int]:
        """Returns a part of the first `writes` writes of the last order that was not killed, before which the next are.

        Writes that repeat earlier ones, with the same calls leading to them, are left out, except in `make torture`.
        """
        if part == 0:
            return [step for step in self._between if step <= writes]
        steps = range(1, writes + 1) if TORTURE > 1 else [step for step in self._steps if step <= writes]
        return [step for step in steps if step not in self._between][part - 1 :: PARTS - 1]


@contextmanager
def running_server(variables: Mapping[str, str] | None = None) -> Iterator[Server]:
    """Runs a restless server, by default with the environment of this process."""
    program = [sys.executable, str(HERE / "restless_server.py")]
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables or environment()
    ) as process:
        yield Server(process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait() == 0


def read_everything(path: Path) -> tuple[bytes, list[tuple[Any, ...]], list[dict[str, Any]]]:
    """Returns the state, the turns and the events, without wall-clock times."""
    with FleetReader(path) as reader:
        events = list(exported(reader))
        state = packed(reader)
    for event in events:
        event.pop("opened", None), event.pop("closed", None)
    return state, turns_in(path), events
