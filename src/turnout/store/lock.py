"""An advisory lock for the only writer of a store, which the operating system releases when the process ends."""

from __future__ import annotations

import fcntl
import os
import socket
import weakref
from pathlib import Path
from typing import TextIO

from turnout.errors import StoreError


class WriterLock:
    """A lock that is held from construction to `release`.

    The lock file names the process that holds the lock. After `release` the file is empty, but it is not deleted.
    """

    def __init__(self, path: Path, *, store: Path) -> None:
        self._file: TextIO = path.open("a+", encoding="utf-8")
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
        self._write(f"process {os.getpid()} on host {socket.gethostname()}\n")
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
