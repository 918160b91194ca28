"""The lock file of a store: an advisory lock for its only writer, and the number of its last acknowledged commit.

The operating system releases the lock when the process ends. The number is in the first line. It is written after each
commit, without flushing it to disk. A killed process leaves what it has written in the page cache, so a database with
fewer commits than this has lost some. After a power failure the number can only be too small.
"""

from __future__ import annotations

import io
import os
import re
import socket
import time
import weakref
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from turnout.errors import StoreError
from turnout.storage.files import system

#: The byte of the -shm file that SQLite locks while a transaction writes.
WRITE_LOCK_BYTE = 120
LOCKS = Path("/proc/locks")
#: The length of the first line, in bytes. The second line names the writer.
LINE = 64
#: How often a line that another process may be writing is read or locked again, and the seconds in between.
ATTEMPTS, PAUSE = 20, 0.001
#: How a line that states a commit begins.
STATED = b"commit "
_PATTERN = re.compile(rb"commit (\d{20}) of ([0-9a-f]{16}) ([0-9a-f]{8}) *\n")


def locks_of(path: Path) -> list[list[str]] | None:
    """Returns the rows of the system's table of locks that are about a file; None if the system does not tell.

    The table is read, because opening and closing the locked file would release the locks of this process.
    """
    try:
        inode, table = str(path.stat().st_ino), LOCKS.read_text(encoding="ascii")
    except OSError:
        return None
    # 7: POSIX  ADVISORY  WRITE 1234 fe:00:1234567 120 120
    rows = [line.split() for line in table.splitlines()]
    return [row for row in rows if any(field.count(":") == 2 and field.endswith(f":{inode}") for field in row)]


def writing_processes(path: Path) -> list[int]:
    """Returns the processes inside a write transaction of this database; empty if the system does not tell."""
    processes = set[int]()  # a table may list one process several times, with other ranges
    for row in locks_of(path.with_name(f"{path.name}-shm")) or ():
        if len(row) != 8 or row[1] != "POSIX" or row[3] != "WRITE":
            continue
        process, first = int(row[4]), int(row[6])
        upper = WRITE_LOCK_BYTE if row[7] == "EOF" else int(row[7])
        if first <= WRITE_LOCK_BYTE <= upper and process > 0:
            processes.add(process)
    return sorted(processes)


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
