"""An advisory lock for the only writer of a store, which the operating system releases when the process ends."""

from __future__ import annotations

import fcntl
import os
import re
import socket
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from turnout.errors import StoreError


@dataclass(frozen=True, slots=True)
class Writer:
    """The process that writes a store, as the lock file and the journal of a fleet name it.

    >>> str(Writer(17, "server"))
    'process 17 on host server'
    >>> Writer.parse("process 17 on host server")
    Writer(process=17, host='server')
    """

    process: int
    host: str

    def __str__(self) -> str:
        return f"process {self.process} on host {self.host}"

    @classmethod
    def current(cls) -> Writer:
        """Returns the calling process."""
        return cls(os.getpid(), socket.gethostname())

    @classmethod
    def parse(cls, line: str) -> Writer | None:
        """Parses what `str` wrote; returns None for any other text."""
        found = re.fullmatch(r"process (\d+) on host (.*)", line.strip())
        return None if found is None else cls(int(found[1]), found[2])

    @property
    def is_dead(self) -> bool:
        """Whether the process has ended; False for a process of another host, of which nothing is known."""
        if self.host != socket.gethostname():
            return False
        try:
            os.kill(self.process, 0)
        except PermissionError:  # it runs, as another user
            return False
        except (ProcessLookupError, OverflowError):  # no system has process numbers that overflow
            return True
        return False


def lock_path(store: Path) -> Path:
    """Returns the path of the lock file of a store or a fleet."""
    return store.with_name(f"{store.name}.lock")


def lock_line(store: Path) -> str:
    """Returns the line in the lock file that names the holder, without taking the lock; empty if there is no holder."""
    try:
        return lock_path(store).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


class WriterLock:
    """A lock that is held from construction to `release`.

    The lock file names the process that holds the lock. After `release` the file is empty, but it is not deleted.
    """

    def __init__(self, store: Path) -> None:
        self._file: TextIO = lock_path(store).open("a+", encoding="utf-8")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            holder = self._file.read().strip() or "a process that has not yet written its name"
            self._file.close()
            raise StoreError(
                f"{store} is being written by {holder}: wait until it ends, or open the store with read_only=True"
            ) from None
        except OSError:
            self._file.close()
            raise
        self._write(f"{Writer.current()}\n")
        _held.add(self)

    def release(self) -> None:
        """Releases the lock; further calls have no effect."""
        if self._file.closed:
            return
        _held.discard(self)
        self._write("")
        fcntl.flock(self._file, fcntl.LOCK_UN)
        self._file.close()

    def forget(self) -> None:
        """Closes the file in a forked child, so that the lock ends with the parent, which holds it."""
        self._file.close()

    def _write(self, text: str) -> None:
        self._file.truncate(0)
        self._file.write(text)
        self._file.flush()


_held: weakref.WeakSet[WriterLock] = weakref.WeakSet()


def _forget_all() -> None:
    for lock in list(_held):
        lock.forget()
    _held.clear()


os.register_at_fork(after_in_child=_forget_all)
