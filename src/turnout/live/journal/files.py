"""Files of fleets: which files are some, and backups of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

from turnout.counting import pluralize
from turnout.errors import StoreError
from turnout.kernel.certificate import TimeUnit
from turnout.live.journal.schema import FLEET, meta_count
from turnout.live.journal.turns import read_unit
from turnout.storage.files.backup import back_up
from turnout.storage.files.database import single_value, translate_sqlite_errors
from turnout.storage.files.identify import application_id


def is_fleet(path: Path) -> bool:
    """Returns whether the application id of a file is that of a fleet."""
    if not path.is_file():
        raise StoreError(f"there is no file {path}: check the path")
    with translate_sqlite_errors(path):
        return application_id(path) == FLEET.application_id


def back_up_fleet(path: Path, copy: Path, progress: Callable[[int, int], None] = lambda *_: None) -> str:
    """Writes a complete copy of a fleet's file, also while its scheduler is running; returns what it contains.

    Args:
        path: The file of the fleet.
        copy: The file to write, which must not exist.
        progress: Called with the number of pages that were copied, and of all pages.

    Raises:
        StoreError: If the fleet does not exist or has lost commits, or the copy cannot be written.
    """
    if not path.exists():
        raise StoreError(f"there is no fleet at {path}: check the path")
    content: list[str] = []
    back_up(path, copy, FLEET, progress, lambda db: content.append(_describe(db)))
    return content[0]


def _describe(db: sqlite3.Connection) -> str:
    turns = "closed rounds" if read_unit(db) is TimeUnit.ROUND else "turns"
    clients = pluralize(single_value(db, "SELECT COUNT(*) FROM clients"), "client")
    return f"{meta_count(db, 'round'):,} {turns} of {clients}"
