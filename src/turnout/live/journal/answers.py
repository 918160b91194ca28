"""What a service stores in the file of its fleet: its answers, and digests of its access tokens.

A request that is sent twice is answered twice and executed once: its answer is stored in the transaction of what it
changed. The tokens of a client are deleted in the transaction that forgets it. The
table of tokens is created with the first.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from turnout.live.journal.schema import put_meta
from turnout.storage.store import Connection, single_value

TOKENS = """CREATE TABLE IF NOT EXISTS tokens (
    id TEXT PRIMARY KEY, digest BLOB NOT NULL, role TEXT NOT NULL, client TEXT, label TEXT NOT NULL,
    created REAL NOT NULL, expires REAL, revoked REAL
) WITHOUT ROWID"""
TOKENS_BY_CLIENT = "CREATE INDEX IF NOT EXISTS tokens_by_client ON tokens (client) WHERE client IS NOT NULL"
#: For how long answers are kept, in seconds, and how many at most.
KEPT_SECONDS, MAX_ANSWERS = 86_400.0, 200_000
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


def read_answer(db: Connection, key: bytes) -> StoredAnswer | None:
    """Returns the answer with this key; None if there is none."""
    stored = db.execute("SELECT key, request, answer, at, seal FROM answers WHERE key = ?", (key,)).fetchone()
    return None if stored is None else StoredAnswer(*stored)


def write_answer(db: Connection, answer: StoredAnswer) -> None:
    """Writes an answer, and deletes a few of the oldest that are no longer kept."""
    values = (answer.key, answer.request, answer.answer, answer.at, answer.right_checksum)
    db.execute("DELETE FROM answers WHERE key = ?", (answer.key,))  # a stepped call has stored its answer so far
    insert = "INSERT INTO answers (key, request, answer, at, seal) VALUES (?, ?, ?, ?, ?) RETURNING number"
    number = int(single_value(db, insert, *values))
    db.execute(
        "DELETE FROM answers WHERE number IN (SELECT number FROM answers ORDER BY number LIMIT ?) "
        "AND (at < ? OR number <= ?)",
        (DROPPED_AT_ONCE, answer.at - KEPT_SECONDS, number - MAX_ANSWERS),
    )


def drop_answers_about(db: Connection, client: str) -> None:
    """Deletes all answers that contain the id of a client."""
    text = json.dumps(client, ensure_ascii=False)
    db.execute("DELETE FROM answers WHERE REPLACE(answer, ?, '') <> answer", (text,))


def stored_answers(db: Connection) -> Iterator[StoredAnswer]:
    """Yields all answers, the oldest first."""
    for row in db.execute("SELECT key, request, answer, at, seal FROM answers ORDER BY number"):
        yield StoredAnswer(*row)


def has_tokens(db: Connection) -> bool:
    """Returns whether any token was ever stored in the file."""
    return bool(single_value(db, db.dialect.COUNT_TABLES, "tokens"))


def drop_tokens_of(db: Connection, client: str) -> None:
    """Deletes all tokens of a client, with its id."""
    if has_tokens(db):
        db.execute("DELETE FROM tokens WHERE client = ?", (client,))
        note_tokens_changed(db)


def note_tokens_changed(db: Connection) -> None:
    """Increases the version of the tokens, so that services read them again."""
    put_meta(db, "tokens", str(tokens_version(db) + 1))


def tokens_version(db: Connection) -> int:
    """Returns a number that increases whenever a token is created, revoked or deleted; 0 before the first."""
    version = db.execute("SELECT value FROM meta WHERE key = 'tokens'").fetchone()
    return 0 if version is None else int(version[0])
