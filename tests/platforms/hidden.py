"""Runs a program as if this were another system: python hidden.py macos|windows|bare PROGRAM [ARGUMENTS].

macos: no /proc, no locks of open file descriptions, fsync that leaves the cache of the disk alone.
windows: no fcntl, resource or fork; `msvcrt.locking`; open files cannot be renamed, replaced or deleted; folders cannot
be opened; names without some characters; text files have another encoding than UTF-8 if none is stated.
bare: windows without msvcrt.

Only what turnout itself does is restricted. Other packages are imported before, and behave as on Linux.
"""

from __future__ import annotations

import builtins
import ctypes
import errno
import fcntl
import importlib
import io
import multiprocessing
import os
import runpy
import shutil
import struct
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

#: What a program needs of other packages, and modules of Python that ask for the system.
IMPORTED_BEFORE = {
    "hold.py": (
        "ctypes.util",
        "getpass",
        "logging",
        "numpy",
        "resource",
        "socket",
        "sqlite3",
        "subprocess",
        "tempfile",
    ),
    "tour.py": ("asyncio", "concurrent.futures.process", "joblib", "rich.console", "typer.testing", "urllib.request"),
}
#: Attributes of `os` that Windows does not have.
POSIX_ONLY = (
    *("O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "fork", "getloadavg", "getuid", "geteuid", "killpg", "pread", "pwrite"),
    *("register_at_fork", "sched_getaffinity", "setsid", "statvfs", "uname"),
)
FORBIDDEN_IN_NAMES = set('<>:"|?*')
F_FULLFSYNC = 51
#: The number of flushes with F_FULLFSYNC.
full_flushes = 0


def hide_folders() -> None:
    """Hides /proc from Python code, and that there is a folder /dev/shm; files of tests may be in it."""

    def hiding(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(path: Any, *arguments: Any, **options: Any) -> Any:
            name = "" if isinstance(path, int) else os.fsdecode(path)
            if name.startswith("/proc/") or name == "/dev/shm":
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            return function(path, *arguments, **options)

        return wrapper

    os.stat, os.open = hiding(os.stat), hiding(os.open)
    io.open = builtins.open = hiding(io.open)


def become_macos() -> None:
    """Behaves as macOS where turnout might notice."""
    hide_folders()
    vars(os).pop("sched_getaffinity")
    for name in ("F_OFD_SETLK", "F_OFD_SETLKW", "F_OFD_GETLK"):
        vars(fcntl).pop(name, None)
    real = fcntl.fcntl

    def control(descriptor: int, command: int, argument: Any = 0) -> Any:
        global full_flushes
        if command == F_FULLFSYNC:
            full_flushes += 1
            os.fsync(descriptor)
            return 0
        # There, flock and fcntl exclude each other, so this would wait for the writer.
        assert command not in (fcntl.F_SETLK, fcntl.F_SETLKW), "a lock of a part of a file"
        return real(descriptor, command, argument)

    fcntl.fcntl = control  # type: ignore[assignment]
    fcntl.F_FULLFSYNC = F_FULLFSYNC  # type: ignore[attr-defined, unused-ignore]
    sys.platform = "darwin"


def become_windows(*, locking: bool = True) -> None:
    """Behaves as Windows where turnout might notice; without `locking`, files cannot be locked at all."""
    restrict_files()
    hide_folders()
    for name in POSIX_ONLY:
        vars(os).pop(name, None)
    os.O_BINARY = 0  # type: ignore[attr-defined, unused-ignore]
    os.kill = forbidden_kill
    if locking:
        sys.modules["msvcrt"] = fake_msvcrt()
    for name in ("fcntl", "resource", "pwd", "grp", "termios"):
        sys.modules[name] = None  # type: ignore[assignment]
    shutil._use_fd_functions = False  # type: ignore[attr-defined]
    multiprocessing.get_all_start_methods = lambda: ["spawn"]
    ctypes.WinDLL = lambda *_, **__: FakeKernel()  # type: ignore[attr-defined, unused-ignore]
    ctypes.get_last_error = lambda: 87  # type: ignore[attr-defined, unused-ignore]
    warnings.filterwarnings("error", category=EncodingWarning, module=r"turnout\.")
    sys.platform = "win32"


def forbidden_kill(process: int, number: int) -> None:
    """Fails, because it would interrupt or end the process."""
    raise AssertionError(f"os.kill({process}, {number})")


class FileIsOpen(PermissionError):
    """The error of Windows for a file that is open."""

    def __init__(self, path: Any) -> None:
        super().__init__(errno.EACCES, "The process cannot access the file because it is open", path)


class FakeKernel:
    """The functions of kernel32 with which turnout asks whether a process runs."""

    def __init__(self) -> None:
        self.OpenProcess = _Function(lambda access, inherit, process: process if _is_running(process) else 0)  # noqa: ARG005
        self.WaitForSingleObject = lambda handle, wait: 0x102 if _is_running(handle.value) else 0  # noqa: ARG005
        self.CloseHandle = lambda handle: 1  # noqa: ARG005


class _Function:
    restype: Any = None

    def __init__(self, function: Callable[..., int]) -> None:
        self._function = function

    def __call__(self, *arguments: int) -> int:
        return self._function(*arguments)


_real_kill, _real_readlink, _real_listdir = os.kill, os.readlink, os.listdir


def _is_running(process: int) -> bool:
    try:
        _real_kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def fake_msvcrt() -> ModuleType:
    """Returns a module with the locks of Windows: of bytes from the position of the file on, for one opening of it."""
    module = ModuleType("msvcrt")
    set_lock, write_lock, no_lock = fcntl.F_OFD_SETLK, fcntl.F_WRLCK, fcntl.F_UNLCK
    control = fcntl.fcntl

    def locking(descriptor: int, mode: int, count: int) -> None:
        kind = no_lock if mode == module.LK_UNLCK else write_lock
        start = os.lseek(descriptor, 0, os.SEEK_CUR)
        try:
            control(descriptor, set_lock, struct.pack("hhqqi", kind, os.SEEK_SET, start, count, 0))
        except BlockingIOError:
            raise PermissionError(errno.EACCES, "Permission denied") from None

    vars(module).update(locking=locking, LK_UNLCK=0, LK_LOCK=1, LK_NBLCK=2)
    return module


def restrict_files() -> None:
    """Refuses what Windows refuses: names with some characters, and changes of the names of open files."""
    real = SimpleNamespace(open=os.open, rename=os.rename, replace=os.replace, unlink=os.unlink, fsync=os.fsync)
    real.exists, real.isdir, real.io_open, real.mkdir = os.path.exists, os.path.isdir, io.open, os.mkdir
    flags_of = fcntl.fcntl

    def check_closed(path: Any) -> None:
        target = os.path.realpath(path)
        for process in ("self", *os.environ.get("ALSO", "").split()):
            for number in _real_listdir(f"/proc/{process}/fd"):
                try:
                    opened = _real_readlink(f"/proc/{process}/fd/{number}")
                except FileNotFoundError:  # it was closed in the meantime
                    continue
                if opened == target:
                    raise FileIsOpen(path)

    def check_name(path: Any) -> None:
        if not isinstance(path, int) and FORBIDDEN_IN_NAMES & set(Path(os.fsdecode(path)).name):
            raise OSError(errno.EINVAL, "Invalid argument", path)

    def open_(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        check_name(path)
        if real.isdir(path):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return int(real.open(path, flags, *arguments, **options))

    def io_open(path: Any, *arguments: Any, **options: Any) -> Any:
        check_name(path)
        return real.io_open(path, *arguments, **options)

    def mkdir(path: Any, *arguments: Any, **options: Any) -> None:
        check_name(path)
        real.mkdir(path, *arguments, **options)

    def rename(source: Any, target: Any, **options: Any) -> None:
        if real.exists(target):
            raise FileExistsError(errno.EEXIST, "File exists", target)
        check_closed(source)
        real.rename(source, target, **options)

    def replace(source: Any, target: Any, **options: Any) -> None:
        check_closed(source)
        check_closed(target)
        real.replace(source, target, **options)

    def unlink(path: Any, **options: Any) -> None:
        check_closed(path)
        real.unlink(path, **options)

    def fsync(descriptor: int) -> None:
        if flags_of(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        real.fsync(descriptor)

    os.open, os.rename, os.replace, os.fsync, os.mkdir = open_, rename, replace, fsync, mkdir  # type: ignore[assignment]
    os.unlink = os.remove = unlink
    io.open = builtins.open = io_open  # type: ignore[assignment]


def main(system: str, program: str, *arguments: str) -> None:
    """Runs a program as on this system."""
    assert "turnout" not in sys.modules
    for name in (*IMPORTED_BEFORE["hold.py"], *IMPORTED_BEFORE[Path(program).name]):
        importlib.import_module(name)
    if system == "macos":
        become_macos()
    else:
        become_windows(locking=system == "windows")
    sys.modules["matplotlib"] = None  # type: ignore[assignment]  # saves seconds; figures are optional
    sys.argv = [program, *arguments]
    runpy.run_path(program, run_name="__main__")
    if system == "macos":
        print(f"{full_flushes} full flushes")


if __name__ == "__main__":
    main(*sys.argv[1:])
