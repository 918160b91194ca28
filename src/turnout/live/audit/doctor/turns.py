"""Checks of the turns of a fleet, with or without rounds, against the events that gave and ended them."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from turnout.counting import pluralize
from turnout.kernel.arrays import FloatArray
from turnout.kernel.certificate import TimeUnit
from turnout.live.audit.doctor.findings import CheckResult, forgotten_rows, turns_by_row
from turnout.live.journal.redaction import pending_redactions
from turnout.live.journal.schema import meta_count, meta_value
from turnout.live.journal.summary import has_all_availability, read_summary
from turnout.live.turns.outcomes import KINDS, RETURNED
from turnout.live.turns.records import LateTimes, Turn, digest_of, has_context, turn_from_row
from turnout.live.turns.rounds.records import CLOSE, unpack_closed, unpack_open
from turnout.live.turns.slots.records import FILL, unpack_fill, unpack_running_turn


class TurnEvent(NamedTuple):
    """An event in which a round was closed or slots were filled.

    Attributes:
        first: The number of its first round or decision.
        last: The number of its last one; `first` − 1 if no turn was given.
        given: The number and the row of each turn that was given, in order.
        ended: The number, the row, the outcome (an index into KINDS), the seconds and the loss of each turn that ended.
        late: The actual times of clients that were late before.
        contexts: The contexts of the clients that were given turns.
    """

    first: int
    last: int
    given: list[tuple[int, int]]
    ended: list[tuple[int, int, int, float, float]]
    late: LateTimes
    contexts: FloatArray


def turn_events(db: sqlite3.Connection) -> Iterator[TurnEvent]:
    """Yields the events of this kind that are kept, in order."""
    query = "SELECT kind, data FROM events WHERE kind IN (?, ?) AND seq > ? ORDER BY seq"
    for kind, data in db.execute(query, (CLOSE, FILL, read_summary(db).event)):
        if kind == CLOSE:
            closed = unpack_closed(data, None)[0]
            number, rows = closed.round, closed.rows.tolist()
            given = [(number, row) for row in rows]
            columns = (closed.kinds, closed.seconds, closed.reported_losses)
            outcomes = zip(*(column.tolist() for column in columns), strict=True)
            ended = [(*turn, *outcome) for turn, outcome in zip(given, outcomes, strict=True)]
            yield TurnEvent(number, number, given, ended, closed.late, closed.contexts)
        else:
            filled = unpack_fill(data, None)
            own = filled.ended
            entries = (own.decisions, own.rows, own.kinds, own.seconds, own.losses)
            ended = list(zip(*(column.tolist() for column in entries), strict=True))
            given = list(enumerate(filled.rows.tolist(), start=filled.first))
            yield TurnEvent(filled.first, filled.last, given, ended, filled.late, filled.contexts)


def check_turn_events(db: sqlite3.Connection, unit: TimeUnit) -> CheckResult:
    """Checks turns against the events that gave and ended them: none may be lost or counted twice."""
    summary = read_summary(db)
    result, last, ended = CheckResult(), summary.round, 0
    ids = [client for (client,) in db.execute("SELECT id FROM clients ORDER BY row")]
    unredacted = {redaction.row for redaction in pending_redactions(db)}  # their turns and events may differ for now
    running: set[tuple[int, int]] = set()
    learned: dict[tuple[int, int], tuple[int, float]] = {}
    for event in turn_events(db):
        if event.first != last + 1:
            result.problems.append(f"{unit} {event.first} follows {unit} {last}")
        last, ended = event.last, ended + len(event.ended)
        running.update(event.given)
        result.problems.extend(_given_problems(db, event, unit, ids, unredacted))
        for number, entries in groupby(event.ended, key=lambda entry: entry[0]):
            turns = turns_by_row(db, number)
            for _, row, kind, seconds, loss in entries:
                if number <= summary.round:
                    continue
                if (number, row) not in running:
                    result.problems.append(f"the turn of row {row} in {unit} {number} ended, but was not running")
                running.discard((number, row))
                if row in turns and row not in unredacted:
                    result.problems.extend(_outcome_problems(turns[row], unit, kind, seconds, loss))
        for number, row, seconds in event.late:
            if (number, row) in learned:
                result.problems.append(f"the late time of {ids[row]!r} in {unit} {number} was learned twice")
            if number > summary.round:
                learned[number, row] = (event.last, seconds)
    result.problems.extend(_end_problems(db, unit, last, running))
    result.problems.extend(_late_time_problems(db, unit, dict(learned), summary.round))
    result.summary = (
        f"{unit.pluralize(last - summary.round)}, {ended:,} ended turns and {len(learned):,} late times agree with the "
        "turns"
    )
    return result


def _given_problems(
    db: sqlite3.Connection, event: TurnEvent, unit: TimeUnit, ids: list[str], unredacted: set[int]
) -> Iterator[str]:
    for number, entries in groupby(event.given, key=lambda entry: entry[0]):
        rows, turns = [row for _, row in entries], turns_by_row(db, number)
        if sorted(rows) != sorted(turns):
            yield f"{unit} {number} gave turns to {pluralize(len(rows), 'client')}, but {_other_turns(rows, turns)}"
        for row in turns.keys() & set(rows) - unredacted:
            if turns[row].id != ids[row]:
                yield f"the turn of row {row} in {unit} {number} has the id {turns[row].id!r} instead of {ids[row]!r}"


def _other_turns(rows: list[int], turns: dict[int, Turn]) -> str:
    return "others have turns in it" if len(rows) == len(turns) else f"{len(turns)} have turns in it"


def _outcome_problems(turn: Turn, unit: TimeUnit, kind: int, seconds: float, loss: float) -> Iterator[str]:
    """Yields where a turn differs from the outcome that an event has."""
    what = f"the turn of {turn.id!r} in {unit} {turn.round} ended"
    if turn.kind != KINDS[kind] or (turn.seconds is not None and turn.seconds != seconds):
        recorded = "" if turn.seconds is None else f" after {turn.seconds:g} s"
        yield f"{what} as {KINDS[kind]} after {seconds:g} s, but is recorded as {turn.kind}{recorded}"
    if KINDS[kind] in RETURNED and turn.loss != (None if math.isnan(loss) else loss):
        yield f"{what} with loss {loss:g}, but is recorded with loss {turn.loss}"


def _end_problems(db: sqlite3.Connection, unit: TimeUnit, last: int, running: set[tuple[int, int]]) -> Iterator[str]:
    """Yields where the last event differs from what else the file says about the present."""
    if str(last) != meta_value(db, "round"):
        yield f"the last {unit} should be {meta_value(db, 'round')}, but the events end with {unit} {last}"
    is_open = {int(number) for (number,) in db.execute("SELECT round FROM open_round")}
    kept = {number for number in is_open if number > read_summary(db).round}
    if unit is TimeUnit.DECISION:
        for number in kept ^ {number for number, _ in running}:
            yield f"turn {number} is running in the events or in the file, but not in both"
    for (number,) in db.execute("SELECT DISTINCT round FROM turns WHERE round > ?", (last,)):
        if number not in is_open:
            yield f"there are turns of {unit} {number}, which is neither in the events nor open"


def _late_time_problems(
    db: sqlite3.Connection, unit: TimeUnit, learned: dict[tuple[int, int], tuple[int, float]], after: int
) -> Iterator[str]:
    """Yields problems of late times.

    Args:
        db: A connection to the file.
        unit: What the numbers of turns count.
        learned: The number with which a time was learned, and the time, by the turn of the client that was late.
        after: Turns up to this number are no longer kept.
    """
    forgotten = forgotten_rows(db)
    query = "SELECT * FROM turns WHERE folded IS NOT NULL AND round > ? ORDER BY round, row"
    for turn, _ in map(turn_from_row, db.execute(query, (after,))):
        time = learned.pop((turn.round, turn.row), None)
        if turn.row not in forgotten and time != (turn.folded, turn.late_seconds):
            yield f"the recorded late time of {turn.id!r} in {unit} {turn.round} is not the time that was learned"
    for number, row in learned:
        if row not in forgotten:
            yield f"a late time of row {row} in {unit} {number} was learned, but no turn records it"


def check_open(db: sqlite3.Connection, unit: TimeUnit) -> CheckResult:
    """Checks the open round, or the running turns, against their digests, the turns and the last closed round."""
    stored = db.execute("SELECT round, data, digest FROM open_round ORDER BY round").fetchall()
    has_rounds, next_round = unit is TimeUnit.ROUND, meta_count(db, "round") + 1
    result, clients = CheckResult("no round is open" if has_rounds else "0 turns are running"), 0
    for number, data, digest in stored:
        what = f"the open round {number}" if has_rounds else f"the turn {number}, which is running,"
        if digest != digest_of(b"", str(number), data):
            result.problems.append(f"{what} does not match its digest")
        own, rows = _open_turns(unit, data)
        clients += len(rows)
        if own != number or (has_rounds and (own != next_round or len(stored) > 1)):
            result.problems.append(f"{what} is stored as another one, or does not follow the last one")
        if sorted(turns_by_row(db, number)) != sorted(rows):
            result.problems.append(f"the clients of {what.rstrip(',')} are not those that have turns in it")
    if stored:
        one = f"round {next_round} is open with {pluralize(clients, 'client')}"
        result.summary = one if has_rounds else f"{pluralize(clients, 'turn', 'are')} running"
    return result


def _open_turns(unit: TimeUnit, data: bytes) -> tuple[int, list[int]]:
    if unit is TimeUnit.ROUND:
        opened = unpack_open(data)
        return opened.round, opened.rows.tolist()
    running_turn = unpack_running_turn(data)
    return running_turn.decision, [running_turn.row]


def why_not_replayed(db: sqlite3.Connection) -> str:
    """Returns why the state cannot be rebuilt from the events that are kept, or "" if it can."""
    if forgotten_rows(db) - set(read_summary(db).forgotten):
        return "clients were forgotten"
    if not has_all_availability(db):
        return "the availability of clients at some events was dropped"
    if not all(has_context(event.contexts).all() for event in turn_events(db)):
        return "the statuses of clients are not persisted"
    return ""
