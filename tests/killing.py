"""Kills a process at a reproducible moment: before its n-th write to a database."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

#: How much longer than usual the tests run: `make torture` sets it.
TORTURE = int(os.environ.get("TURNOUT_TORTURE", "1"))
WRITES = ("BEGIN IMMEDIATE", "COMMIT", "INSERT", "UPDATE", "DELETE", "CREATE", "ALTER", "PRAGMA")


class Writes:
    """Counts the writes of this process through all connections that it opens later, and kills it before one of them.

    The measurements of `make coverage` are in a database too; they do not count, so a process is killed at the same
    moment with them and without.

    Args:
        die_at: The number of the write before which the process is killed; None only counts.
        group: Whether its process group is killed too: its workers, if the process leads a session.

    Attributes:
        count: The number of writes so far.
        steps: The numbers of those writes that differ from all before them in the statement or in the calls that lead
            to it; a repeated report, for example, adds none. They are recorded only if `die_at` is None.
        between: Those of the steps that begin a transaction: a process that is killed there is between two of them.
    """

    def __init__(self, die_at: int | None, *, group: bool = False) -> None:
        self.count, self.die_at, self._group = 0, die_at, group
        self.steps: list[int] = []
        self.between: list[int] = []
        self._seen: set[tuple[object, ...]] = set()
        connect = sqlite3.connect

        def counting_connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
            connection: sqlite3.Connection = connect(*arguments, **options)
            if not sys._getframe(1).f_globals.get("__name__", "").startswith("coverage."):
                connection.set_trace_callback(self._on_statement)
            return connection

        sqlite3.connect = counting_connect  # type: ignore[assignment]

    def _on_statement(self, statement: str) -> None:
        if statement.startswith(WRITES):
            self.count += 1
            if self.die_at is None:
                self._add_step(statement)
            if self.count == self.die_at:
                if self._group:
                    os.killpg(0, signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)

    def _add_step(self, statement: str) -> None:
        step: list[object] = [statement.partition(" ")[0]]
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            step += [frame.f_code, frame.f_lineno]
            frame = frame.f_back
        if tuple(step) not in self._seen:
            self._seen.add(tuple(step))
            self.steps.append(self.count)
            if statement.startswith("BEGIN"):
                self.between.append(self.count)


def environment() -> Mapping[str, str]:
    """Returns environment variables with which a child process finds the same modules, those of the tests included."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])}
