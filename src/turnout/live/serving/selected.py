"""What is known about the clients of the open round."""

from __future__ import annotations

import math
from dataclasses import dataclass

from turnout.live.serving.session import FleetSession


@dataclass(frozen=True, slots=True)
class SelectedClient:
    """A client of the open round.

    Attributes:
        client: Its id.
        expected_seconds: Its predicted exchange time; None if it was never timed, or has just started.
        timed: Whether a time of it was learned before.
        behind: How many turns it is behind its promise; None if the policy guarantees nothing.
    """

    client: str
    expected_seconds: float | None
    timed: bool
    behind: float | None


def selected_clients(session: FleetSession) -> list[SelectedClient]:
    """Returns the clients of the open round, in its order; none if no round is open."""
    with session.lock:
        opened, fleet = session.memory.opened, session.fleet
        if opened is None:
            return []
        rows, certificate = opened.rows, session.certificate()
        times = fleet.expected_seconds(rows, opened.contexts).tolist()
        behind = [None] * len(rows) if certificate is None else certificate.behind[rows].tolist()
        timed = (fleet.counters.learned[rows] > 0).tolist()
        return [
            SelectedClient(fleet.ids[row], None if math.isnan(seconds) else seconds, known, turns)
            for row, seconds, known, turns in zip(rows.tolist(), times, timed, behind, strict=True)
        ]
