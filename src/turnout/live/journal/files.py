"""Files of fleets: which files are some, and backups of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from turnout.errors import StoreError
from turnout.live.journal.schema import FLEET
from turnout.storage.files.backup import back_up
from turnout.storage.files.database import translate_sqlite_errors
from turnout.storage.files.identify import application_id


def is_fleet(path: Path) -> bool:
    """Returns whether the application id of a file is that of a fleet."""
    if not path.is_file():
        raise StoreError(f"there is no file {path}: check the path")
    with translate_sqlite_errors(path):
        return application_id(path) == FLEET.application_id


def back_up_fleet(path: Path, copy: Path, progress: Callable[[int, int], None] = lambda *_: None) -> None:
    """Writes a complete copy of a fleet's file, also while its scheduler is running.

    Args:
        path: The file of the fleet.
        copy: The file to write, which must not exist.
        progress: Called with the number of pages that were copied, and of all pages.

    Raises:
        StoreError: If the fleet does not exist or has lost commits, or the copy cannot be written.
    """
    if not path.exists():
        raise StoreError(f"there is no fleet at {path}: check the path")
    back_up(path, copy, FLEET, progress)
