"""An advisory lock for the only writer of a store, which the operating system releases when the process ends."""

from __future__ import annotations

import os
import re
import socket
import weakref
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from turnout.errors import StoreError
from turnout.storage.files import system
from turnout.storage.files.acknowledged import LINE, STATED, UNKNOWN, acknowledge, lock_path, read_acknowledged
from turnout.storage.files.holders import locks_of


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
        match = re.fullmatch(r"process (\d+) on host (.*)", line.strip())
        return None if match is None else cls(int(match[1]), match[2])

    @property
    def is_dead(self) -> bool:
        """Whether the process has ended; False for a process of another host, of which nothing is known."""
        if self.host != socket.gethostname():
            return False
        return not system.is_running(self.process) or _is_zombie(self.process)

    def has_ended(self, store: Path) -> bool:
        """Whether the process has ended that the lock file of a store names.

        Unlike `is_dead`, it does not take another process for the writer that got the same number later: that one does
        not hold the lock.
        """
        return self.is_dead or (self.host == socket.gethostname() and locks_of(lock_path(store)) == [])


def _is_zombie(process: int) -> bool:
    """Returns whether a process has ended and its parent has not noticed yet; False where /proc does not tell."""
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return False
    return state[:1] in (["Z"], ["X"])


def lock_line(store: Path) -> str:
    """Returns the line in the lock file that names the holder, without taking the lock; empty if there is no holder."""
    try:
        return lock_path(store.resolve()).read_bytes()[LINE:].decode("utf-8").strip()
    except FileNotFoundError:
        return ""


def running_writer(store: Path) -> str | None:
    """Returns the process that writes a store, without taking its lock; None if there is none, or it was killed."""
    try:
        holder = lock_line(store)
    except (OSError, UnicodeDecodeError):
        return None
    writer = Writer.parse(holder)
    return None if not holder or (writer is not None and writer.has_ended(store)) else holder


class WriterLock:
    """A lock that is held from construction to `release`.

    The lock file states the last acknowledged commit of the store and names the process that holds the lock. After
    `release` it names no process. It is deleted only if no commit was acknowledged: a store that was refused, or could
    not be created, leaves no lock file behind.

    Args:
        store: The file to write, with all symbolic links resolved.
        takeover: Whether to continue although another process holds the lock. That process keeps the lock on the old
            file, which is set aside until `confirm_takeover`.
    """

    def __init__(self, store: Path, *, takeover: bool = False) -> None:
        self._store, self._path = store, lock_path(store)
        self._set_aside = _replace_lock_file(store) if takeover and self._path.exists() else None
        self._is_held = False
        try:
            while not self._is_held:  # the file that was locked may have been deleted by its last holder meanwhile
                self._lock()
            self._name_holder(f"{Writer.current()}\n")
        except BaseException:
            self._drop()
            raise
        _held.add(self)

    def _lock(self) -> None:
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | system.BINARY, 0o644)
        try:
            if not system.try_lock(self._file):
                holder = lock_line(self._store) or "a process that has not yet written its name"
                raise StoreError(
                    f"{self._store} is being written by {holder}: wait until it ends, or open the store to read it"
                )
            self._is_held = _is_file_at(self._path, self._file)
        finally:
            if not self._is_held:
                os.close(self._file)

    def confirm_takeover(self) -> None:
        """Removes the lock file that was set aside, after which the process that holds it is locked out."""
        if self._set_aside is not None:
            self._set_aside.unlink(missing_ok=True)
            self._set_aside = None

    def release(self) -> None:
        """Releases the lock; further calls have no effect. A takeover that was not confirmed is undone."""
        if not self._is_held:
            return
        _held.discard(self)
        self._name_holder("")
        self._drop()

    def _drop(self) -> None:
        """Releases the lock, if it is held, without a trace of a store that has no commits."""
        if self._is_held:
            if not self._states_commit():
                with suppress(PermissionError):  # Windows deletes no open file
                    self._path.unlink(missing_ok=True)
            system.unlock(self._file)
            self.forget()
        self._put_back()

    def _put_back(self) -> None:
        """Gives the process that a takeover did not succeed against its lock file back, with the newest commit."""
        if self._set_aside is not None:
            stated = read_acknowledged(self._store)
            self._set_aside.replace(self._path)
            self._set_aside = None
            if stated is not None:
                acknowledge(self._store, stated)

    def forget(self) -> None:
        """Closes the file; in a forked child, the lock then ends with the parent, which holds it."""
        if self._is_held:
            self._is_held = False
            os.close(self._file)

    def _name_holder(self, text: str) -> None:
        if not self._states_commit():
            system.write_at(self._file, UNKNOWN, 0)
        system.write_at(self._file, text.encode(), LINE)
        os.ftruncate(self._file, LINE + len(text.encode()))

    def _states_commit(self) -> bool:
        return system.read_at(self._file, len(STATED), 0) == STATED


def _is_file_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _replace_lock_file(store: Path) -> Path:
    """Replaces the lock file by one that states the same commit and that nobody has locked; returns the old one."""
    stated, path = read_acknowledged(store), lock_path(store)
    replacement, old = path.with_suffix(".lock.new"), path.with_suffix(".lock.old")
    with replacement.open("wb") as file:
        file.write(UNKNOWN if stated is None else stated.line())
        file.flush()
        system.sync_file(file.fileno())
    try:
        old.unlink(missing_ok=True)
        os.link(path, old)  # under its own name, there is a lock file at any moment
        replacement.replace(path)
        return old
    except PermissionError as error:  # Windows replaces no open file
        replacement.unlink(missing_ok=True)
        old.unlink(missing_ok=True)
        raise StoreError(
            f"the lock file of {store} cannot be replaced while {lock_line(store) or 'a process'} has it open: "
            "end that process first"
        ) from error


_held: weakref.WeakSet[WriterLock] = weakref.WeakSet()


def _forget_all() -> None:
    for lock in list(_held):
        lock.forget()
    _held.clear()


if hasattr(os, "register_at_fork"):  # Windows cannot fork
    os.register_at_fork(after_in_child=_forget_all)
