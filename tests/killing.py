"""Kills a process at an exact moment: before its n-th write to a database, however fast the machine is."""

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
    """Counts the writes of this process, in all connections opened from now on, and kills it before one of them.

    `group`: the processes of its group are killed with it, which are its workers where it leads a session.
    """

    def __init__(self, die_at: int | None, *, group: bool = False) -> None:
        self.count, self.die_at, self._group = 0, die_at, group
        began = self._began

        class Watched(sqlite3.Connection):
            def __init__(self, *arguments: Any, **options: Any) -> None:
                super().__init__(*arguments, **options)
                self.set_trace_callback(began)

        sqlite3.connect = partial(sqlite3.connect, factory=Watched)  # type: ignore[assignment]

    def _began(self, statement: str) -> None:
        if statement.startswith(WRITES):
            self.count += 1
            if self.count == self.die_at:
                if self._group:
                    os.killpg(0, signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)


def environment() -> Mapping[str, str]:
    """The environment of a child that imports the modules that this process would import, those of the tests too."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])}
