"""How outcomes reach the file: once each, from any process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from turnout.errors import ReportError
from turnout.kernel.arrays import as_number
from turnout.scheduler.clock import now
from turnout.scheduler.journal.journal import Journal
from turnout.scheduler.outcomes import STILL_OUT
from turnout.scheduler.records import Turn

LONGEST = 1e9  # seconds


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is told of a client: that it came back after so many seconds, perhaps with a loss; or why it failed."""

    client: str
    seconds: float | None = None
    why: str | None = None
    round: int | None = None
    loss: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.client, str) or not self.client:
            raise ReportError(f"a client is known by its id, a word, not {self.client!r}")
        if self.seconds is not None:
            took = as_number(f"seconds of {self.client!r}", self.seconds, ReportError, above=0, most=LONGEST)
            object.__setattr__(self, "seconds", took)  # plain, so that its seal is the same when it is read again
            if self.loss is not None:
                object.__setattr__(self, "loss", as_number(f"loss of {self.client!r}", self.loss, ReportError))
        elif self.why is not None:
            object.__setattr__(self, "why", str(self.why).encode(errors="replace").decode())
        else:
            raise ReportError(f"tell how many seconds {self.client!r} took, or why it failed")


def outcomes_of(seconds: Mapping[str, float], losses: Mapping[str, float] | None, round_: int | None) -> list[Outcome]:
    """That each came back after its seconds; `losses` of all, of some, or of none."""
    losses = losses or {}
    for client in losses:
        if client not in seconds:
            raise ReportError(f"a loss of {client!r} is told, but not its seconds: give both; nothing was recorded")
    return [Outcome(client, took, round=round_, loss=losses.get(client)) for client, took in seconds.items()]


def record(journal: Journal, outcomes: Iterable[Outcome], late_window: int) -> list[bool]:
    """Write outcomes in one transaction: for each, whether it was news. All are refused if one is wrong.

    The same outcome again has no effect; another one for the same turn is refused, and the first is kept.
    """
    news = []
    with journal.writing() as db:
        opened = journal.open_round_number()
        closed = journal.last_closed_round()
        for outcome in outcomes:
            turn = journal.turn(outcome.client, outcome.round)
            if turn is None:
                where = "in any round" if outcome.round is None else f"in round {outcome.round}"
                raise ReportError(f"{outcome.client!r} was not chosen {where}: check the id; nothing was recorded")
            told = (
                _now_open(turn, outcome) if turn.round == opened else _since_closed(turn, outcome, closed, late_window)
            )
            news.append(told is not None)
            if told is not None:
                journal.put_turns(db, [told])
    return news


def _now_open(turn: Turn, outcome: Outcome) -> Turn | None:
    """The turn of the open round with this outcome in it; None where it was known."""
    kind = "arrived" if outcome.seconds is not None else "failed"
    if turn.kind is None:
        return replace(turn, kind=kind, seconds=outcome.seconds, why=outcome.why, loss=outcome.loss, at=now())
    if (turn.kind, turn.seconds, turn.why, turn.loss) == (kind, outcome.seconds, outcome.why, outcome.loss):
        return None
    raise _refused(turn, f"failed: {turn.why}" if turn.seconds is None else f"{turn.kind} after {turn.seconds:g} s")


def _since_closed(turn: Turn, outcome: Outcome, closed: int, late_window: int) -> Turn | None:
    """The turn of a closed round, with the true time of a client that was late, and its loss."""
    if turn.kind not in STILL_OUT:
        if (turn.seconds, turn.why, turn.loss) == (outcome.seconds, outcome.why, outcome.loss):
            return None
        raise _refused(turn, str(turn.kind))
    if outcome.seconds is None:
        return None  # that it was lost is known
    took = max(outcome.seconds, turn.seconds or 0.0)  # a report that raced the close: it was not back before that
    if (took, outcome.loss) == (turn.late_seconds, turn.loss):
        return None
    if turn.late_seconds is not None:
        raise _refused(turn, f"late, after {turn.late_seconds:g} s")
    if closed - turn.round >= late_window:
        raise ReportError(
            f"round {turn.round} of {turn.id!r} was closed {closed - turn.round} rounds before the last, and the "
            f"window for late clients is {late_window}: its time can no longer be learned"
        )
    return replace(turn, late_seconds=took, loss=outcome.loss, late_at=now())


def _refused(turn: Turn, known: str) -> ReportError:
    if turn.loss is not None:
        known += f", loss {turn.loss:g}"
    return ReportError(f"{turn.id!r} was reported before in round {turn.round} ({known}): the first report is kept")


class Reporter:
    """Reports outcomes to a fleet's file from a process that is not its scheduler; any number may, at once.

    `seconds` count from the hand-out of the model until it is back, by a monotonic clock.
    """

    def __init__(self, path: str | Path) -> None:
        self._journal = Journal(Path(path), reporting=True)
        self._late_window = int(self._journal.settings["late_window"])

    def report(
        self,
        client: str,
        seconds: float,
        *,
        loss: float | None = None,
        round: int | None = None,
    ) -> bool:
        """It came back after so many seconds, and perhaps told its loss; False if that was known."""
        return record(self._journal, [Outcome(client, seconds, round=round, loss=loss)], self._late_window)[0]

    def failed(self, client: str, why: str, *, round: int | None = None) -> bool:
        """It will not come back in this round; False if that was known."""
        return record(self._journal, [Outcome(client, why=why, round=round)], self._late_window)[0]

    def report_many(
        self,
        seconds: Mapping[str, float],
        *,
        losses: Mapping[str, float] | None = None,
        round: int | None = None,
    ) -> int:
        """Many at once, in one transaction; how many were news."""
        return sum(record(self._journal, outcomes_of(seconds, losses, round), self._late_window))

    def close(self) -> None:
        """Let go of the file."""
        self._journal.close()

    def __enter__(self) -> Reporter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        self.close()
