"""Kills a process at a reproducible moment: before its n-th write to a database."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

WRITES = ("BEGIN IMMEDIATE", "COMMIT", "INSERT", "UPDATE", "DELETE", "CREATE", "ALTER", "PRAGMA")


class Writes:
    """Counts the writes of this process through all connections that it opens later, and kills it before one of them.

    Args:
        die_at: The number of the write before which the process is killed; None only counts.
        group: Whether its process group is killed too: its workers, if the process leads a session.
    """

    def __init__(self, die_at: int | None, *, group: bool = False) -> None:
        self.count, self.die_at, self._group = 0, die_at, group
        on_statement = self._on_statement

        class CountingConnection(sqlite3.Connection):
            def __init__(self, *arguments: Any, **options: Any) -> None:
                super().__init__(*arguments, **options)
                self.set_trace_callback(on_statement)

        sqlite3.connect = partial(sqlite3.connect, factory=CountingConnection)  # type: ignore[assignment]

    def _on_statement(self, statement: str) -> None:
        if statement.startswith(WRITES):
            self.count += 1
            if self.count == self.die_at:
                if self._group:
                    os.killpg(0, signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)


def environment() -> Mapping[str, str]:
    """Returns environment variables with which a child process finds the same modules, those of the tests included."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])}
