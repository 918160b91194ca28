"""What is written in a fleet's file, table by table, and whether the tables agree."""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
from collections import Counter
from collections.abc import Iterator

import numpy as np

from turnout.scheduler.audit.doctor.findings import Look, closes, data_of, forgotten_rows, meta, snapshot_seq, turns_of
from turnout.scheduler.journal.journal import KEEP_MASKS
from turnout.scheduler.outcomes import KINDS, RETURNED
from turnout.scheduler.records import (
    ClosedRound,
    RecordedOffer,
    Turn,
    as_bytes,
    digest_of,
    turn_from_row,
    unpack_closed,
    unpack_offer,
    unpack_open,
)


def events_look(db: sqlite3.Connection) -> Look:
    """The chain of digests."""
    look, kinds, before, expected = Look(), Counter[str](), b"", 1
    for seq, kind, data, digest in db.execute("SELECT seq, kind, data, digest FROM events ORDER BY seq"):
        if seq != expected:
            look.wrong.append(f"event {expected} is missing")
        elif digest != digest_of(before, kind, data):
            look.wrong.append(f"event {seq} ({kind}) is not what was written")
        before, expected = digest, seq + 1
        kinds[kind] += 1
    if before.hex() != meta(db, "head"):
        look.wrong.append("the newest events are gone")
    told = ", ".join(f"{count:,} {kind}" for kind, count in kinds.items())
    look.words = f"{kinds.total():,} events{f' ({told})' if told else ''}, each sealed with all before it"
    return look


def masks_look(db: sqlite3.Connection) -> Look:
    """Who was available, against the events that closed the rounds."""
    look, held, gone, expected = Look(), 0, 0, set()
    saved, (clients,) = snapshot_seq(db), db.execute("SELECT COUNT(*) FROM clients").fetchone()
    for seq, data in closes(db):
        expected.add(seq)
        found = db.execute("SELECT data FROM masks WHERE seq = ?", (seq,)).fetchone()
        header = unpack_closed(data, None)[1]
        if found is None and seq <= saved and clients > KEEP_MASKS:
            gone += 1
        elif found is None:
            look.wrong.append(f"who was available in round {header['round']} is missing")
        elif hashlib.sha256(found[0]).hexdigest() != header["mask"]:
            look.wrong.append(f"who was available in round {header['round']} is not what was written")
        held += found is not None
    for (seq,) in db.execute("SELECT seq FROM masks"):
        if seq not in expected:
            look.wrong.append(f"a mask belongs to event {seq}, which closes no round")
    look.words = f"who was available is known of {held:,} rounds"
    if gone:
        look.words += f"; of {gone:,} it was dropped with a snapshot, as this fleet is large"
    return look


def clients_look(db: sqlite3.Connection) -> Look:
    """Ids against those that joined."""
    look = Look()
    joined = [client for (data,) in data_of(db, "join") for client in json.loads(data)]
    named = db.execute("SELECT row, id FROM clients ORDER BY row").fetchall()
    if len(named) != len(joined):
        look.wrong.append(f"{len(named):,} clients are named, and {len(joined):,} have joined")
    for place, ((row, client), other) in enumerate(zip(named, joined, strict=False)):
        if (row, client) != (place, other):
            look.wrong.append(f"row {row} is {client!r}, and the client that joined there is {other!r}")
    look.words = f"{len(named):,} clients, as they joined"
    return look


def turns_look(db: sqlite3.Connection) -> Look:
    """Every turn against its seal."""
    look, count = Look(), 0
    for turn, seal in map(turn_from_row, db.execute("SELECT * FROM turns ORDER BY round, row")):
        count += 1
        if turn.checksum != seal:
            look.wrong.append(f"what {turn.id!r} reported in round {turn.round} is not what was written")
    look.words = f"{count:,} turns, each as it was sealed"
    return look


def rounds_look(db: sqlite3.Connection) -> Look:
    """Turns against the events that closed their rounds: nothing lost, nothing twice."""
    look, closed_rounds = Look(), 0
    ids = [client for (client,) in db.execute("SELECT id FROM clients ORDER BY row")]
    late: dict[tuple[int, int], tuple[int, float]] = {}
    for _, data in closes(db):
        closed = unpack_closed(data, None)[0]
        if closed.round != closed_rounds + 1:
            look.wrong.append(f"round {closed.round} follows round {closed_rounds}")
        closed_rounds = closed.round
        look.wrong.extend(_disagreements(closed, turns_of(db, closed.round), ids))
        for round_, row, seconds in zip(
            closed.late_rounds.tolist(), closed.late_rows.tolist(), closed.late_seconds.tolist(), strict=True
        ):
            if (round_, row) in late:
                look.wrong.append(f"the late time of {ids[row]!r} in round {round_} was learned twice")
            late[round_, row] = (closed.round, seconds)
    if str(closed_rounds) != meta(db, "round"):
        look.wrong.append(f"the last closed round should be {meta(db, 'round')}, and is {closed_rounds}")
    look.wrong.extend(_late_disagreements(db, dict(late)))
    opened = db.execute("SELECT COALESCE(MAX(round), 0) FROM open_round").fetchone()[0]
    for (stray,) in db.execute("SELECT DISTINCT round FROM turns WHERE round > ?", (closed_rounds,)):
        if stray != opened:
            look.wrong.append(f"there are turns of round {stray}, which was never closed and is not open")
    look.words = f"{closed_rounds:,} closed rounds and {len(late):,} late times agree with the turns"
    return look


def _disagreements(closed: ClosedRound, turns: dict[int, Turn], ids: list[str]) -> Iterator[str]:
    if sorted(turns) != sorted(closed.rows.tolist()):
        yield f"round {closed.round} was closed with {len(closed.rows)} clients, and {len(turns)} have turns in it"
    told = (closed.rows, closed.kinds, closed.seconds, closed.reported_losses)
    for row, kind, seconds, loss in zip(*(array.tolist() for array in told), strict=True):
        turn = turns.get(row)
        if turn is None:
            continue
        if turn.id != ids[row]:
            yield f"in round {closed.round} row {row} is called {turn.id!r}, and its client {ids[row]!r}"
        if turn.kind != KINDS[kind] or (turn.seconds is not None and turn.seconds != seconds):
            yield (
                f"in round {closed.round} {turn.id!r} was closed as {KINDS[kind]} after {seconds:g} s, and its turn "
                f"says {turn.kind}{'' if turn.seconds is None else f' after {turn.seconds:g} s'}"
            )
        if KINDS[kind] in RETURNED and turn.loss != (None if math.isnan(loss) else loss):
            yield f"in round {closed.round} {turn.id!r} was closed with loss {loss:g}, and its turn says {turn.loss}"


def _late_disagreements(db: sqlite3.Connection, late: dict[tuple[int, int], tuple[int, float]]) -> Iterator[str]:
    forgotten = forgotten_rows(db)
    for turn, _ in map(turn_from_row, db.execute("SELECT * FROM turns WHERE folded IS NOT NULL ORDER BY round, row")):
        learned = late.pop((turn.round, turn.row), None)
        if turn.row not in forgotten and learned != (turn.folded, turn.late_seconds):
            yield f"the late time of {turn.id!r} in round {turn.round} is not the one that was learned"
    for round_, row in late:
        if row not in forgotten:
            yield f"a late time of row {row} in round {round_} was learned, and no turn knows of it"


def open_round_look(db: sqlite3.Connection) -> Look:
    """The round that is open, against its turns and the last that was closed."""
    found = db.execute("SELECT round, data, digest FROM open_round").fetchall()
    if not found:
        return Look("none is open")
    look, (number, data, digest), closed = Look(), found[0], int(meta(db, "round"))
    if digest != digest_of(b"", str(number), data):
        look.wrong.append(f"round {number} is not what was handed out")
    opened = unpack_open(data)
    if len(found) > 1 or opened.round != closed + 1:
        look.wrong.append(f"round {opened.round} is open, and the last that was closed is {closed}")
    if sorted(turns_of(db, opened.round)) != sorted(opened.rows.tolist()):
        look.wrong.append(f"round {opened.round} is open with other clients than have turns in it")
    look.words = f"round {opened.round} is open with {len(opened.rows):,} clients"
    return look


def offers_look(db: sqlite3.Connection) -> Look:
    """What each choice was made from, against its digest and the turns that came of it."""
    if not db.execute("SELECT COUNT(*) FROM sqlite_master WHERE name = 'offers'").fetchone()[0]:
        return Look("none are on record: an older turnout wrote this file")
    look, count, newest = Look(), 0, _newest_round(db)
    for round_, volunteers, data, digest in db.execute(
        "SELECT round, volunteers, data, digest FROM offers ORDER BY round"
    ):
        count += 1
        if digest != digest_of(as_bytes(volunteers), str(round_), data):
            look.wrong.append(f"what was offered in round {round_} is not what was written")
            continue
        try:
            offered = unpack_offer(data, volunteers)
        except Exception as damage:  # the others can still be looked at
            look.wrong.append(f"what was offered in round {round_} cannot be unpacked ({damage})")
            continue
        look.wrong.extend(_of_offer(offered, round_, newest, set(turns_of(db, round_))))
    look.words = f"what was offered is on record of {count:,} rounds, and agrees with the turns"
    return look


def _of_offer(offered: RecordedOffer, round_: int, newest: int, invited: set[int]) -> Iterator[str]:
    """What is wrong with an offer that could be read."""
    chosen, volunteers = offered.rows.tolist(), np.flatnonzero(offered.available).tolist()
    if offered.round != round_:
        yield f"what was offered in round {offered.round} stands under round {round_}"
    if not 1 <= round_ <= newest:
        yield f"there is an offer of round {round_}, which was never closed and is not open"
    elif len(chosen) != len(invited) or set(chosen) != invited:
        yield f"other clients were chosen from what was offered in round {round_} than have turns in it"
    if not set(chosen) <= set(volunteers):
        yield f"in round {round_} clients were chosen that had not volunteered"
    if offered.contexts is not None and len(offered.contexts) != len(volunteers):
        yield f"in round {round_} {len(volunteers):,} clients volunteered, and {len(offered.contexts):,} have contexts"


def _newest_round(db: sqlite3.Connection) -> int:
    """The one that is open, or the last that was closed."""
    opened = db.execute("SELECT COALESCE(MAX(round), 0) FROM open_round").fetchone()[0]
    return max(int(meta(db, "round")), int(opened))
