"""What a server without rounds gets: turns to start, and how long a device should wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RunningTurn:
    """A turn that a client was given.

    Attributes:
        id: The number of the decision that gave it; results are reported with it.
        client: The id of the client.
        deadline: The seconds after which the client is late, or None.
        reasons: The policy's reasons: a number for each name.
        selected_at: When the turn was given, by the wall clock in UTC, in ISO format; None if it is unknown.
    """

    id: int
    client: str
    deadline: float | None
    reasons: Mapping[str, float] = field(default_factory=dict)
    selected_at: str | None = None

    @property
    def deadline_at(self) -> str | None:
        """When the client is late, in the same form; None if it never is."""
        from turnout.live.clock import moment_after  # devices load as little as possible

        return moment_after(self.selected_at, self.deadline)


@dataclass(frozen=True, slots=True)
class Wait:
    """The answer to a client that checks in and is given no turn.

    Attributes:
        seconds: The seconds after which it should check in again.
        why: Why it is given no turn now.
    """

    seconds: float
    why: str


@dataclass(frozen=True, slots=True)
class SlotNews:
    """What has changed for devices that listen.

    Attributes:
        decision: The number of the last decision.
        given: The clients that were given turns since the decision that was asked about, and train now.
        free: The number of slots in which no client trains.
        has_ended: Whether a turn has ended whose slot becomes free with the next check-in.
    """

    decision: int
    given: list[str]
    free: int
    has_ended: bool
