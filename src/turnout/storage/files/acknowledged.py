"""The number of the last acknowledged commit of a store, in the first line of its lock file.

It is written after each commit, without flushing it to disk. A killed process leaves what it has written in the page
cache, so a database with fewer commits than this has lost some. After a power failure the number can only be too small.
"""

from __future__ import annotations

import io
import os
import re
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from turnout.storage.files import system

#: The length of the first line, in bytes. The second line names the writer.
LINE = 64
#: How often a line that another process may be writing is read or locked again, and the seconds in between.
ATTEMPTS, PAUSE = 20, 0.001
#: How a line that states a commit begins.
STATED = b"commit "
_PATTERN = re.compile(rb"commit (\d{20}) of ([0-9a-f]{16}) ([0-9a-f]{8}) *\n")


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The newest commit that a process has acknowledged.

    Attributes:
        file_id: The id of the database, which it keeps from its creation on.
        commits: The number of commits.
    """

    file_id: str
    commits: int

    def line(self) -> bytes:
        """Returns the first line of the lock file."""
        text = f"commit {self.commits:020d} of {self.file_id}".encode()
        return (text + b" %08x" % zlib.crc32(text)).ljust(LINE - 1) + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> Acknowledged | None:
        """Returns what `line` wrote; None for anything else."""
        match = _PATTERN.fullmatch(line)
        if match is None or zlib.crc32(line[: match.end(2)]) != int(match[3], 16):
            return None
        return cls(match[2].decode(), int(match[1]))


#: The first line while no commit is known.
UNKNOWN = b" " * (LINE - 1) + b"\n"


def lock_path(store: Path) -> Path:
    """Returns the path of the lock file of a store or a fleet."""
    return store.with_name(f"{store.name}.lock")


def states_commit(store: Path) -> bool:
    """Returns whether the lock file exists and states a commit, even if the line was left half written."""
    try:
        with lock_path(store).open("rb") as file:
            return file.read(len(STATED)) == STATED
    except FileNotFoundError:
        return False


def read_acknowledged(store: Path) -> Acknowledged | None:
    """Returns the newest acknowledged commit; None if the lock file does not exist or does not state one."""
    for _ in range(ATTEMPTS):
        try:
            with lock_path(store).open("rb") as file:
                line = file.read(LINE)
        except FileNotFoundError:
            return None
        stated = Acknowledged.parse(line)
        if stated is not None or not line.startswith(STATED):
            return stated
        time.sleep(PAUSE)  # another process is writing this line
    return None


def acknowledge(store: Path, newest: Acknowledged, *, lower: bool = False) -> None:
    """Writes that this commit was acknowledged, unless a later commit of the same database is stated already.

    Args:
        store: The database.
        newest: The commit.
        lower: Whether a later commit that is stated is replaced, because it is lost and the user accepts that.
    """
    with io.FileIO(lock_path(store), "r+", opener=_open_or_create) as file, _locked_line(store, file.fileno()):
        stated = Acknowledged.parse(system.read_at(file.fileno(), LINE, 0))
        if lower or stated is None or stated.file_id != newest.file_id or stated.commits < newest.commits:
            system.write_at(file.fileno(), newest.line(), 0)


def _open_or_create(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CREAT, 0o644)


@contextmanager
def _locked_line(store: Path, descriptor: int) -> Iterator[None]:
    """Locks the first line against other threads and processes, until the file is closed.

    On other systems than Linux a lock of this line would wait for the writer, which has locked the whole file: there an
    empty file beside it is locked instead.

    A process that was stopped while it held this lock must not stop all others: after a while they go on without it.
    The stated number may then become too small, which hides the loss of commits but never reports one that did not
    happen.
    """
    if system.CAN_LOCK_PARTS:
        _retry(lambda: system.try_lock_part(descriptor, LINE))
        yield
        return
    with io.FileIO(lock_path(store).with_suffix(".lock-line"), "r+", opener=_open_or_create) as file:
        _retry(lambda: system.try_lock(file.fileno()))
        yield


def _retry(lock: Callable[[], bool]) -> None:
    for _ in range(ATTEMPTS):
        if lock():
            return
        time.sleep(PAUSE)
