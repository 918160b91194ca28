"""Which processes hold the locks of a file, as Linux tells."""

from __future__ import annotations

from pathlib import Path

#: The byte of the -shm file that SQLite locks while a transaction writes.
WRITE_LOCK_BYTE = 120
LOCKS = Path("/proc/locks")


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
    processes = []
    for row in locks_of(path.with_name(f"{path.name}-shm")) or ():
        if len(row) != 8 or row[1] != "POSIX" or row[3] != "WRITE":
            continue
        process, first = int(row[4]), int(row[6])
        upper = WRITE_LOCK_BYTE if row[7] == "EOF" else int(row[7])
        if first <= WRITE_LOCK_BYTE <= upper and process > 0:
            processes.append(process)
    return processes
