"""Records outcomes in the file of a fleet, each once, from any process."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from turnout.closing import Closable, close_on_error
from turnout.errors import ReportedBeforeError, ReportError, UnknownTurnError, suggestion
from turnout.kernel.arrays import as_number
from turnout.live.clock import now
from turnout.live.identifiers import as_reason, as_round, check_client_id
from turnout.live.journal.journal import Journal
from turnout.live.journal.schema import meta_count, meta_value
from turnout.live.journal.turns import find_turn, open_turns_of
from turnout.live.retention import late_turns
from turnout.live.turns.records import STILL_OUT, Turn
from turnout.storage.address import DatabaseAddress, as_location, file_of
from turnout.storage.encoding.packing import parse_stored
from turnout.storage.store import Connection, repeat

#: The largest accepted exchange time, in seconds.
MAX_SECONDS = 1e9


@dataclass(frozen=True, slots=True)
class Outcome:
    """One outcome to record: either the exchange time of an update, perhaps with a loss, or the reason of a failure.

    Attributes:
        client: The id of the client.
        seconds: The exchange time; None if the client failed.
        why: The reason of the failure.
        round: The round of the turn; None means the client's latest turn.
        loss: The mean training loss, if it was reported.
        signals: Numbers by the names of declared signals.
    """

    client: str
    seconds: float | None = None
    why: str | None = None
    round: int | None = None
    loss: float | None = None
    signals: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        check_client_id(self.client, ReportError)
        object.__setattr__(self, "client", str.__str__(self.client))
        if self.round is not None:
            object.__setattr__(self, "round", as_round(self.round))
        # Values are converted to plain types: the checksum is computed from them again when they are read.
        if self.seconds is not None:
            seconds = as_number(f"seconds of {self.client!r}", self.seconds, ReportError, above=0, most=MAX_SECONDS)
            object.__setattr__(self, "seconds", seconds)
            if self.loss is not None:
                object.__setattr__(self, "loss", as_number(f"loss of {self.client!r}", self.loss, ReportError))
        elif self.why is not None:
            object.__setattr__(self, "why", as_reason(self.why))
        else:
            raise ReportError(f"pass the seconds that {self.client!r} took, or the reason why it failed")


def outcomes_of(
    seconds: Mapping[str, float],
    losses: Mapping[str, float] | None,
    signals: Mapping[str, Mapping[str, float]] | None,
    round: int | None,
) -> list[Outcome]:
    """Returns one outcome per arrived client; `losses` and `signals` may cover all clients, some or none."""
    losses, signals = losses or {}, signals or {}
    for name, given in (("losses", losses), ("signals", signals)):
        for client in given:
            if client not in seconds:
                raise ReportError(f"{name} has {client!r}, but seconds does not: pass both; nothing was recorded")
    return [
        Outcome(client, duration, round=round, loss=losses.get(client), signals=signals.get(client))
        for client, duration in seconds.items()
    ]


def _known_signals(db: Connection, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Returns the outcomes with the signals that count: those with values in the ranges that the fleet declares.

    Raises:
        ReportError: If a signal is not declared, or is no number.
    """
    if all(outcome.signals is None for outcome in outcomes):
        return list(outcomes)
    declared = parse_stored(meta_value(db, "settings")).get("signals", {})
    known = []
    for outcome in outcomes:
        if not isinstance(outcome.signals or {}, Mapping):
            raise ReportError(f"signals of {outcome.client!r} must be a mapping, not {outcome.signals!r}")
        own = {}
        for name, value in (outcome.signals or {}).items():
            if name not in declared:
                raise ReportError(
                    f"{outcome.client!r} reports the signal {name!r}{suggestion(str(name), declared)}, but the fleet "
                    f"declares {', '.join(declared) or 'none'}: amend its setting signals; nothing was recorded"
                )
            if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
                raise ReportError(f"{name} of {outcome.client!r} must be a number, not {value!r}; nothing was recorded")
            low, high = declared[name]
            if low <= value <= high:
                own[name] = float(value)
        known.append(replace(outcome, signals=own or None))
    return known


def record(journal: Journal, outcomes: Sequence[Outcome], late_window: int) -> list[bool]:
    """Records outcomes in one transaction and returns for each whether it is new.

    An outcome that was recorded before has no effect.

    Raises:
        ReportError: If a client was not selected, or a different outcome of the same turn was recorded before; then no
            outcome is recorded.
    """
    is_new = []
    with journal.writing() as changes:
        db = changes.db
        outcomes = _known_signals(db, outcomes)
        in_open = open_turns_of(db, [outcome.client for outcome in outcomes]) if len(outcomes) > 1 else {}
        changed: dict[tuple[int, str], Turn] = {}
        at = now()
        for outcome in outcomes:
            turn, is_open = in_open.get(outcome.client), True
            if turn is None or outcome.round not in (None, turn.round):
                newest = find_turn(db, outcome.client, outcome.round)
                if newest is None:
                    where = "in any round" if outcome.round is None else f"in round {outcome.round}"
                    raise UnknownTurnError(
                        f"{outcome.client!r} was not selected {where}: check the id; nothing was recorded"
                    )
                turn, is_open = newest
            turn = changed.get((turn.round, turn.id), turn)  # if an earlier outcome is of the same turn
            if is_open:
                updated = _updated_open_turn(turn, outcome, at)
            else:
                updated = _updated_closed_turn(turn, outcome, meta_count(db, "round"), late_window, at)
            is_new.append(updated is not None)
            if updated is not None:
                changed[updated.round, updated.id] = updated
        changes.put_turns(list(changed.values()))
    return is_new


def _updated_open_turn(turn: Turn, outcome: Outcome, at: str) -> Turn | None:
    """Returns the turn of the open round with this outcome; None if it is recorded already."""
    kind = "arrived" if outcome.seconds is not None else "failed"
    if turn.kind is None:
        # A turn of the open round has no other values yet; `replace` would take four times as long.
        own = (turn.round, turn.row, turn.id, kind, outcome.seconds, outcome.why, at)
        return Turn(*own, loss=outcome.loss, signals=outcome.signals)
    if turn.kind == kind and _reported(turn) == _reported(outcome):
        return None
    raise _conflict(turn, f"failed: {turn.why}" if turn.seconds is None else f"{turn.kind} after {turn.seconds:g} s")


def _updated_closed_turn(turn: Turn, outcome: Outcome, closed: int, late_window: int, at: str) -> Turn | None:
    """Returns the turn of a closed round with the actual time and loss of a late client; None if nothing changes."""
    if turn.kind not in STILL_OUT:
        if _reported(turn) == _reported(outcome):
            return None
        raise _conflict(turn, str(turn.kind))
    if outcome.seconds is None:
        return None  # the turn is recorded as missed already
    if (outcome.seconds, outcome.loss, outcome.signals) == (turn.late_seconds, turn.loss, turn.signals):
        return None
    if turn.late_seconds is not None:
        raise _conflict(turn, f"late, after {turn.late_seconds:g} s")
    if closed - turn.round >= late_window:
        raise ReportError(
            f"round {turn.round} of {turn.id!r} was closed {closed - turn.round} rounds ago: its time can be learned "
            f"within {late_window} only"
        )
    return replace(turn, late_seconds=outcome.seconds, loss=outcome.loss, signals=outcome.signals, late_at=at)


def _reported(of: Turn | Outcome) -> tuple[object, ...]:
    return of.seconds, of.why, of.loss, of.signals


def _conflict(turn: Turn, recorded: str) -> ReportedBeforeError:
    if turn.loss is not None:
        recorded += f", loss {turn.loss:g}"
    recorded += "".join(f", {name} {value:g}" for name, value in (turn.signals or {}).items())
    return ReportedBeforeError(
        f"{turn.id!r} was reported before in round {turn.round} ({recorded}): the first report is kept"
    )


class Reporter(Closable):
    """Reports outcomes to the file of a fleet from any process except its scheduler; many may report at once.

    Threads may share a reporter.

    `seconds` is the exchange time, from sending the model until the update arrived, by a monotonic clock.
    """

    def __init__(self, path: str | Path | DatabaseAddress) -> None:
        self._mutex = threading.Lock()
        self._journal = Journal(as_location(path), "report")
        with close_on_error(self):
            self._late_window = late_turns(self._journal.settings.get("concurrency"))

    @property
    def path(self) -> Path:
        """The file of the fleet; raises FleetKindError if it is in a database."""
        return file_of(self._journal.location)

    def report(
        self,
        client: str,
        seconds: float,
        *,
        loss: float | None = None,
        signals: Mapping[str, float] | None = None,
        round: int | None = None,
    ) -> bool:
        """Records that the update of a client arrived; returns False if that was recorded before.

        Args:
            client: The id of the client.
            seconds: The exchange time.
            loss: The mean training loss of the client, if it is known.
            signals: Numbers by the names of signals that the fleet declares.
            round: The round in which the client was selected; by default the latest.
        """
        return self._record([Outcome(client, seconds, round=round, loss=loss, signals=signals)])[0]

    def report_failure(self, client: str, why: str, *, round: int | None = None) -> bool:
        """Records that a client failed, and why; returns False if that was recorded before."""
        return self._record([Outcome(client, why=why, round=round)])[0]

    def report_many(
        self,
        seconds: Mapping[str, float],
        *,
        losses: Mapping[str, float] | None = None,
        signals: Mapping[str, Mapping[str, float]] | None = None,
        round: int | None = None,
    ) -> int:
        """Records arrivals in one transaction; returns how many are new. Some clients may lack losses and signals."""
        return sum(self._record(outcomes_of(seconds, losses, signals, round)))

    def close(self) -> None:
        """Closes the file."""
        self._journal.close()

    def __repr__(self) -> str:
        return f"Reporter({str(self._journal.location)!r})"

    def _record(self, outcomes: Sequence[Outcome]) -> list[bool]:
        with self._mutex:
            return repeat(lambda: record(self._journal, outcomes, self._late_window))
