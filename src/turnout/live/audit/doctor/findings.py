"""Results of the checks of a fleet's file, and queries that several checks share."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from turnout.live.journal.summary import read_summary
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


def forgotten_rows(db: Connection) -> set[int]:
    """Returns the rows of the clients that were forgotten."""
    summary = read_summary(db)
    kept = db.execute("SELECT data FROM events WHERE kind = 'forget' AND seq > ?", (summary.event,))
    return {*summary.forgotten, *(int(json.loads(data)["row"]) for (data,) in kept)}


def snapshot_event(db: Connection) -> int:
    """Returns the number of the event after which the last snapshot was taken; 0 if there is none."""
    return int(db.execute("SELECT COALESCE(MAX(seq), 0) FROM snapshot").fetchone()[0])
