"""Checks of the tables of a fleet's file: each row against its checksum, and the tables against each other."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from turnout.counting import pluralize
from turnout.kernel.certificate import TimeUnit
from turnout.live.journal.answers import stored_answers
from turnout.live.journal.journal import AMEND, Journal, amendments, initial_settings, settings_at
from turnout.live.journal.schema import KEEP_AVAILABILITY_UP_TO, meta_value
from turnout.live.journal.summary import has_all_availability, read_summary, read_summary_state, read_totals
from turnout.live.journal.turns import pending_redactions
from turnout.live.turns import records
from turnout.live.turns.rounds.records import CLOSE, unpack_closed
from turnout.live.turns.slots.records import FILL, unpack_fill
from turnout.storage.store import Connection

#: The largest number of problems that one message lists; the others are only counted.
MAX_LISTED = 5
RESTORE = "restore the file from a backup"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of checking one part of a fleet's file.

    Attributes:
        part: The name of the part.
        ok: Whether it is intact; None for information that is neither right nor wrong.
        message: What was found.
        remedy: What to do if the part is damaged; otherwise empty.
    """

    part: str
    ok: bool | None
    message: str
    remedy: str = ""


@dataclass(slots=True)
class CheckResult:
    """The result of one check: a summary for an intact part, and the problems that were found."""

    summary: str = ""
    problems: list[str] = field(default_factory=list)


def run_check(part: str, check: Callable[[], CheckResult], remedy: str = RESTORE) -> Finding:
    """Runs a check and returns its finding; an exception of the check is a finding as well."""
    try:
        result = check()
    except Exception as error:  # damaged bytes can raise any exception
        return Finding(part, False, f"cannot be read ({' '.join(str(error).split())})", remedy)
    if not result.problems:
        return Finding(part, True, result.summary)
    more = f"; and {len(result.problems) - MAX_LISTED:,} more" if len(result.problems) > MAX_LISTED else ""
    return Finding(part, False, "; ".join(result.problems[:MAX_LISTED]) + more, remedy)


def forgotten_rows(db: Connection) -> set[int]:
    """Returns the rows of the clients that were forgotten."""
    summary = read_summary(db)
    kept = db.execute("SELECT data FROM events WHERE kind = 'forget' AND seq > ?", (summary.event,))
    return {*summary.forgotten, *(int(json.loads(data)["row"]) for (data,) in kept)}


def snapshot_event(db: Connection) -> int:
    """Returns the number of the event after which the last snapshot was taken; 0 if there is none."""
    return int(db.execute("SELECT COALESCE(MAX(seq), 0) FROM snapshot").fetchone()[0])


class RecordedOutcome(NamedTuple):
    """The outcome of a turn as an event has it: an index into KINDS, the seconds, the loss (or NaN), the signals."""

    kind: int
    seconds: float
    loss: float
    signals: dict[str, float] | None


class TurnEvent(NamedTuple):
    """An event in which a round was closed or slots were filled.

    Attributes:
        number: The number of the event.
        first: The number of its first round or decision.
        last: The number of its last one; `first` − 1 if no turn was given.
        given: The number and the row of each turn that was given, in order.
        ended: The number and the row of each turn that ended, with its `RecordedOutcome`.
        late: The actual times of clients that were late before.
        has_availability: Whether the availability of the clients is stored.
    """

    number: int
    first: int
    last: int
    given: list[tuple[int, int]]
    ended: list[tuple[int, int, RecordedOutcome]]
    late: records.LateTimes
    has_availability: bool


def turn_events(db: Connection) -> Iterator[TurnEvent]:
    """Yields the events of this kind that are kept, in order; raises StoreError if one has another availability."""
    query = (
        "SELECT e.seq, e.kind, e.data, m.data FROM events e LEFT JOIN masks m ON m.seq = e.seq "
        "WHERE e.kind IN (?, ?) AND e.seq > ? ORDER BY e.seq"
    )
    for seq, kind, data, mask in db.execute(query, (CLOSE, FILL, read_summary(db).event)):
        if kind == CLOSE:
            closed = unpack_closed(data, mask)[0]
            first = last = closed.round
            given = [(closed.round, row) for row in closed.rows.tolist()]
            turns, late, signals = given, closed.late, closed.signals
            columns = (closed.kinds, closed.seconds, closed.reported_losses)
        else:
            filled = unpack_fill(data, mask)
            first, last, late, own = filled.first, filled.last, filled.late, filled.ended
            given = list(enumerate(filled.rows.tolist(), start=filled.first))
            turns, signals = list(zip(own.decisions.tolist(), own.rows.tolist(), strict=True)), own.signals
            columns = (own.kinds, own.seconds, own.losses)
        outcomes = zip(turns, *(column.tolist() for column in columns), strict=True)
        ended = [
            (*turn, RecordedOutcome(kind, seconds, loss, records.signals_at(signals, index)))
            for index, (turn, kind, seconds, loss) in enumerate(outcomes)
        ]
        yield TurnEvent(seq, first, last, given, ended, late, mask is not None)


def check_events(db: Connection) -> CheckResult:
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
        elif digest != records.digest_of(previous, kind, data):
            result.problems.append(f"event {seq} ({kind}) does not match its digest")
        previous, expected = digest, seq + 1
        kinds[kind] += 1
    if previous.hex() != meta_value(db, "head"):
        result.problems.append("the newest events are missing")
    if kinds[AMEND] and initial_settings(db) is None:
        result.problems.append("the settings at creation are missing")
    by_kind = ", ".join(f"{count:,} {kind}" for kind, count in kinds.items())
    result.summary = f"{kinds.total():,} events{f' ({by_kind})' if by_kind else ''} match their digests"
    if summary.event:
        result.summary += f"; {summary.event:,} earlier ones are no longer kept"
    return result


def check_summary(db: Connection, unit: TimeUnit) -> CheckResult:
    """Checks what takes the place of events and turns that are no longer kept against its digests."""
    summary = read_summary(db)
    if not summary.event:
        return CheckResult(f"all {unit}s are kept")
    state = read_summary_state(db)
    result = CheckResult(f"{unit}s up to {summary.round:,} are no longer kept; their summary matches its digest")
    if int(state["round"]) != summary.round or int(state["clients"]) != summary.clients:
        result.problems.append(f"the state in the summary is not that of its last {unit}")
    read_totals(db)  # raises an error for totals that do not match their checksums
    return result


def check_turns(db: Connection, unit: TimeUnit) -> CheckResult:
    """Checks every turn against its checksum and against the events: none may be lost, or counted twice."""
    result, count, after = CheckResult(), 0, read_summary(db).round
    forgotten = forgotten_rows(db)
    unredacted = {redaction.row for redaction in pending_redactions(db)}  # their turns and events may differ for now
    ids = dict(db.execute("SELECT row, id FROM clients"))
    is_open = {number for (number,) in db.execute("SELECT round FROM open_round")}
    given, learned, problems = _replay_turns(db, unit, after)
    result.problems.extend(problems)
    for turn, is_intact in map(records.turn_from_row, db.execute("SELECT * FROM turns ORDER BY round, row").fetchall()):
        count += 1
        key, what = (turn.round, turn.row), f"the turn of {turn.id!r} in {unit} {turn.round}"
        if not is_intact:
            result.problems.append(f"{what} does not match its checksum")
        if turn.round <= after:
            continue
        if key not in given and turn.round not in is_open:
            result.problems.append(f"{what} was given by no event")
        outcome, late = given.pop(key, None), learned.get(key)
        if turn.row in unredacted:
            continue
        is_new = turn.row not in ids and turn.round in is_open  # a client joins with the end of its first round
        if turn.id != ids.get(turn.row) and not is_new:
            result.problems.append(f"{what} is in row {turn.row}, which has the id {ids.get(turn.row)!r}")
        if outcome is not None:
            result.problems.extend(_outcome_problems(turn, what, outcome))
        recorded = None if turn.folded is None else (turn.folded, turn.late_seconds)
        if turn.row not in forgotten and recorded != late:
            result.problems.append(f"{what} has another late time than the one that was learned")
    result.problems.extend(f"the turn of row {row} in {unit} {number} is missing" for number, row in given)
    result.summary = f"{pluralize(count, 'turn')} and {pluralize(len(learned), 'late time')} agree with the events"
    return result


def _replay_turns(
    db: Connection, unit: TimeUnit, after: int
) -> tuple[dict[tuple[int, int], RecordedOutcome | None], dict[tuple[int, int], tuple[int, float]], list[str]]:
    """Returns what the events say about turns, by number and row, and where they contradict each other.

    Args:
        db: A connection to the file.
        unit: What the numbers of turns count.
        after: Turns up to this number are no longer kept.

    Returns:
        The outcome of each turn, None while it is running; the number with which the actual time of a late client was
        learned, and the time; the problems.
    """
    given: dict[tuple[int, int], RecordedOutcome | None] = {}
    learned: dict[tuple[int, int], tuple[int, float]] = {}
    problems, last, snapshot = [], after, snapshot_event(db)
    (clients,) = db.execute("SELECT COUNT(*) FROM clients").fetchone()
    for event in turn_events(db):
        if event.first != last + 1:
            problems.append(f"{unit} {event.first} follows {unit} {last}")
        last = event.last
        is_dropped = event.number <= snapshot and clients > KEEP_AVAILABILITY_UP_TO
        if not event.has_availability and not is_dropped:
            problems.append(f"the availability of clients at event {event.number} is missing")
        given.update(dict.fromkeys(event.given))
        for number, row, outcome in event.ended:
            if number > after:
                if (number, row) not in given or given[number, row] is not None:
                    problems.append(f"the turn of row {row} in {unit} {number} ended, but was not running")
                given[number, row] = outcome
        for number, row, seconds in event.late:
            if (number, row) in learned:
                problems.append(f"the late time of row {row} in {unit} {number} was learned twice")
            if number > after:
                learned[number, row] = (event.last, seconds)
    return given, learned, problems


def _outcome_problems(turn: records.Turn, what: str, outcome: RecordedOutcome) -> Iterator[str]:
    """Yields where a turn differs from the outcome that an event has."""
    kind, seconds, loss, signals = outcome
    if turn.kind != records.KINDS[kind] or (turn.seconds is not None and turn.seconds != seconds):
        recorded = "" if turn.seconds is None else f" after {turn.seconds:g} s"
        yield f"{what} ended as {records.KINDS[kind]} after {seconds:g} s, but is recorded as {turn.kind}{recorded}"
    if records.KINDS[kind] in records.RETURNED and turn.loss != (None if math.isnan(loss) else loss):
        yield f"{what} ended with loss {loss:g}, but is recorded with loss {turn.loss}"
    if records.KINDS[kind] in records.RETURNED and turn.signals != signals:
        yield f"{what} ended with the signals {signals}, but is recorded with {turn.signals}"


def check_offers(db: Connection, unit: TimeUnit) -> CheckResult:
    """Checks the recorded offers against their digests and the turns of their rounds."""
    (is_open,) = db.execute("SELECT COALESCE(MAX(round), 0) FROM open_round").fetchone()
    result, count, newest = CheckResult(), 0, max(int(meta_value(db, "round")), is_open)
    turns = "SELECT row FROM turns WHERE round = ? ORDER BY row"
    for round_, available, data, digest in db.execute(
        "SELECT round, available, data, digest FROM offers ORDER BY round"
    ):
        count += 1
        try:
            is_intact = digest == records.offer_digest(round_, available, data)
            offer = records.unpack_offer(data, available) if is_intact else None
        except Exception as error:  # the other offers can still be checked
            result.problems.append(f"the offer of {unit} {round_} cannot be unpacked ({error})")
            continue
        if offer is None:
            result.problems.append(f"the offer of {unit} {round_} does not match its digest")
            continue
        invited = [row for (row,) in db.execute(turns, (round_,))]
        if not 1 <= round_ == offer.round <= newest or not _agrees(offer, invited):
            result.problems.append(f"the offer of {unit} {round_} does not agree with the turns of that {unit}")
    result.summary = f"offers are recorded for {count:,} {unit}s and agree with the turns"
    return result


def _agrees(offer: records.RecordedOffer, invited: list[int]) -> bool:
    """Returns whether these clients were selected from an offer, and all of them were available."""
    available, contexts = np.flatnonzero(offer.available), offer.contexts
    has_contexts = contexts is None or len(contexts) == len(available)
    return sorted(offer.rows.tolist()) == invited and has_contexts and set(invited) <= set(available.tolist())


def check_answers(db: Connection) -> CheckResult:
    """Checks the stored answers to requests of a service against their checksums."""
    damaged = [answer.is_intact for answer in stored_answers(db)].count(False)
    result = CheckResult("the stored answers to requests match their checksums")
    if damaged:
        result.problems.append(f"{damaged:,} stored answers to requests do not match their checksums")
    return result


def why_not_replayed(journal: Journal, db: Connection) -> str:
    """Returns why the state cannot be rebuilt from the events that are kept, or "" if it can."""
    if forgotten_rows(db) - set(read_summary(db).forgotten):
        return "clients were forgotten"
    if not has_all_availability(db):
        return "the availability of clients at some events was dropped"
    stages = [settings_at(journal, 0), *(amendment.settings for amendment in amendments(journal))]
    if not all(stage["persist_statuses"] for stage in stages):
        return "the statuses of clients are not persisted"
    return ""
