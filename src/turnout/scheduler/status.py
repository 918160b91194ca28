"""Where a fleet stands, for a person to read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from turnout.scheduler.records import OpenRound, Turn
from turnout.scheduler.rounds.state import Fleet

SHOWN = 10


@dataclass(frozen=True, slots=True)
class SchedulerStatus:
    """`out`: who is still out; `behind`: who is owed most, in turns; `resting`: up to which round, itself included."""

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
    resting: dict[str, int]
    certificate_holds: bool | None
    notices: list[str]

    def __str__(self) -> str:
        until = "no deadline" if self.deadline is None else f"deadline after {self.deadline:.1f} s"
        lines = [f"clients    {self.clients:,}, {self.retired:,} of them retired"]
        if self.is_open:
            lines.append(f"round      {self.round}, open for {self.elapsed:.1f} s, {until}, {self.wanted} wanted")
            lines.append(f"back       {len(self.arrived)}: {_some(self.arrived)}")
            lines.append(f"out        {len(self.out)}: {_some(self.out)}")
            if self.failed:
                lines.append(f"failed     {_some([f'{client} ({why})' for client, why in self.failed.items()])}")
        else:
            lines.append(f"round      {self.round} is closed, none is open")
        if self.behind:
            lines.append(
                f"behind     {_some([f'{client} by {turns:.2f} turns' for client, turns in self.behind.items()])}"
            )
        if self.resting:
            lines.append(f"resting    {_some([f'{client} up to round {to}' for client, to in self.resting.items()])}")
        if self.certificate_holds is not None:
            lines.append(f"promise    {'kept, but for what is owed' if self.certificate_holds else 'BROKEN'}")
        lines.extend(f"note       {notice}" for notice in self.notices)
        return "\n".join(lines)


def status_of(
    fleet: Fleet, opened: OpenRound | None, turns: Sequence[Turn], elapsed: float, notices: list[str]
) -> SchedulerStatus:
    """Read it off."""
    behind: dict[str, float] = {}
    if fleet.queues is not None:
        owed = fleet.queues.owed
        most = np.argsort(-owed, kind="stable")[:SHOWN]
        behind = {fleet.ids[row]: float(owed[row]) for row in most.tolist() if owed[row] >= 1}
    resting = np.flatnonzero(fleet.counters.backing_off(fleet.round) & (fleet.counters.retired == 0))
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
        resting={fleet.ids[row]: int(fleet.counters.backoff_until[row]) for row in resting.tolist()},
        certificate_holds=None if certificate is None else certificate.holds,
        notices=notices,
    )


def _some(words: Sequence[str]) -> str:
    more = f" and {len(words) - SHOWN:,} more" if len(words) > SHOWN else ""
    return ", ".join(words[:SHOWN]) + more
