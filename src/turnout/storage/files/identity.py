"""Whether a file has all acknowledged commits, and is still the one that a process has opened.

The file is read by SQLite alone: closing another descriptor of it would release the locks that SQLite holds on it
(POSIX), and another process could then delete the log with its acknowledged commits.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from turnout.errors import StoreError
from turnout.storage.files.database import StoreConnection, log_path, log_size
from turnout.storage.files.identify import connect_immutable
from turnout.storage.files.lock import Acknowledged, lock_path, read_acknowledged, states_commit
from turnout.storage.store import single_value

#: For how long a file that looks overwritten must stay as it is until it is refused, in seconds: another process may be
#: moving the log into it, or have been stopped while it did so.
QUIET_SECONDS, PAUSE = 0.5, 0.002
#: The clock of the times of files; where it is unknown, that of the system is as precise as they are.
_FILE_CLOCK = getattr(time, "CLOCK_REALTIME_COARSE", None)


def counters(db: sqlite3.Connection) -> dict[str, str]:
    """Returns the id, the number of commits and the mark of a file."""
    values = dict(db.execute("SELECT key, value FROM meta WHERE key IN ('file_id', 'commits', 'in_use')"))
    if len(values) < 3:
        raise StoreError("the file is damaged (it does not count its commits): restore it from a backup")
    return values


def newest_commit(db: sqlite3.Connection) -> Acknowledged:
    """Returns the newest commit that a connection finds."""
    stored = counters(db)
    return Acknowledged(stored["file_id"], int(stored["commits"]))


def find_lost_commits(path: Path, db: StoreConnection) -> str:
    """Returns why a file is older than what was acknowledged, or may be; "" if nothing is known to be lost.

    Args:
        path: The file, with all symbolic links resolved.
        db: A connection to it that can only read.
    """
    stated = read_acknowledged(path)  # before the counter in the file, which other processes may increase
    stored = counters(db)
    commits = int(stored["commits"])
    if stated is not None and stored["file_id"] == stated.file_id and commits < stated.commits:
        return (
            f"{path} has lost {stated.commits - commits:,} of {stated.commits:,} commits that were acknowledged: "
            f"{_describe_log(path)}"
        )
    has_log = db.stamp is not None or single_value(db, "PRAGMA journal_mode") == "wal"
    if stored["in_use"] == "1" and has_log and not states_commit(path):
        return (
            f"{path} is a copy of a file in use, without its lock file {lock_path(path).name}: newer commits may be "
            "missing"
        )
    return ""


def _describe_log(path: Path) -> str:
    log_file, size = log_path(path), log_size(path)
    return f"its log {log_file.name} {f'was truncated or damaged ({size:,} bytes)' if size else 'is missing or empty'}"


class FileIdentity:
    """Notices that a file that is in use, or its log, was deleted, replaced or overwritten.

    Only checkpoints change the file itself, by whatever process: they move pages from the log into it, so that the
    number of commits in the file without its log grows, up to the number of all commits. It is read when the times or
    the size of the file have changed. Content that was written over the file has a smaller number, or another id.

    Content of the same file that has a number in between is accepted: the log contains every page that was changed
    since the last checkpoint, and nothing is lost.

    Args:
        path: The file, which a connection of this process has opened.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._log = path, log_path(path)
        self._inode, self._log_inode = _inode(self._path), _inode(self._log)
        self._moved = _read_moved(path)
        self._checked: tuple[int, ...] | None = None

    @property
    def is_in_place(self) -> bool:
        """Whether the file still has its name, under which a new connection would open it."""
        return _inode(self._path) == self._inode

    def check(self, db: sqlite3.Connection) -> None:
        """Raises StoreError if the changes of a connection would be in another file, or in none."""
        status, log_inode = _status(self._path), _inode(self._log)
        if status is None or status.st_ino != self._inode:
            raise _lost(self._path, "deleted or replaced")
        if self._log_inode is None:  # a copy made by VACUUM INTO has a log once a scheduler has opened it
            self._log_inode = log_inode
        elif log_inode != self._log_inode:
            raise _lost(self._log, "deleted or replaced")
        if _stamp(status) != self._checked:
            self._check_content(db)

    def _check_content(self, db: sqlite3.Connection) -> None:
        seen, since = None, time.monotonic()
        while (status := _status(self._path)) is not None:
            is_final = _ticks_after(status)  # a later change in the same tick of the clock would leave the same times
            if self._has_own_content(db):
                self._checked = _stamp(status) if is_final else None
                return
            if _stamp(status) != seen:
                seen, since = _stamp(status), time.monotonic()
            elif time.monotonic() - since > QUIET_SECONDS:
                break
            time.sleep(PAUSE)
        raise _lost(self._path, "overwritten")

    def _has_own_content(self, db: sqlite3.Connection) -> bool:
        """Returns whether the file is as old or new as it can be; `db` reads it with its log."""
        stated = read_acknowledged(self._path)  # in this order: other processes may write in between
        moved = _read_moved(self._path)
        newest = newest_commit(db)
        if moved is None or moved.file_id != newest.file_id:
            return False
        # Another file may have left the lock file, if no scheduler has opened this one yet.
        acknowledged = stated.commits if stated is not None and stated.file_id == newest.file_id else 0
        before = moved if self._moved is None else self._moved
        if before.file_id != moved.file_id or not before.commits <= moved.commits <= newest.commits >= acknowledged:
            return False
        self._moved = moved
        return True


def _lost(path: Path, what: str) -> StoreError:
    return StoreError(
        f"{path} was {what} while it was in use, so nothing more can be stored: end this process, then restore the "
        "files and open them again"
    )


def _read_moved(path: Path) -> Acknowledged | None:
    """Returns the newest commit in a file without its log; None if there is none, or it cannot be read now."""
    try:
        with closing(connect_immutable(path)) as db:
            return newest_commit(db)
    except (sqlite3.Error, StoreError, ValueError):
        return None


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _inode(path: Path) -> int | None:
    status = _status(path)
    return None if status is None else status.st_ino


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _ticks_after(status: os.stat_result) -> bool:
    """Returns whether a change of a file from now on gives it later times."""
    now = time.time_ns() if _FILE_CLOCK is None else time.clock_gettime_ns(_FILE_CLOCK)
    return now > status.st_ctime_ns
