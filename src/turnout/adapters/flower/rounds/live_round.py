"""A round between the selection of its cohort and its close."""

from __future__ import annotations

from dataclasses import dataclass, field

from flwr.app import Message

from turnout.live._internals import OpenRound


@dataclass(slots=True)
class FlowerRound:
    """A round between the selection of its cohort and its close.

    Attributes:
        opened: the round of the fleet.
        nodes: the node of each connected client of the cohort.
        expected: the predicted seconds of each client whose time was learned before.
        recorded: the clients whose outcome was recorded before a restart of the server.
        arrived: the seconds and the content of each reply that can be aggregated.
        errors: the error replies.
        waited: the seconds that the server waited for replies.
    """

    opened: OpenRound
    nodes: dict[str, int]
    expected: dict[str, float]
    recorded: frozenset[str] = frozenset()
    arrived: dict[str, tuple[float, Message]] = field(default_factory=dict)
    errors: list[Message] = field(default_factory=list)
    waited: float = 0.0

    @property
    def enough(self) -> bool:
        """Whether the target number of replies has arrived."""
        return len(self.arrived) >= self.opened.target_size

    def replies_to_aggregate(self) -> list[Message]:
        """Returns the earliest replies up to the target number, ties by row, followed by all error replies."""
        order = {client: index for index, client in enumerate(self.nodes)}
        earliest = sorted(self.arrived, key=lambda client: (self.arrived[client][0], order[client]))
        return [self.arrived[client][1] for client in earliest[: self.opened.target_size]] + self.errors
