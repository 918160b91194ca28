"""Files that are whole or not there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from turnout.errors import SettingError


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Written beside its place and then put there; if that breaks off, what was there stays."""
    try:
        handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            Path(beside).replace(path)
        except BaseException:
            Path(beside).unlink()
            raise
    except OSError as refused:
        raise SettingError(f"cannot write {path}: {refused.strerror or refused}") from refused
