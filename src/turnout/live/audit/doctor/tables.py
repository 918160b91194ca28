"""Checks of the tables of a fleet's file: each row against its checksum, and the tables against each other."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections import Counter
from collections.abc import Iterator

import numpy as np

from turnout.counting import pluralize
from turnout.live.audit.doctor.findings import (
    CheckResult,
    event_data,
    snapshot_event,
    turns_by_row,
)
from turnout.live.journal.answers import stored_answers
from turnout.live.journal.redaction import pending_redactions
from turnout.live.journal.schema import KEEP_AVAILABILITY_UP_TO, meta_value
from turnout.live.journal.summary import read_summary, read_summary_state, read_totals
from turnout.live.turns.records import RecordedOffer, digest_of, offer_digest, turn_from_row, unpack_offer
from turnout.storage.encoding.packing import unpack

#: What a record of availability is called in a fleet without rounds, and what an event lacks that has none.
PRESENCE = ("a record of presence", "gives no turns")


def check_events(db: sqlite3.Connection) -> CheckResult:
    """Checks that no event is missing and that each matches its digest, which covers all events before it."""
    result, kinds, summary = CheckResult(), Counter[str](), read_summary(db)
    previous, expected = summary.digest, summary.event + 1
    boundaries = {redaction.boundary: redaction.digest for redaction in pending_redactions(db)}
    query = "SELECT seq, kind, data, digest FROM events WHERE seq > ? ORDER BY seq"
    for seq, kind, data, digest in db.execute(query, (summary.event,)):
        if seq - 1 in boundaries:
            previous = bytes.fromhex(boundaries[seq - 1])
        if seq != expected:
            result.problems.append(f"event {expected} is missing")
        elif digest != digest_of(previous, kind, data):
            result.problems.append(f"event {seq} ({kind}) does not match its digest")
        previous, expected = digest, seq + 1
        kinds[kind] += 1
    if previous.hex() != meta_value(db, "head"):
        result.problems.append("the newest events are missing")
    by_kind = ", ".join(f"{count:,} {kind}" for kind, count in kinds.items())
    result.summary = f"{kinds.total():,} events{f' ({by_kind})' if by_kind else ''} match their digests"
    if summary.event:
        result.summary += f"; {summary.event:,} earlier ones are no longer kept"
    return result


def check_summary(db: sqlite3.Connection, unit: str) -> CheckResult:
    """Checks what takes the place of events and turns that are no longer kept against its digests.

    Args:
        db: A connection to the file.
        unit: What the numbers of turns count: "round", or "decision" in a fleet without rounds.
    """
    summary = read_summary(db)
    if not summary.event:
        return CheckResult(f"all {unit}s are kept")
    state = read_summary_state(db)
    result = CheckResult(f"{unit}s up to {summary.round:,} are no longer kept; their summary matches its digest")
    if int(state["round"]) != summary.round or int(state["clients"]) != summary.clients:
        result.problems.append(f"the state in the summary is not that of its last {unit}")
    read_totals(db)  # raises an error for totals that do not match their checksums
    return result


def check_availability(db: sqlite3.Connection, unit: str) -> CheckResult:
    """Checks the stored availability of the clients against the events that closed rounds or filled slots.

    Without rounds, it is the presence of clients at the decisions of one call; `unit` as for `check_summary`.
    """
    what = "the availability of clients in" if unit == "round" else "the presence of clients at"
    result, count, dropped, events = CheckResult(), 0, 0, set()
    last, (clients,) = snapshot_event(db), db.execute("SELECT COUNT(*) FROM clients").fetchone()
    query = (
        "SELECT e.seq, e.data, m.data FROM events e LEFT JOIN masks m ON m.seq = e.seq "
        "WHERE e.kind IN ('close', 'fill') AND e.seq > ?"
    )
    for seq, data, mask in db.execute(query, (read_summary(db).event,)):
        events.add(seq)
        header = unpack(data)[0]
        number = header["round" if unit == "round" else "first"]
        if mask is None and seq <= last and clients > KEEP_AVAILABILITY_UP_TO:
            dropped += 1
        elif mask is None:
            result.problems.append(f"{what} {unit} {number} is missing")
        elif hashlib.sha256(mask).hexdigest() != header["mask"]:
            result.problems.append(f"{what} {unit} {number} does not match its digest")
        count += mask is not None
    for (seq,) in db.execute("SELECT seq FROM masks WHERE seq > ?", (read_summary(db).event,)):
        if seq not in events:
            record, lacks = ("an availability record", "closes no round") if unit == "round" else PRESENCE
            result.problems.append(f"{record} belongs to event {seq}, which {lacks}")
    result.summary = (
        f"{what.rpartition(' ')[0]} is stored for {count:,} {'rounds' if unit == 'round' else 'calls of fill'}"
    )
    if dropped:
        result.summary += f"; that of {dropped:,} was dropped with a snapshot, because this fleet is large"
    return result


def check_clients(db: sqlite3.Connection) -> CheckResult:
    """Checks the ids in the table of clients against those of the join events."""
    result = CheckResult()
    stored = db.execute("SELECT row, id FROM clients ORDER BY row").fetchall()
    # The ids of clients that joined before the summary are compared with the digest in its state.
    joined = [client for _, client in stored[: read_summary(db).clients]]
    joined += [client for data in event_data(db, "join") for client in json.loads(data)]
    if len(stored) != len(joined):
        result.problems.append(f"the table of clients has {len(stored):,} ids, but {len(joined):,} clients joined")
    if repeated := len(stored) - len({client for _, client in stored}):
        result.problems.append(f"{pluralize(repeated, 'client', 'have')} the id of another one")
    unredacted = {redaction.row: redaction.client for redaction in pending_redactions(db)}
    for index, ((row, client), expected) in enumerate(zip(stored, joined, strict=False)):
        if (row, client) != (index, expected) and unredacted.get(row) != expected:
            result.problems.append(f"row {row} has the id {client!r}, but {expected!r} joined as row {index}")
    result.summary = f"{pluralize(len(stored), 'client', 'have')} the ids with which they joined"
    if unredacted:
        result.summary += f"; {len(unredacted):,} that were forgotten are removed when the file is opened again"
    return result


def check_turns(db: sqlite3.Connection, unit: str) -> CheckResult:
    """Checks every turn against its checksum; `unit` as for `check_summary`."""
    result, count = CheckResult(), 0
    for turn, checksum in map(turn_from_row, db.execute("SELECT * FROM turns ORDER BY round, row")):
        count += 1
        if turn.checksum != checksum:
            result.problems.append(f"the turn of {turn.id!r} in {unit} {turn.round} does not match its checksum")
    result.summary = f"{pluralize(count, 'turn')} {'matches its checksum' if count == 1 else 'match their checksums'}"
    return result


def check_offers(db: sqlite3.Connection, unit: str) -> CheckResult:
    """Checks the recorded offers against their digests and the turns of their rounds; `unit` as for `check_summary`."""
    result, count, newest = CheckResult(), 0, _newest_round(db)
    for round_, available, data, digest in db.execute(
        "SELECT round, available, data, digest FROM offers ORDER BY round"
    ):
        count += 1
        if digest != offer_digest(round_, available, data):
            result.problems.append(f"the offer of {unit} {round_} does not match its digest")
            continue
        try:
            offer = unpack_offer(data, available)
        except Exception as error:  # the other offers can still be checked
            result.problems.append(f"the offer of {unit} {round_} cannot be unpacked ({error})")
            continue
        result.problems.extend(_offer_problems(offer, round_, newest, set(turns_by_row(db, round_)), unit))
    result.summary = f"offers are recorded for {count:,} {unit}s and agree with the turns"
    return result


def _offer_problems(offer: RecordedOffer, round: int, newest: int, invited: set[int], unit: str) -> Iterator[str]:
    """Yields the problems of an offer that could be read.

    Args:
        offer: The offer.
        round: The round under which it is stored.
        newest: The newest round.
        invited: The rows that have turns in the round.
        unit: As for `check_summary`.
    """
    selected, available = offer.rows.tolist(), np.flatnonzero(offer.available).tolist()
    if offer.round != round:
        yield f"the offer of {unit} {offer.round} is stored under {unit} {round}"
    if not 1 <= round <= newest:
        missing = "is neither closed nor open" if unit == "round" else "was not made"
        yield f"there is an offer of {unit} {round}, which {missing}"
    elif len(selected) != len(invited) or set(selected) != invited:
        yield f"the clients selected from the offer of {unit} {round} are not those that have turns in it"
    if not set(selected) <= set(available):
        yield f"in {unit} {round} clients were selected that were not available"
    if offer.contexts is not None and len(offer.contexts) != len(available):
        yield f"in {unit} {round} {len(available):,} clients were available, but {len(offer.contexts):,} have contexts"


def _newest_round(db: sqlite3.Connection) -> int:
    """Returns the number of the open round, or of the last closed one."""
    open_round = db.execute("SELECT COALESCE(MAX(round), 0) FROM open_round").fetchone()[0]
    return max(int(meta_value(db, "round")), int(open_round))


def check_answers(db: sqlite3.Connection) -> CheckResult:
    """Checks the stored answers to requests of a service against their checksums."""
    damaged = [answer.is_intact for answer in stored_answers(db)].count(False)
    result = CheckResult("the stored answers to requests match their checksums")
    if damaged:
        result.problems.append(f"{damaged:,} stored answers to requests do not match their checksums")
    return result
