"""Changes of a fleet's file, each inside a write transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from turnout.errors import StoreError
from turnout.scheduler.journal.redaction import Redaction, start_redaction
from turnout.scheduler.journal.schema import INITIAL, INITIAL_DIGEST, KEEP_AVAILABILITY_UP_TO
from turnout.scheduler.records import (
    OpenRound,
    RecordedOffer,
    Turn,
    digest_of,
    offer_digest,
    pack_offer,
    pack_open,
    settings_digest,
    update_turns,
)
from turnout.store.packing import pack_compact_snapshot

#: The most clients of one join event, so that it can be read and redacted in a short time.
JOINED_AT_ONCE = 20_000


class Changes:
    """Changes a fleet's file. `Journal.writing` creates it, and all its changes are committed together or not at all.

    Args:
        db: The connection, inside a write transaction.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def add_clients(self, first: int, ids: Sequence[str]) -> None:
        """Adds clients from row `first` on, with one join event or, if there are many, several."""
        for start in range(0, len(ids), JOINED_AT_ONCE):
            text = json.dumps(ids[start : start + JOINED_AT_ONCE], ensure_ascii=False)
            self._db.execute("INSERT INTO clients SELECT ? + key, value FROM json_each(?)", (first + start, text))
            self.add_event("join", text.encode())

    def add_event(self, kind: str, data: bytes, availability: bytes | None = None) -> int:
        """Appends an event whose digest covers all events before it; returns its number."""
        last = self._db.execute("SELECT seq, digest FROM events ORDER BY seq DESC LIMIT 1").fetchone()
        seq, previous = (1, b"") if last is None else (int(last[0]) + 1, last[1])
        digest = digest_of(previous, kind, data)
        self._db.execute("INSERT INTO events VALUES (?, ?, ?, ?)", (seq, kind, data, digest))
        self._db.execute("UPDATE meta SET value = ? WHERE key = 'head'", (digest.hex(),))
        if availability is not None:
            self._db.execute("INSERT INTO masks VALUES (?, ?)", (seq, availability))
        return seq

    def remove_events(self, numbers: Sequence[int]) -> None:
        """Removes events; later ones get new numbers and digests. Snapshots, which contain them, are deleted."""
        first = min(numbers)
        later = self._db.execute(
            "SELECT e.seq, e.kind, e.data, m.data FROM events e LEFT JOIN masks m ON m.seq = e.seq WHERE e.seq >= ? "
            "ORDER BY e.seq",
            (first,),
        ).fetchall()
        for table in ("events", "masks"):
            self._db.execute(f"DELETE FROM {table} WHERE seq >= ?", (first,))
        self._db.execute("DELETE FROM snapshot")
        for seq, kind, data, availability in later:
            if seq not in numbers:
                self.add_event(kind, data, availability)
        last = self._db.execute("SELECT digest FROM events ORDER BY seq DESC LIMIT 1").fetchone()
        self._db.execute("UPDATE meta SET value = ? WHERE key = 'head'", ("" if last is None else last[0].hex(),))

    def put_settings(self, settings: Mapping[str, Any]) -> None:
        """Writes amended settings; those with which the fleet was created are kept."""
        meta = dict(self._db.execute("SELECT key, value FROM meta WHERE key IN ('settings', 'seal')"))
        initial = [(INITIAL, meta["settings"]), (INITIAL_DIGEST, meta["seal"])]
        self._db.executemany("INSERT OR IGNORE INTO meta VALUES (?, ?)", initial)
        text = json.dumps(settings, sort_keys=True)
        present = [(text, "settings"), (settings_digest(text), "seal")]
        self._db.executemany("UPDATE meta SET value = ? WHERE key = ?", present)

    def put_open_round(self, opened: OpenRound, ids: Sequence[str]) -> None:
        """Writes the open round and the turns of its cohort, before the cohort is returned to the server."""
        data = pack_open(opened)
        digest = digest_of(b"", str(opened.round), data)
        self._db.execute("INSERT INTO open_round VALUES (?, ?, ?)", (opened.round, data, digest))
        turns = [Turn(opened.round, int(row), client) for row, client in zip(opened.rows, ids, strict=True)]
        self._db.executemany(
            "INSERT INTO turns (round, row, id, seal) VALUES (?, ?, ?, ?)",
            [(turn.round, turn.row, turn.id, turn.checksum) for turn in turns],
        )

    def put_offer(self, offer: RecordedOffer) -> None:
        """Writes the offer from which the cohort of the open round was selected."""
        data, volunteers = pack_offer(offer)
        values = (offer.round, volunteers, data, offer_digest(offer.round, volunteers, data))
        self._db.execute("INSERT INTO offers VALUES (?, ?, ?, ?)", values)

    def drop_offer(self, round: int) -> None:
        """Deletes the offer of a round."""
        self._db.execute("DELETE FROM offers WHERE round = ?", (round,))

    def put_turns(self, turns: Sequence[Turn]) -> None:
        """Updates turns with their outcomes."""
        update_turns(self._db, turns)

    def put_closed_round(self, round: int) -> None:
        """Writes the number of the last closed round, which reporting processes read without replaying events."""
        self._db.execute("UPDATE meta SET value = ? WHERE key = 'round'", (str(round),))

    def drop_open_round(self, round: int) -> None:
        """Deletes the open round after it was closed or abandoned; it must be this one."""
        deleted = self._db.execute("DELETE FROM open_round WHERE round = ?", (round,)).rowcount
        if deleted != 1:
            raise StoreError(f"round {round} is not open in the file: it was closed or abandoned before")

    def drop_turns(self, round: int) -> None:
        """Deletes the turns of a round that was abandoned."""
        self._db.execute("DELETE FROM turns WHERE round = ?", (round,))

    def put_snapshot(self, seq: int, state: Mapping[str, Any]) -> None:
        """Writes the state after event `seq`, and deletes older snapshots.

        In a large fleet the availability of earlier rounds is deleted as well, because the snapshot replaces it.
        """
        self._db.execute("DELETE FROM snapshot")
        data = pack_compact_snapshot(state)
        self._db.execute("INSERT INTO snapshot VALUES (?, ?, ?)", (seq, data, digest_of(b"", str(seq), data)))
        if int(state["clients"]) > KEEP_AVAILABILITY_UP_TO:
            self._db.execute("DELETE FROM masks WHERE seq <= ?", (seq,))

    def forget(self, row: int, client: str, name: str, since: int) -> int:
        """Replaces the id of a client, starts to remove all that it reported, and returns the number of the event.

        `Journal.redact` removes the rest in steps. A snapshot must be written in the same transaction, because the
        state cannot be computed from redacted events.

        Args:
            row: The row of the client.
            client: Its id.
            name: The name that replaces its id.
            since: The turns after this round can still be reported, so they are redacted at once.
        """
        start_redaction(self._db, Redaction(row, client, name), since)
        return self.add_event("forget", json.dumps({"row": row, "name": name}).encode())
