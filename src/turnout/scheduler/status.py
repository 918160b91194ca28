"""The summary of a fleet, for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from turnout.scheduler.records import OpenRound, Turn
from turnout.scheduler.rounds.state import Fleet

#: The number of clients that a list shows.
SHOWN = 10


@dataclass(frozen=True, slots=True)
class SchedulerStatus:
    """The state of a fleet; its string form is for people.

    Attributes:
        clients: The number of clients, retired ones included.
        retired: The number of retired clients.
        round: The number of the open round, or of the last closed round.
        is_open: Whether the round is open.
        elapsed: The seconds since the selection of the open round.
        deadline: The deadline of the open round in seconds, or None.
        wanted: The number of updates that the open round needs.
        out: The clients of the open round that have not reported.
        arrived: The clients of the open round whose updates have arrived.
        failed: The clients of the open round that failed, with the reasons.
        behind: The clients that are owed most, with the turns owed; at most 10, each owed at least one.
        backing_off: The clients that are backed off, with the last round of the back-off.
        certificate_holds: Whether the guarantee is kept; None if there is none.
        notices: What an operator should know about the settings and the clients.
    """

    clients: int
    retired: int
    round: int
    is_open: bool
    elapsed: float
    deadline: float | None
    wanted: int
    out: list[str]
    arrived: list[str]
    failed: dict[str, str]
    behind: dict[str, float]
    backing_off: dict[str, int]
    certificate_holds: bool | None
    notices: list[str]

    @property
    def resting(self) -> dict[str, int]:
        """The former name of `backing_off`."""
        return self.backing_off

    def __str__(self) -> str:
        until = "no deadline" if self.deadline is None else f"deadline after {self.deadline:.1f} s"
        lines = [f"clients    {self.clients:,}, {self.retired:,} of them retired"]
        if self.is_open:
            lines.append(f"round      {self.round}, open for {self.elapsed:.1f} s, {until}, {self.wanted} required")
            lines.append(f"reported   {len(self.arrived)}: {_some(self.arrived)}")
            lines.append(f"pending    {len(self.out)}: {_some(self.out)}")
            if self.failed:
                lines.append(f"failed     {_some([f'{client} ({why})' for client, why in self.failed.items()])}")
        else:
            lines.append(f"round      {self.round} is closed, no round is open")
        if self.behind:
            lines.append(
                f"behind     {_some([f'{client} by {turns:.2f} turns' for client, turns in self.behind.items()])}"
            )
        if self.backing_off:
            lines.append(
                f"back-off   {_some([f'{client} until round {last}' for client, last in self.backing_off.items()])}"
            )
        if self.certificate_holds is not None:
            lines.append(f"guarantee  {'kept, except for the turns owed' if self.certificate_holds else 'BROKEN'}")
        lines.extend(f"note       {notice}" for notice in self.notices)
        return "\n".join(lines)


def status_of(
    fleet: Fleet, opened: OpenRound | None, turns: Sequence[Turn], elapsed: float, notices: list[str]
) -> SchedulerStatus:
    """Builds the summary.

    Args:
        fleet: The state of the fleet.
        opened: The open round, if there is one.
        turns: The turns of the open round.
        elapsed: The seconds since the selection of the open round.
        notices: What an operator should know.
    """
    behind: dict[str, float] = {}
    if fleet.queues is not None:
        owed = fleet.queues.owed
        most = np.argsort(-owed, kind="stable")[:SHOWN]
        behind = {fleet.ids[row]: float(owed[row]) for row in most.tolist() if owed[row] >= 1}
    backing_off = np.flatnonzero(fleet.counters.backing_off(fleet.round) & (fleet.counters.retired == 0))
    certificate = fleet.policy.certificate() if fleet.ids else None
    return SchedulerStatus(
        clients=len(fleet.ids),
        retired=int(fleet.counters.retired.sum()),
        round=fleet.round if opened is None else opened.round,
        is_open=opened is not None,
        elapsed=elapsed,
        deadline=None if opened is None else opened.deadline,
        wanted=0 if opened is None else opened.wanted,
        out=[turn.id for turn in turns if turn.kind is None],
        arrived=[turn.id for turn in turns if turn.kind == "arrived"],
        failed={turn.id: turn.why or "" for turn in turns if turn.kind == "failed"},
        behind=behind,
        backing_off={fleet.ids[row]: int(fleet.counters.backoff_until[row]) for row in backing_off.tolist()},
        certificate_holds=None if certificate is None else certificate.books_balance,
        notices=notices,
    )


def _some(items: Sequence[str]) -> str:
    more = f" and {len(items) - SHOWN:,} more" if len(items) > SHOWN else ""
    return ", ".join(items[:SHOWN]) + more
