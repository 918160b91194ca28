"""One writer at a time: a lock that vanishes with its process."""

from __future__ import annotations

import fcntl
import os
import socket
import weakref
from pathlib import Path
from typing import TextIO

from turnout.errors import StoreError


class WriterLock:
    """Held from construction to `release`; the file says by whom, and stays behind empty."""

    def __init__(self, path: Path, *, store: Path) -> None:
        self._file: TextIO = path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            holder = self._file.read().strip() or "a process that has not yet said its name"
            self._file.close()
            raise StoreError(
                f"{store} is being written by {holder}: wait until it ends, or open the store with read_only=True"
            ) from None
        except OSError:
            self._file.close()
            raise
        self._say(f"process {os.getpid()} on host {socket.gethostname()}\n")
        _held.add(self)

    def release(self) -> None:
        """Let others write; a second time does nothing."""
        if self._file.closed:
            return
        _held.discard(self)
        self._say("")
        fcntl.flock(self._file, fcntl.LOCK_UN)
        self._file.close()

    def forget(self) -> None:
        """In a forked child: the lock is its parent's alone, and must not outlive it."""
        self._file.close()

    def _say(self, words: str) -> None:
        self._file.truncate(0)
        self._file.write(words)
        self._file.flush()


_held: weakref.WeakSet[WriterLock] = weakref.WeakSet()


def _forget_all() -> None:
    for lock in list(_held):
        lock.forget()
    _held.clear()


os.register_at_fork(after_in_child=_forget_all)
