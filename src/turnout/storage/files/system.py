"""What the store needs from the operating system: locks of files, flushes to disk, atomic writes, running processes.

Linux and macOS lock files with `fcntl`, Windows with `msvcrt`. A lock belongs to the open file: it ends when the file
is closed or its process ends, and two openings of one process exclude each other too.
"""

from __future__ import annotations

import os
import struct
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import BinaryIO

from turnout.errors import SettingError, StoreError

fcntl: ModuleType | None
msvcrt: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None
try:
    import msvcrt
except ImportError:  # everywhere else
    msvcrt = None

#: On Windows, locked bytes cannot be read by others: the lock is on a byte that no file here has.
LOCKED_BYTE = 1 << 30
#: Whether a part of a file can be locked for one opening of it, in addition to a lock of the whole file. On other
#: systems than Linux the two kinds of locks exclude each other, or belong to the process.
CAN_LOCK_PARTS = sys.platform == "linux" and hasattr(fcntl, "F_OFD_SETLK")
#: Windows translates line ends in files that are opened without this flag.
BINARY: int = getattr(os, "O_BINARY", 0)


def try_lock(descriptor: int) -> bool:
    """Locks a file for this opening of it without waiting; returns whether no other opening holds the lock."""
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        elif msvcrt is not None:
            os.lseek(descriptor, LOCKED_BYTE, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            raise StoreError(
                "this system can lock no files (Python has neither fcntl nor msvcrt), so a second writer could not be "
                "noticed: open the file with read_only=True, or write it on another system"
            )
    except (BlockingIOError, PermissionError):  # Windows denies permission to lock what is locked
        return False
    return True


def unlock(descriptor: int) -> None:
    """Releases the lock that `try_lock` took."""
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    elif msvcrt is not None:
        os.lseek(descriptor, LOCKED_BYTE, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)


def try_lock_part(descriptor: int, length: int) -> bool:
    """Locks the first bytes of a file, beside a lock of the whole file; only where `CAN_LOCK_PARTS` holds."""
    assert fcntl is not None
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, length, 0))
    except (BlockingIOError, PermissionError):
        return False
    return True


def read_at(descriptor: int, length: int, offset: int) -> bytes:
    """Reads bytes at an offset of an open file."""
    if hasattr(os, "pread"):
        return os.pread(descriptor, length, offset)
    os.lseek(descriptor, offset, os.SEEK_SET)
    return os.read(descriptor, length)


def write_at(descriptor: int, content: bytes, offset: int) -> None:
    """Writes bytes at an offset of an open file."""
    if hasattr(os, "pwrite"):
        os.pwrite(descriptor, content, offset)
        return
    os.lseek(descriptor, offset, os.SEEK_SET)
    os.write(descriptor, content)


def sync_file(descriptor: int) -> None:
    """Flushes a file to disk; on macOS also the cache of the disk, which its fsync leaves alone."""
    if fcntl is not None and hasattr(fcntl, "F_FULLFSYNC"):
        try:
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
        except OSError:  # some file systems only have fsync
            os.fsync(descriptor)
        return
    os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """Flushes the folder to disk, so that a new file name survives a power failure.

    Windows cannot flush folders. NTFS logs the changes of names, in their order.
    """
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync_file(descriptor)
    finally:
        os.close(descriptor)


def is_running(process: int) -> bool:
    """Returns whether a process of this host runs, or has ended and its parent has not noticed yet."""
    if sys.platform == "win32":
        return _is_running_on_windows(process)
    try:
        os.kill(process, 0)
    except PermissionError:  # it runs, as another user
        return True
    except (ProcessLookupError, OverflowError):  # no system has process numbers that overflow
        return False
    return True


def _is_running_on_windows(process: int) -> bool:
    """Asks the kernel, because `os.kill` of Windows ends the process or interrupts its console."""
    import ctypes

    may_wait, denied, timeout = 0x00100000, 5, 0x102  # SYNCHRONIZE, ERROR_ACCESS_DENIED, WAIT_TIMEOUT
    if not 0 <= process < 1 << 32:
        return False
    kernel = ctypes.WinDLL("kernel32", use_last_error=True)  # type: ignore[attr-defined]
    kernel.OpenProcess.restype = ctypes.c_void_p
    handle = kernel.OpenProcess(may_wait, False, process)
    if not handle:
        return bool(ctypes.get_last_error() == denied)  # type: ignore[attr-defined]
    try:
        return bool(kernel.WaitForSingleObject(ctypes.c_void_p(handle), 0) == timeout)
    finally:
        kernel.CloseHandle(ctypes.c_void_p(handle))


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
