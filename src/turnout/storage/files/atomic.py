"""Atomic file writes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from turnout.errors import SettingError
from turnout.storage.files.system import sync_file


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Opens a temporary file for writing and renames it to `path` on success.

    If writing fails, a file that already exists at `path` is left unchanged.
    """
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                sync_file(file.fileno())
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink()
            raise
    except OSError as error:
        raise SettingError(f"cannot write {path}: {error.strerror or error}") from error
