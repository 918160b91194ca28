"""Changes of a fleet's file, each inside a write transaction."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnout.errors import StoreError
from turnout.live.identifiers import LAST_ROUND
from turnout.live.journal import summary as summaries
from turnout.live.journal.answers import StoredAnswer, drop_answers_about, drop_tokens_of, write_answer
from turnout.live.journal.schema import INITIAL, INITIAL_DIGEST, KEEP_AVAILABILITY_UP_TO, put_meta, update_turns
from turnout.live.journal.turns import Redaction, pending_redactions, start_redaction
from turnout.live.retention import MIN_ROUNDS, Retention
from turnout.live.turns import records
from turnout.live.turns.rounds.records import OpenRound, pack_open
from turnout.live.turns.slots.records import RunningTurnRecord, pack_running_turn
from turnout.storage.encoding.packing import copied, differences, pack_snapshot
from turnout.storage.store import Connection

#: The most clients of one join event, so that it can be read and redacted in a short time.
JOINED_AT_ONCE = 20_000
#: The number of clients from which snapshots may consist of the differences to an earlier one.
INCREMENTAL_FROM = 20_000


@dataclass(slots=True, eq=False)
class CompleteSnapshot:
    """The last complete snapshot of a large fleet, whose state this process keeps to write only what differs from it.

    Attributes:
        event: The number of the event after which it was taken.
        digest: The digest that is stored with it.
        at: When it was taken, in ISO format.
        state: The state.
        size: The number of its bytes.
        differences: The number of bytes of all differences to it that were written.
    """

    event: int
    digest: bytes
    at: str
    state: Mapping[str, Any]
    size: int
    differences: int = 0


class Changes:
    """Changes a fleet's file. `Journal.writing` creates it, and all its changes are committed together or not at all.

    Args:
        db: The connection, inside a write transaction; queries with it see the changes.
    """

    def __init__(self, db: Connection) -> None:
        self.db = db

    def add_clients(self, first: int, ids: Sequence[str]) -> None:
        """Adds clients from row `first` on, with one join event or, if there are many, several."""
        for start in range(0, len(ids), JOINED_AT_ONCE):
            text = json.dumps(ids[start : start + JOINED_AT_ONCE], ensure_ascii=False)
            self.db.execute(self.db.dialect.ADD_CLIENTS, (first + start, text))
            self.add_event("join", text.encode())

    def add_event(self, kind: str, data: bytes, availability: bytes | None = None) -> int:
        """Appends an event whose digest covers all events before it; returns its number."""
        last, previous = summaries.last_event(self.db)
        seq = last + 1
        digest = records.digest_of(previous, kind, data)
        self.db.execute("INSERT INTO events VALUES (?, ?, ?, ?)", (seq, kind, data, digest))
        self.db.execute("UPDATE meta SET value = ? WHERE key = 'head'", (digest.hex(),))
        if availability is not None:
            self.db.execute("INSERT INTO masks VALUES (?, ?)", (seq, availability))
        return seq

    def put_settings(self, settings: Mapping[str, Any]) -> None:
        """Writes amended settings; those with which the fleet was created are kept."""
        meta = dict(self.db.execute("SELECT key, value FROM meta WHERE key IN ('settings', 'seal')"))
        initial = [(INITIAL, meta["settings"]), (INITIAL_DIGEST, meta["seal"])]
        self.db.executemany("INSERT INTO meta VALUES (?, ?) ON CONFLICT DO NOTHING", initial)
        text = json.dumps(settings, sort_keys=True)
        present = [(text, "settings"), (records.settings_digest(text), "seal")]
        self.db.executemany("UPDATE meta SET value = ? WHERE key = ?", present)

    def put_open_round(self, opened: OpenRound, ids: Sequence[str]) -> None:
        """Writes the open round and the turns of its cohort, before the cohort is returned to the server."""
        self._put_open(opened.round, pack_open(opened), dict(zip(opened.rows.tolist(), ids, strict=True)))

    def put_running_turns(self, running_turns: Sequence[RunningTurnRecord], ids: Sequence[str]) -> None:
        """Writes turns that are running, of the clients with these ids, before they are returned to the server."""
        for running_turn, client in zip(running_turns, ids, strict=True):
            self._put_open(running_turn.decision, pack_running_turn(running_turn), {running_turn.row: client})

    def _put_open(self, number: int, data: bytes, ids: Mapping[int, str]) -> None:
        """Writes an open round, or a turn that is running, and the turns of the clients with these rows and ids."""
        self.db.execute(
            "INSERT INTO open_round VALUES (?, ?, ?)", (number, data, records.digest_of(b"", str(number), data))
        )
        turns = [records.Turn(number, row, client) for row, client in ids.items()]
        self.db.executemany(
            "INSERT INTO turns (round, row, id, seal) VALUES (?, ?, ?, ?)",
            [(turn.round, turn.row, turn.id, turn.checksum) for turn in turns],
        )

    def put_offer(self, offer: records.RecordedOffer, at: str) -> None:
        """Writes the offer from which the cohort of the open round was selected, at the time `at`."""
        data, available = records.pack_offer(offer)
        values = (offer.round, available, data, records.offer_digest(offer.round, available, data), at)
        self.db.execute("INSERT INTO offers (round, available, data, digest, at) VALUES (?, ?, ?, ?, ?)", values)

    def put_turns(self, turns: Sequence[records.Turn]) -> None:
        """Updates turns with their outcomes."""
        update_turns(self.db, turns)

    def put_closed_round(self, round: int) -> None:
        """Writes the number of the last closed round, which reporting processes read without replaying events."""
        self.db.execute("UPDATE meta SET value = ? WHERE key = 'round'", (str(round),))

    def put_writer_metrics(self, figures: Mapping[str, Any]) -> None:
        """Writes figures about this process, for those who read the file."""
        put_meta(self.db, "figures", json.dumps(figures))

    def put_answer(self, answer: StoredAnswer) -> None:
        """Writes the answer to a request, in place of what it was so far, and deletes a few that are no longer kept."""
        write_answer(self.db, answer)

    def drop_open_round(self, round: int) -> None:
        """Deletes the open round, or a turn that is running, when it has ended; it must be open."""
        deleted = self.db.execute("DELETE FROM open_round WHERE round = ?", (round,)).rowcount
        if deleted != 1:
            raise StoreError(f"round {round} is not open in the file: it was closed or abandoned before")

    def abandon(self, round: int) -> None:
        """Deletes the open round, its offer and its turns."""
        self.drop_open_round(round)
        for table in ("offers", "turns"):
            self.db.execute(f"DELETE FROM {table} WHERE round = ?", (round,))

    def put_snapshot(
        self,
        seq: int,
        state: Mapping[str, Any],
        at: str,
        retention: Retention | None = None,
        base: CompleteSnapshot | None = None,
    ) -> CompleteSnapshot | None:
        """Writes the state after event `seq`, and deletes older snapshots; returns the base of the next one.

        In a large fleet the availability of earlier rounds is deleted as well, because the snapshot replaces it. Such a
        snapshot consists of the differences to its base, which is kept, until a complete one takes less space than
        these: the next snapshots have it as their base.

        Args:
            seq: The number of the event.
            state: The state.
            at: The present time, in ISO format.
            retention: For how long rounds are kept. One snapshot is then kept in each quarter of that period: when the
                rounds before it are no longer kept, it becomes the summary of them.
            base: What this method returned when it was called last, if the state in memory was not loaded since.
        """
        former, data = base, None if base is None else self._pack_differences(base, seq, state, at, retention)
        if data is None:
            base, data = None, pack_snapshot(state, compact=True)
        self._delete_snapshots(seq, retention, None if base is None else base.event)
        self._insert_snapshot(seq, data, state, at)
        if int(state["clients"]) > KEEP_AVAILABILITY_UP_TO:
            self.db.execute("DELETE FROM masks WHERE seq <= ?", (seq,))
        if base is None and int(state["clients"]) >= INCREMENTAL_FROM:
            if former is not None:
                former.digest = b""  # it cannot be a base any more, whatever interrupts this
            copy = copied(state, {} if former is None else former.state)
            base = CompleteSnapshot(seq, _snapshot_digest(seq, data), at, copy, len(data))
        return base

    def _pack_differences(
        self, base: CompleteSnapshot, seq: int, state: Mapping[str, Any], at: str, retention: Retention | None
    ) -> bytes | None:
        """Returns the differences of a state to a snapshot; None if a complete snapshot must be written."""
        stored = self.db.execute("SELECT digest FROM snapshot WHERE seq = ?", (base.event,)).fetchone()
        if seq == base.event or stored is None or records.as_bytes(stored[0]) != base.digest:
            return None  # it is replaced, or was not committed
        base_round, round_ = int(base.state["round"]), int(state["round"])
        if retention is not None and retention.has_quarter_passed(base_round, base.at, round_, at):
            return None  # only complete ones become summaries
        data = pack_snapshot(differences(base.state, state), compact=True)
        base.differences += len(data)
        return data if base.differences < base.size else None

    def _insert_snapshot(self, seq: int, data: bytes, state: Mapping[str, Any], at: str) -> None:
        values = (seq, data, _snapshot_digest(seq, data), int(state["round"]), at)
        self.db.execute("INSERT INTO snapshot (seq, data, digest, round, at) VALUES (?, ?, ?, ?, ?)", values)

    def _delete_snapshots(self, seq: int, retention: Retention | None, base: int | None) -> None:
        """Deletes snapshots before the one after event `seq`, whose base is that after event `base`, if it has one."""
        former = self.db.execute(summaries.SELECT_BASE).fetchone()
        complete_until = LAST_ROUND if former is None else int(former[0])
        kept_round, kept_at = summaries.read_summary(self.db).round, None
        for number, round_, at in self.db.execute("SELECT seq, round, at FROM snapshot ORDER BY seq").fetchall():
            if (
                retention is not None
                and number < seq
                and number <= complete_until
                and retention.has_quarter_passed(kept_round, kept_at, round_, at)
            ):
                kept_round, kept_at = round_, at
            elif number != base:
                self.db.execute("DELETE FROM snapshot WHERE seq = ?", (number,))
        self.db.execute("DELETE FROM meta WHERE key = 'base'")
        if base is not None:
            put_meta(self.db, "base", str(base))

    def summarize(self, retention: Retention, newest_round: int, settled: int, at: str) -> bool:
        """Lets a snapshot take the place of all rounds before it that are no longer kept; returns whether one does.

        Args:
            retention: For how long rounds are kept.
            newest_round: The last closed round.
            settled: The last round whose turns can no longer change.
            at: The present time, in ISO format.
        """
        if pending_redactions(self.db):  # their digests are being computed
            return False
        event = 0
        for number, round_, taken in self.db.execute("SELECT seq, round, at FROM snapshot ORDER BY seq").fetchall():
            if round_ <= settled and retention.is_over(round_, taken, newest_round, at):
                event = number
        if event:
            summaries.write_summary(self.db, event)
        return bool(event)

    def put_summary(self, event: int, state: Mapping[str, Any], at: str) -> None:
        """Lets this state, which is that after event `event`, take the place of all events up to it."""
        if pending_redactions(self.db):
            raise StoreError("a client is being forgotten: open the file again, and then compact it")
        self.db.execute("DELETE FROM snapshot WHERE seq = ?", (event,))
        self._insert_snapshot(event, pack_snapshot(state, compact=True), state, at)
        summaries.write_summary(self.db, event)

    def drop_offers(self, retention: Retention, newest_round: int, at: str) -> bool:
        """Deletes some offers that are no longer kept, the oldest first; returns whether any are left.

        Args:
            retention: For how long offers are kept.
            newest_round: The last round with an offer.
            at: The present time, in ISO format.
        """
        if retention.rounds is not None:
            return summaries.delete_oldest(self.db, "offers", "round", newest_round - retention.rounds)
        query, cutoff = "SELECT COALESCE(MAX(round), 0) FROM offers WHERE at <= ?", retention.cutoff(at)
        (until,) = self.db.execute(query, (cutoff,)).fetchone()
        return summaries.delete_oldest(self.db, "offers", "round", min(int(until), newest_round - MIN_ROUNDS))

    def forget(self, row: int, client: str, name: str, since: int, summary: Mapping[str, Any] | None) -> int:
        """Replaces the id of a client, starts to remove all that it reported, and returns the number of the event.

        `Journal.redact` removes the rest in steps. A snapshot must be written in the same transaction, because the
        state cannot be computed from redacted events.

        Args:
            row: The row of the client.
            client: Its id.
            name: The name that replaces its id.
            since: The turns after this round can still be reported, so they are redacted at once.
            summary: The state of the summary without what the client reported; None if it is not in the summary.
        """
        first = summaries.read_summary(self.db)
        if summary is not None:
            summaries.replace_summary_state(self.db, summary)
        redaction = Redaction(row, client, name, boundary=first.event, digest=first.digest.hex())
        start_redaction(self.db, redaction, since)
        drop_answers_about(self.db, client)
        drop_tokens_of(self.db, client)
        return self.add_event("forget", json.dumps({"row": row, "name": name}).encode())


def _snapshot_digest(seq: int, data: bytes) -> bytes:
    return records.digest_of(b"", str(seq), data)
