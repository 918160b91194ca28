"""Which processes hold the locks of a SQLite database."""

from __future__ import annotations

from pathlib import Path

#: The byte of the -shm file that SQLite locks while a transaction writes.
WRITE_LOCK_BYTE = 120
LOCKS = Path("/proc/locks")


def writing_processes(path: Path) -> list[int]:
    """Returns the processes inside a write transaction of this database; empty if the system does not tell.

    The table of locks is read, because opening and closing the locked file would release the locks of this process.
    """
    try:
        inode = path.with_name(f"{path.name}-shm").stat().st_ino
        table = LOCKS.read_text(encoding="ascii")
    except OSError:
        return []
    processes = []
    for line in table.splitlines():
        # 7: POSIX  ADVISORY  WRITE 1234 fe:00:1234567 120 120
        fields = line.split()
        if len(fields) != 8 or fields[1] != "POSIX" or fields[3] != "WRITE":
            continue
        process, place, first, last = fields[4:]
        upper = WRITE_LOCK_BYTE if last == "EOF" else int(last)
        if place.rpartition(":")[2] == str(inode) and int(first) <= WRITE_LOCK_BYTE <= upper and int(process) > 0:
            processes.append(int(process))
    return processes
