"""Answers to requests of a service, so that a request that is sent twice is answered twice and executed once.

They are stored in the transaction of what the request changed.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from turnout.storage.files.database import single_value

#: For how long answers are kept, in seconds, and how many at most.
KEPT_SECONDS, MOST_ANSWERS = 86_400.0, 200_000
#: How many old answers are deleted whenever one is written.
DROPPED_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """The answer to a request.

    Attributes:
        key: The digest of the key that the sender chose for the request, and of who the sender is.
        request: The digest of the request: another one must not have the same key.
        answer: The answer, as JSON in which characters beyond ASCII are not escaped.
        at: When it was given, in seconds since 1970.
        checksum: The checksum that is stored with it; by default, the right one.
    """

    key: bytes
    request: bytes
    answer: str
    at: float
    checksum: int | None = None

    @property
    def right_checksum(self) -> int:
        """The checksum of the other values."""
        return zlib.crc32(self.answer.encode(), zlib.crc32(self.request, zlib.crc32(self.key)))

    @property
    def is_intact(self) -> bool:
        """Whether the stored checksum is the right one."""
        return self.checksum in (None, self.right_checksum)


def read_answer(db: sqlite3.Connection, key: bytes) -> StoredAnswer | None:
    """Returns the answer with this key; None if there is none."""
    stored = db.execute("SELECT key, request, answer, at, seal FROM answers WHERE key = ?", (key,)).fetchone()
    return None if stored is None else StoredAnswer(*stored)


def write_answer(db: sqlite3.Connection, answer: StoredAnswer) -> None:
    """Writes an answer, and deletes a few of the oldest that are no longer kept."""
    values = (answer.key, answer.request, answer.answer, answer.at, answer.right_checksum)
    insert = "INSERT INTO answers (key, request, answer, at, seal) VALUES (?, ?, ?, ?, ?) RETURNING number"
    number = int(single_value(db, insert, *values))
    db.execute(
        "DELETE FROM answers WHERE number IN (SELECT number FROM answers ORDER BY number LIMIT ?) "
        "AND (at < ? OR number <= ?)",
        (DROPPED_AT_ONCE, answer.at - KEPT_SECONDS, number - MOST_ANSWERS),
    )


def drop_answers_about(db: sqlite3.Connection, client: str) -> None:
    """Deletes all answers that contain the id of a client."""
    text = json.dumps(client, ensure_ascii=False)
    db.execute("DELETE FROM answers WHERE INSTR(answer, ?)", (text,))


def stored_answers(db: sqlite3.Connection) -> Iterator[StoredAnswer]:
    """Yields all answers, the oldest first."""
    for row in db.execute("SELECT key, request, answer, at, seal FROM answers ORDER BY number"):
        yield StoredAnswer(*row)
