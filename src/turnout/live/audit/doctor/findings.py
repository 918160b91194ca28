"""Results of the checks of a fleet's file, and queries that several checks share."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field

from turnout.live.journal.summary import read_summary
from turnout.live.turns.outcomes import KINDS, RETURNED
from turnout.live.turns.records import Turn, has_context, turn_from_row, unpack_closed
from turnout.live.turns.slots.records import FILL, unpack_fill

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

    def to_dict(self) -> dict[str, str | bool | None]:
        """Returns the finding for JSON."""
        return asdict(self)


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


def event_data(db: sqlite3.Connection, kind: str) -> Iterator[bytes]:
    """Yields the data of all events of one kind that are kept, in order."""
    query = "SELECT data FROM events WHERE kind = ? AND seq > ? ORDER BY seq"
    for (data,) in db.execute(query, (kind, read_summary(db).event)):
        yield data


def close_events(db: sqlite3.Connection) -> Iterator[tuple[int, bytes]]:
    """Yields the numbers and the data of the events that closed a round and are kept."""
    query = "SELECT seq, data FROM events WHERE kind = 'close' AND seq > ? ORDER BY seq"
    yield from db.execute(query, (read_summary(db).event,))


def turns_by_row(db: sqlite3.Connection, round: int) -> dict[int, Turn]:
    """Returns the turns of a round, by the row of the client."""
    stored = db.execute("SELECT * FROM turns WHERE round = ?", (round,))
    return {turn.row: turn for turn, _ in map(turn_from_row, stored)}


def outcome_problems(what: str, turn: Turn, kind: int, seconds: float, loss: float) -> Iterator[str]:
    """Yields where a turn differs from the outcome that an event has; `what` begins the message."""
    if turn.kind != KINDS[kind] or (turn.seconds is not None and turn.seconds != seconds):
        recorded = "" if turn.seconds is None else f" after {turn.seconds:g} s"
        yield f"{what} as {KINDS[kind]} after {seconds:g} s, but its turn is recorded as {turn.kind}{recorded}"
    if KINDS[kind] in RETURNED and turn.loss != (None if math.isnan(loss) else loss):
        yield f"{what} with loss {loss:g}, but its turn is recorded with loss {turn.loss}"


def forgotten_rows(db: sqlite3.Connection) -> set[int]:
    """Returns the rows of the clients that were forgotten."""
    return {*read_summary(db).forgotten, *_forgotten_since_summary(db)}


def _forgotten_since_summary(db: sqlite3.Connection) -> list[int]:
    return [int(json.loads(data)["row"]) for data in event_data(db, "forget")]


def snapshot_required(db: sqlite3.Connection) -> str:
    """Returns why the state cannot be rebuilt from the events that are kept, or "" if it can."""
    if _forgotten_since_summary(db):
        return "clients were forgotten"
    first = read_summary(db).event
    (stored,) = db.execute("SELECT COUNT(*) FROM masks WHERE seq > ?", (first,)).fetchone()
    fills = sum(1 for _ in event_data(db, FILL))
    if stored < sum(1 for _ in close_events(db)) + fills:
        return f"the {'presence of clients at some decisions' if fills else 'availability of some rounds'} was dropped"
    if any(not has_context(unpack_closed(data, None)[0].contexts).all() for _, data in close_events(db)) or any(
        not has_context(unpack_fill(data, None).contexts).all() for data in event_data(db, FILL)
    ):
        return "the statuses of clients are not persisted"
    return ""


def snapshot_event(db: sqlite3.Connection) -> int:
    """Returns the number of the event after which the last snapshot was taken; 0 if there is none."""
    return int(db.execute("SELECT COALESCE(MAX(seq), 0) FROM snapshot").fetchone()[0])
