"""Kills or stops a process inside a flush of its write-ahead log, with a small preloaded library."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from killing import environment

SOURCE = Path(__file__).with_name("syncs.c")
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("g++")


def preloaded(folder: Path) -> Mapping[str, str]:
    """Builds the library in a folder, and returns environment variables with which a child process preloads it."""
    library = folder / "syncs.so"
    if not library.exists():
        assert COMPILER is not None
        building = library.with_suffix(f".{os.getpid()}")
        command = [COMPILER, "-shared", "-fPIC", "-O1", "-o", str(building), "-x", "c", str(SOURCE), "-ldl"]
        subprocess.run(command, check=True)
        building.rename(library)
    return {**environment(), "LD_PRELOAD": str(library)}


def _library() -> ctypes.CDLL | None:
    """Returns the functions of the preloaded library, or None in a process without it."""
    process = ctypes.CDLL(None)
    return process if hasattr(process, "arm_sync") else None


def arm_sync(number: int, signal_number: int) -> None:
    """Sends this process a signal inside its n-th flush from now on; 0 only counts flushes."""
    library = _library()
    if library is not None:
        library.arm_sync(number, signal_number)
    elif number:
        raise RuntimeError("the library of syncs.py is not preloaded")


def count_syncs() -> int:
    """Returns the number of flushes since `arm_sync`; 0 in a process without the library."""
    library = _library()
    return 0 if library is None else int(library.count_syncs())
