"""Stores whose writer was killed."""

from __future__ import annotations

from pathlib import Path

from narrowing import known
from turnout.errors import StoreError
from turnout.lab import RunStore
from waiting import wait_until


def opened_after_a_kill(path: Path) -> RunStore:
    """Opens a store; the lock goes with the last process of the group, which may end a moment after its leader."""

    def opened() -> RunStore | None:
        try:
            return RunStore(path)
        except StoreError as refused:
            if "is being written by" not in str(refused):
                raise
            return None

    return known(wait_until(opened, "the lock of a killed writer is free"))
