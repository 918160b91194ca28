"""Says what a file is, for the messages about a file of the wrong kind."""

from __future__ import annotations

import sqlite3
import tomllib
from contextlib import closing
from pathlib import Path

from turnout.storage.encoding.limits import read_file

#: The files of turnout by their application ids; a package above defines one of them.
KINDS = {0x7475726E: "a store of runs", 0x7475666C: "a fleet"}
SQLITE_MAGIC = b"SQLite format 3\x00"
#: The other files that a user may take for one of these, by their first bytes.
MAGIC = {b"PK\x03\x04": "a zip or npz file", b"\x1f\x8b": "a gzip file", b"%PDF": "a PDF file", b"\x89PNG": "a picture"}
PLAN_ENTRIES = {"rounds", "seeds", "world", "policy"}
MAX_PLAN = 1 << 22


def connect_immutable(path: Path) -> sqlite3.Connection:
    """Opens a connection that reads a database without its log, and without locks or files beside it.

    If this process has the database open, closing the file in any other way would release the locks that SQLite holds
    on it (POSIX), and another process could then delete the log with its acknowledged commits.

    While others read the database, a checkpoint moves only some pages of the log, so the file may be shorter than its
    first page says; SQLite accepts that if the schema may be repaired.
    """
    db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True, isolation_level=None)
    db.execute("PRAGMA writable_schema = ON")
    return db


def application_id(path: Path) -> int | None:
    """Returns the application id of a database, 0 if it has none; None for any other file."""
    if path.stat().st_size <= 1:  # SQLite takes such a file for an empty database
        return None
    with closing(connect_immutable(path)) as db:
        try:
            return int(db.execute("PRAGMA application_id").fetchone()[0])
        except sqlite3.DatabaseError:  # no process has a file open that is no database, or damaged at its beginning
            with path.open("rb") as file:
                header = file.read(72)
            return int.from_bytes(header[68:], "big") if header.startswith(SQLITE_MAGIC) else None


def describe_file(path: Path) -> str | None:
    """Returns what a file is, such as "a fleet" or "a plan in TOML"; None if that is unknown or cannot be read."""
    try:
        if path.is_dir():
            return "a folder"
        if not path.is_file():
            return None  # reading a pipe would wait
        if (number := application_id(path)) is not None:
            return KINDS.get(number, "a SQLite file of another program")
        with path.open("rb") as file:
            start = file.read(8)
        for magic, name in MAGIC.items():
            if start.startswith(magic):
                return name
        return "a plan in TOML" if _is_plan(path) else None
    except (OSError, EOFError):
        return None


def not_a(path: Path, wanted: str) -> str | None:
    """Returns "PATH is a fleet, not WANTED" for a file whose kind is known and differs from `wanted`, else None."""
    kind = describe_file(path)
    return None if kind in (None, wanted) else f"{path} is {kind}, not {wanted}"


def _is_plan(path: Path) -> bool:
    try:
        content = tomllib.loads(read_file(path, MAX_PLAN).decode())
    except (ValueError, RecursionError):
        return False
    return bool(PLAN_ENTRIES & set(content))
