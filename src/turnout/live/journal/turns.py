"""Queries of a fleet's file: turns, and the rounds and turns that are open.

They take a connection inside a transaction, so that one transaction can make several of them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from turnout.kernel.certificate import TimeUnit
from turnout.live.journal.redaction import Redaction, is_offer_dropped, pending_redactions, redact_pending_turn
from turnout.live.journal.schema import corruption, meta_value
from turnout.live.turns.records import RecordedOffer, Turn, digest_of, offer_digest, turn_from_row, unpack_offer
from turnout.live.turns.rounds.records import OpenRound, unpack_open
from turnout.live.turns.slots.records import RunningTurnRecord, unpack_running_turn
from turnout.storage.encoding.packing import parse_stored
from turnout.storage.store import Connection, single_value

#: The columns of a turn; whether it is open; and the clients that are being forgotten, so that this needs no query.
_TURNS = (
    "SELECT t.*, EXISTS (SELECT 1 FROM open_round o WHERE o.round = t.round), "
    "(SELECT value FROM meta WHERE key = 'redactions') FROM turns t"
)


def read_unit(db: Connection) -> TimeUnit:
    """Returns what the numbers of turns count."""
    return TimeUnit.of(parse_stored(meta_value(db, "settings")).get("concurrency"))


def turns_where(db: Connection, condition: str, *values: Any) -> list[Turn]:
    """Returns the turns that fulfil a condition in SQL, without what forgotten clients reported.

    Raises:
        StoreError: If one of them does not match its checksum.
    """
    return [turn for turn, _ in _decoded(db, db.execute(f"{_TURNS} WHERE {condition}", values))]


def find_turn(db: Connection, client: str, round: int | None = None) -> tuple[Turn, bool] | None:
    """Returns the turn of a client in a round, by default its newest, and whether it is open; None without one."""
    if round is None:
        stored = db.execute(f"{_TURNS} WHERE t.id = ? ORDER BY t.round DESC LIMIT 1", (client,))
    else:
        stored = db.execute(f"{_TURNS} WHERE t.id = ? AND t.round = ?", (client, round))
    return next(iter(_decoded(db, stored)), None)


def open_turns_of(db: Connection, clients: Sequence[str]) -> dict[str, Turn]:
    """Returns the turns of these clients in the open round, by id; clients without one are missing."""
    opened = "(SELECT MIN(round) FROM open_round)"
    query = f"{_TURNS} {db.dialect.BY_ID} WHERE t.round = {opened} AND t.id {db.dialect.IN_LIST}"
    stored = db.execute(query, (json.dumps(clients, ensure_ascii=False),))
    return {turn.id: turn for turn, _ in _decoded(db, stored)}


def turns_since(db: Connection, round: int) -> list[Turn]:
    """Returns all turns after a round, and checks that the index by id contains each of them."""
    indexed = (
        f"SELECT COUNT(*) FROM turns t WHERE round > ? AND EXISTS (SELECT 1 FROM turns u {db.dialect.BY_ID} "
        "WHERE u.id = t.id AND u.round = t.round AND u.row = t.row)"
    )
    turns = turns_where(db, "t.round > ? ORDER BY t.round, t.row", round)
    if single_value(db, indexed, round) != len(turns):
        raise corruption(db, "the index of turns by id is incomplete")
    return turns


def _decoded(db: Connection, stored: Any) -> list[tuple[Turn, bool]]:
    turns: list[tuple[Turn, bool]] = []
    pending: list[Redaction] = []
    for *row, is_open, redactions in stored.fetchall():
        turn, is_intact = turn_from_row(row)
        if not is_intact:
            where = f"{read_unit(db)} {turn.round}"
            raise corruption(db, f"the turn of {turn.id!r} in {where} does not match its checksum")
        if redactions is not None:
            pending = pending or pending_redactions(db)
            turn = redact_pending_turn(pending, turn)
        turns.append((turn, bool(is_open)))
    return turns


# What is open


def read_open_round(db: Connection) -> OpenRound | None:
    """Returns the open round, or None if no round is open."""
    stored = db.execute("SELECT round, data, digest FROM open_round").fetchone()
    if stored is None:
        return None
    number, data, digest = stored
    if digest != digest_of(b"", str(number), data):
        raise corruption(db, f"the open round {number} does not match its digest")
    return unpack_open(data)


def read_running_turns(db: Connection) -> dict[int, RunningTurnRecord]:
    """Returns the running turns of a fleet without rounds, by decision."""
    running_turns = {}
    for number, data, digest in db.execute("SELECT round, data, digest FROM open_round ORDER BY round").fetchall():
        if digest != digest_of(b"", str(number), data):
            raise corruption(db, f"the turn {number} that is running does not match its digest")
        running_turns[int(number)] = unpack_running_turn(data)
    return running_turns


# Offers


def rounds_with_offers(db: Connection) -> list[int]:
    """Returns the rounds whose offers are recorded."""
    return [int(number) for (number,) in db.execute("SELECT round FROM offers ORDER BY round")]


def read_offer(db: Connection, round: int) -> RecordedOffer | None:
    """Returns the offer from which the cohort of a round was selected, or None if it is not recorded."""
    stored = db.execute("SELECT available, data, digest FROM offers WHERE round = ?", (round,)).fetchone()
    if stored is None or is_offer_dropped(pending_redactions(db), round, stored[0]):
        return None
    available, data, digest = stored
    if digest != offer_digest(round, available, data):
        raise corruption(db, f"the offer of {read_unit(db)} {round} does not match its digest")
    return unpack_offer(data, available)


def read_offer_of_decision(db: Connection, decision: int) -> RecordedOffer | None:
    """Returns the offer of a decision about one slot, or None if it is not recorded.

    Several slots may be filled at once: only the offer of the first is recorded, and those that were given a turn
    before this decision were not available any more. The reasons of the other decisions are not recorded.
    """
    first = db.execute("SELECT MAX(round) FROM offers WHERE round <= ?", (decision,)).fetchone()[0]
    recorded = None if first is None else read_offer(db, first)
    if recorded is None or first == decision:
        return recorded
    turns = turns_where(db, "t.round BETWEEN ? AND ? ORDER BY t.round, t.row", first, decision)
    if any(turn.round == decision for turn in turns) and len(turns) == decision - first + 1:
        given = np.array([turn.row for turn in turns if turn.round < decision], dtype=np.int64)
        own = np.array([turn.row for turn in turns if turn.round == decision], dtype=np.int64)
        left = recorded.available.copy()
        left[given] = False
        contexts = None if recorded.contexts is None else recorded.contexts[left[recorded.available]]
        return RecordedOffer(decision, own, {}, left, contexts)
    return None
