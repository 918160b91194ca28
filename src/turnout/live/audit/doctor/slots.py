"""Checks of the tables of a fleet without rounds."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from turnout.counting import pluralize
from turnout.live.audit.doctor.findings import CheckResult, event_data, outcome_problems, turns_by_row
from turnout.live.journal.redaction import pending_redactions
from turnout.live.journal.schema import meta_value
from turnout.live.journal.summary import read_summary
from turnout.live.turns.records import digest_of
from turnout.live.turns.slots.records import FILL, EndedTurns, unpack_fill, unpack_running_turn


def check_decisions(db: sqlite3.Connection) -> CheckResult:
    """Checks turns against the events that gave and ended them: none may be lost or counted twice."""
    summary = read_summary(db)
    result, last = CheckResult(), summary.round
    ids = [client for (client,) in db.execute("SELECT id FROM clients ORDER BY row")]
    unredacted = {redaction.row for redaction in pending_redactions(db)}
    running = {int(number) for (number,) in db.execute("SELECT round FROM open_round")}
    open_turns: dict[int, int] = {}
    ended = 0
    for data in event_data(db, FILL):
        filled = unpack_fill(data, None)
        if filled.first != last + 1:
            result.problems.append(f"decision {filled.first} follows decision {last}")
        for decision, row in zip(filled.ended.decisions.tolist(), filled.ended.rows.tolist(), strict=True):
            if decision > summary.round and open_turns.pop(decision, None) != row:
                result.problems.append(f"turn {decision} ended, but was not running")
        result.problems.extend(_ended_problems(db, filled.ended, unredacted, summary.round))
        ended += len(filled.ended)
        for index, row in enumerate(filled.rows.tolist()):
            decision = filled.first + index
            open_turns[decision] = row
            turns = turns_by_row(db, decision)
            if list(turns) != [row]:
                result.problems.append(f"turn {decision} was given to row {row}, but the turns have {sorted(turns)}")
            elif turns[row].id != ids[row]:
                result.problems.append(f"turn {decision} has the id {turns[row].id!r} instead of {ids[row]!r}")
        last = filled.last
    missing = set(open_turns) ^ {number for number in running if number > summary.round}
    result.problems.extend(
        f"turn {number} is running in the events or in the file, but not in both" for number in missing
    )
    if str(last) != meta_value(db, "round"):
        result.problems.append(
            f"the last decision should be {meta_value(db, 'round')}, but the events end with decision {last}"
        )
    for (number,) in db.execute("SELECT DISTINCT round FROM turns WHERE round > ?", (last,)):
        result.problems.append(f"there is a turn {number}, which no decision gave")
    result.summary = f"{last - summary.round:,} decisions and {ended:,} ended turns agree with the turns"
    return result


def check_running_turns(db: sqlite3.Connection) -> CheckResult:
    """Checks the running turns against their digests."""
    result = CheckResult()
    count = 0
    for number, data, digest in db.execute("SELECT round, data, digest FROM open_round ORDER BY round"):
        count += 1
        if digest != digest_of(b"", str(number), data):
            result.problems.append(f"the turn {number}, which is running, does not match its digest")
        elif unpack_running_turn(data).decision != number:
            result.problems.append(f"the turn {number} is stored as another one")
    result.summary = f"{pluralize(count, 'turn', 'are')} running"
    return result


def _ended_problems(db: sqlite3.Connection, ended: EndedTurns, unchecked: set[int], after: int) -> Iterator[str]:
    columns = (ended.decisions, ended.rows, ended.kinds, ended.seconds, ended.losses)
    for decision, row, kind, seconds, loss in zip(*(column.tolist() for column in columns), strict=True):
        turn = turns_by_row(db, decision).get(row)
        if turn is not None and row not in unchecked and decision > after:
            yield from outcome_problems(f"turn {decision} ended", turn, kind, seconds, loss)
